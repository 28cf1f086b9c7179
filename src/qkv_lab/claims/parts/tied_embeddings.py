"""A tied output matrix saves V·d parameters, which matters if the vocabulary is large beside the model."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from qkv.models.tables.presets import find_preset
from qkv.models.tables.summary import summarise_model
from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.corpus import BYTE_MODEL, write_corpus
from qkv_lab.experiment import Experiment
from qkv_lab.table import Point, Table

BITS = "validation loss (bits per byte)"
BITS_BY_STEPS = "validation loss with the largest vocabulary (bits per byte)"
PARAMETERS = "parameters of the model"
MATRIX = "entries of the output matrix"
SHARE = "output matrix (entries / other parameters)"
TIED, UNTIED = "tied", "untied"
DEFAULT_STD = 0.02
INIT_STDS = {"": DEFAULT_STD, ", embeddings start larger": 0.1}
"""Standard deviations of the embeddings before training, by the suffix of their series."""
PUBLISHED = {
    "Transformer base": "transformer-base",
    "BERT base": "bert-base",
    "GPT-2": "gpt2",
    "GPT-2 XL": "gpt2-xl",
    "Llama 3.1 8B": "llama-3.1-8b",
    "GPT-3": "gpt3-175b",
}


@dataclass(frozen=True)
class TiedEmbeddingsSettings:
    """Small language models: of bytes, and of subwords with larger vocabularies."""

    vocab_sizes: tuple[int, ...] = (1024, 4096)
    width: int = 32
    train_bytes: int = 400_000
    steps: int = 300
    more_steps: int = 900
    batch_tokens: int = 512


def run(experiment: Experiment) -> Iterator[Point]:
    """Count the output matrices of published models, and train small models with tied and untied ones."""
    settings = experiment.settings
    for name, preset in PUBLISHED.items():
        config = find_preset(preset)
        summary = summarise_model(config)
        matrix = config.stack.vocab_size * config.stack.width
        others = summary.total - (matrix if summary.tied else 2 * matrix)
        yield Point(SHARE, "published models", name, matrix / others)
    data = write_corpus(experiment, settings.train_bytes, settings.train_bytes // 20)
    model = {**BYTE_MODEL, **data, "model.width": settings.width, "train.batch_tokens": settings.batch_tokens}
    subwords = [{"tokenizer.kind": "byte-bpe", "tokenizer.vocab_size": size} for size in settings.vocab_sizes]
    for tokenizer in ({"tokenizer.kind": "byte"}, *subwords):
        for series in (TIED, UNTIED):
            keys = {**model, **tokenizer, "train.steps": settings.steps, "model.tie_embeddings": series == TIED}
            trained = experiment.train(
                f"{series}, vocabulary {tokenizer.get('tokenizer.vocab_size', 'of bytes')}", keys
            )
            stack = trained.config.stack
            yield Point(BITS, series, stack.vocab_size, trained.run_end.metrics["bits_per_byte"])
            yield Point(PARAMETERS, series, stack.vocab_size, summarise_model(trained.config).total)
            yield Point(MATRIX, series, stack.vocab_size, stack.vocab_size * stack.width)

            if tokenizer is subwords[-1]:
                yield Point(BITS_BY_STEPS, series, settings.steps, trained.run_end.metrics["bits_per_byte"])
    yield from train_longer(experiment, {**model, **subwords[-1]})


def train_longer(experiment: Experiment, model: dict[str, Any]) -> Iterator[Point]:
    """Train with more steps, and with embeddings that start larger."""
    settings = experiment.settings
    for suffix, std in INIT_STDS.items():
        for steps in (settings.steps, settings.more_steps):
            if (std, steps) == (DEFAULT_STD, settings.steps):
                continue  # `measure` has trained these
            for series in (TIED, UNTIED):
                keys = {"train.steps": steps, "model.init_std": std, "model.tie_embeddings": series == TIED}
                trained = experiment.train(f"{series}, {std}, {steps} steps", {**model, **keys})
                yield Point(BITS_BY_STEPS, series + suffix, steps, trained.run_end.metrics["bits_per_byte"])


def check(table: Table) -> list[Check]:
    """Tying saves one matrix; the loss does not rise."""
    sizes = table.xs(BITS)
    large = sizes[-1]
    saved = {size: table.mean(PARAMETERS, UNTIED, size) - table.mean(PARAMETERS, TIED, size) for size in sizes}
    fraction = saved[large] / table.mean(PARAMETERS, UNTIED, large)
    costs = {size: table.difference(BITS, (TIED, size), (UNTIED, size)) for size in sizes}
    shares = table.curve(SHARE, "published models")
    short, long = (int(x) for x in table.xs(BITS_BY_STEPS))
    by_steps = [table.difference(BITS_BY_STEPS, (TIED, x), (UNTIED, x)) for x in (short, long)]
    best = {kind: min(table.mean(BITS_BY_STEPS, kind + end, long) for end in INIT_STDS) for kind in (TIED, UNTIED)}
    return [
        Check(
            f"tying saves V·d parameters; with a vocabulary of {large:,}, this is more than a third of the model and "
            "raises the loss by less than 0.05 bits per byte",
            saved == table.curve(MATRIX, TIED) and fraction > 1 / 3 and costs[large][0] < 0.05,
            f"{fraction:.0%} saved; loss {costs[large][0]:+.3f} ± {costs[large][1]:.3f} bits per byte",
        ),
        Check(
            "with a vocabulary of bytes, tying also raises the loss by less than 0.05 bits per byte",
            costs[sizes[0]][0] < 0.05,
            f"{costs[sizes[0]][0]:+.3f} ± {costs[sizes[0]][1]:.3f}",
        ),
        Check(
            f"with a vocabulary of {large:,}, training for {long:,} instead of {short:,} steps lowers the cost of "
            "tying by at least a third",
            by_steps[1][0] <= 2 / 3 * by_steps[0][0],
            " → ".join(f"{cost:+.3f} ± {half:.3f}" for cost, half in by_steps),
        ),
        Check(
            f"after {long:,} steps, with the better of two initial sizes of the embeddings for each model, tying costs "
            "less than 0.05 bits per byte",
            best[TIED] - best[UNTIED] < 0.05,
            f"{best[TIED] - best[UNTIED]:+.3f}",
        ),
        Check(
            "an output matrix adds more than a quarter to GPT-2 and less than a tenth to Llama 3.1 8B and GPT-3",
            shares["GPT-2"] > 0.25 and shares["Llama 3.1 8B"] < 0.1 and shares["GPT-3"] < 0.1,
            ", ".join(f"{name} {shares[name]:.1%}" for name in ("GPT-2", "Llama 3.1 8B", "GPT-3")),
        ),
    ]


def example() -> None:
    """The idea in a few lines."""
    from qkv import Config, HeadConfig, StackConfig, build

    for vocab_size in (256, 32_000):
        stack = StackConfig(vocab_size=vocab_size, width=64, layers=2, heads=4, ffn_width=256)
        for tied in (True, False):
            network = build(Config(decoder=stack, head=HeadConfig(kind="lm", outputs=vocab_size, tied=tied)))
            parameters = sum(parameter.numel() for parameter in network.parameters())
            print(f"vocabulary {vocab_size:,}, tied {tied}: {parameters:,} parameters")


CLAIM = Claim(
    name="tied-embeddings",
    chapter="parts",
    title="A tied output matrix saves V·d parameters",
    quotes=(
        Quote(
            "all it does is, for each decoder output token, project its embedding to a dist. over vocabulary", "video"
        ),
    ),
    question="What does a model lose if its output matrix is the embedding matrix?",
    method="We train small language models on the sources of Python's standard library, with bytes and with subwords, "
    "and with an output matrix of their own (untied) or the embedding matrix (tied). With the largest vocabulary, we "
    "also train for longer, and with embeddings that start larger (a standard deviation of 0.1 instead of 0.02). "
    "Losses are in bits per byte, so that different vocabularies compare. For published models we count what an "
    "output matrix adds to the parameters of the blocks.",
    lesson="The embedding has a vector for each token as an input, the output matrix has one for each token as a "
    "prediction. Tokens that mean the same should be close in both, so one matrix can serve for both (Press and Wolf, "
    "2017). It also gets gradient from every position, and not only for the tokens that occur. A small model with a "
    "large vocabulary saves much of its size. In a large model the matrix is a small part, and an untied one is "
    "affordable. In these models, the saving has a price. A part of it is a matter of training: the one matrix has to "
    "serve two purposes from the start, and the price falls with more steps. Embeddings that start larger help the "
    "tied model and hurt the untied one. A part remains: the untied model has almost twice the parameters, and uses "
    "them.",
    limits="Two layers of width 32, a few hundred steps and one corpus. In one run with 5,000 steps on ten times the "
    "text, tying still cost 0.09 bits per byte with a vocabulary of 4,096, and 0.09 with bytes. Models of equal size, "
    "in which the saved parameters are spent on the blocks, are not compared. The expectations about steps and "
    "initial sizes were stated after that one run.",
    settings={
        "mini": TiedEmbeddingsSettings((300,), train_bytes=5000, steps=2, more_steps=4),
        "small": TiedEmbeddingsSettings(),
        "full": TiedEmbeddingsSettings(
            (1024, 4096, 16_384), width=128, train_bytes=4_000_000, steps=2000, more_steps=6000
        ),
    },
    run=run,
    check=check,
    charts=(
        Chart(measure=BITS, x="vocabulary size", log_x=True),
        Chart(measure=BITS_BY_STEPS, x="training steps"),
        Chart(measure=PARAMETERS, x="vocabulary size", log_x=True, log_y=True),
        Chart(measure=SHARE, x="published models"),
    ),
    example=example,
)
