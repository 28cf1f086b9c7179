"""A feed-forward that is four times as wide as the model holds two thirds of a block; its width is a cheap choice."""

from collections.abc import Iterator
from dataclasses import dataclass

from qkv.models.tables.presets import find_preset
from qkv.models.tables.summary import count_parameters
from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.corpus import BYTE_MODEL, write_corpus
from qkv_lab.experiment import Experiment
from qkv_lab.table import Point, Table

LOSS = "validation loss (nats per byte)"
BLOCK_SHARE = "fraction of the block's parameters in the MLP"
MODEL_SHARE = "fraction of the model's parameters in MLPs"
BILLIONS = "parameters in MLPs (billions)"
SIZE = "parameters of the blocks"
EQUAL_WIDTH, EQUAL_SIZE = "equal width", "equal parameters"
PUBLISHED = {
    "Transformer base": "transformer-base",
    "GPT-2": "gpt2",
    "BERT base": "bert-base",
    "GPT-2 XL": "gpt2-xl",
    "Llama 3.1 8B": "llama-3.1-8b",
    "GPT-3": "gpt3-175b",
}
LARGE = ("GPT-2 XL", "Llama 3.1 8B", "GPT-3")
"""The models with more than a billion parameters."""


@dataclass(frozen=True)
class ExpansionSettings:
    """Small language models of bytes. `width` is the width at expansion 4."""

    expansions: tuple[int, ...] = (1, 2, 4, 8)
    width: int = 48
    heads: int = 2
    train_bytes: int = 400_000
    steps: int = 250
    batch_tokens: int = 512

    def width_of_equal_size(self, expansion: int) -> int:
        """The width whose blocks have the parameters of expansion 4: 4w² for attention, 2·expansion·w² for the MLP."""
        width: float = self.width * (12 / (4 + 2 * expansion)) ** 0.5
        return 2 * self.heads * round(width / (2 * self.heads))  # rotary positions need heads of an even dimension


def run(experiment: Experiment) -> Iterator[Point]:
    """Count the parameters of published models, and train small models with feed-forwards of several widths."""
    settings = experiment.settings
    for name, preset in PUBLISHED.items():
        parameters = count_parameters(find_preset(preset))
        yield Point(MODEL_SHARE, "MLPs", name, parameters["mlp"] / sum(parameters.values()))
        yield Point(BILLIONS, "MLPs", name, parameters["mlp"] / 1e9)
    data = write_corpus(experiment, settings.train_bytes, settings.train_bytes // 20)
    training = {"train.steps": settings.steps, "train.batch_tokens": settings.batch_tokens}
    for series in (EQUAL_WIDTH, EQUAL_SIZE):
        for expansion in settings.expansions:
            width = settings.width if series == EQUAL_WIDTH else settings.width_of_equal_size(expansion)
            model = {"model.width": width, "model.heads": settings.heads, "model.ffn_width": expansion * width}
            keys = {**BYTE_MODEL, **data, **training, **model, "model.feedforward": "gelu"}
            trained = experiment.train(f"{series}, expansion {expansion}", keys)
            parameters = count_parameters(trained.config)
            size = parameters["attention"] + parameters["mlp"]
            yield Point(LOSS, series, expansion, trained.run_end.metrics["loss"])
            yield Point(SIZE, series, expansion, size)
            if series == EQUAL_WIDTH:
                yield Point(BLOCK_SHARE, "counted", expansion, parameters["mlp"] / size)


def check(table: Table) -> list[Check]:
    """MLPs hold most parameters of large models; more width helps, and at equal size the choice hardly matters."""
    shares = table.curve(MODEL_SHARE, "MLPs")
    billions = table.mean(BILLIONS, "MLPs", "GPT-3")
    expansions = table.xs(LOSS)
    gain, interval = table.difference(LOSS, (EQUAL_WIDTH, expansions[0]), (EQUAL_WIDTH, expansions[-1]))
    losses = table.curve(LOSS, EQUAL_SIZE)
    best = min(losses, key=lambda expansion: losses[expansion])
    sizes = table.curve(SIZE, EQUAL_SIZE).values()
    spread = max(sizes) / min(sizes) - 1
    return [
        Check(
            "the MLPs of GPT-3 have 116 billion parameters, and MLPs have the majority in each model above a billion",
            round(billions) == 116 and all(shares[name] > 0.5 for name in LARGE),
            f"{billions:.0f} billion; " + ", ".join(f"{name} {shares[name]:.0%}" for name in LARGE),
        ),
        Check(
            "MLPs have the majority in small models, too",
            all(share > 0.5 for share in shares.values()),
            ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if name not in LARGE),
        ),
        Check(
            f"at equal width, expansion {expansions[-1]} learns more than {expansions[0]} (by 0.05 nats)",
            gain - interval > 0.05,
            f"by {gain:.2f} ± {interval:.2f} nats",
            needs_all_seeds=True,
        ),
        Check(
            f"at equal parameters (within {spread:.0%}), expansion 4 is within 0.05 nats of the best",
            losses[4] - losses[best] < 0.05,
            f"{losses[4]:.2f} nats; best {losses[best]:.2f} at expansion {best:g}",
        ),
    ]


def example() -> None:
    """The idea in a few lines."""
    from qkv.models.tables.presets import find_preset
    from qkv.models.tables.summary import count_parameters

    for name in ("gpt2", "bert-base", "llama-3.1-8b", "gpt3-175b"):
        parameters = count_parameters(find_preset(name))
        share = parameters["mlp"] / sum(parameters.values())
        print(f"{name}: {parameters['mlp'] / 1e9:.2f} billion parameters in MLPs, {share:.0%} of the model")


CLAIM = Claim(
    name="expansion",
    chapter="parts",
    title="Most parameters of a large model are in its MLPs",
    quotes=(
        Quote("majority of the model’s parameters live inside the MLPs", "inside"),
        Quote("~116 billion in GPT‑3, making them the largest part of the model.", "inside"),
        Quote(
            "W1 usually expands to a much larger representation (4x in BERT) before w2 squeezes it back down",
            "mechanism",
        ),
    ),
    question="How many parameters do MLPs have, and how wide should they be?",
    method="We count the parameters of published models from their configs. Then we train small language models of "
    "bytes on the sources of Python's standard library. The hidden layer of their MLPs is 1, 2, 4 or 8 times as wide "
    "as the model: once at equal width, and once at widths that give the blocks the same number of parameters.",
    lesson="The attention of a block of width w has four matrices of w², its MLP has two of e·w² for expansion e. At "
    "the usual e = 4, two thirds of a block are in the MLP. Small models spend much on their vocabulary, and the "
    "decoder of an encoder-decoder has twice the attention, so their MLPs can have less than half. A wider MLP learns "
    "more because it has more parameters and FLOPs. If the model becomes narrower in exchange, the loss changes "
    "little: the optimum is broad.",
    limits="Two layers and a few hundred steps on bytes. Kaplan et al. (2020) found the same broad optimum in large "
    "models.",
    settings={
        "mini": ExpansionSettings((1, 4), width=16, train_bytes=5000, steps=2),
        "small": ExpansionSettings(),
        "full": ExpansionSettings(width=96, heads=4, train_bytes=4_000_000, steps=1500, batch_tokens=1024),
    },
    run=run,
    check=check,
    charts=(
        Chart(measure=MODEL_SHARE, x="published models"),
        Chart(measure=BLOCK_SHARE, x="expansion", log_x=True),
        Chart(measure=LOSS, x="expansion", log_x=True),
    ),
    example=example,
)
