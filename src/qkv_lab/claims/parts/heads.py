"""Several heads read several tokens at once, for the same number of parameters and FLOPs as one head."""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from qkv.models.tables.summary import summarise_model
from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.corpus import write_corpus
from qkv_lab.decoders import decoder_keys
from qkv_lab.experiment import Experiment
from qkv_lab.table import Point, Table

ACCURACY = "accuracy on four relations at once"
LOSS = "validation loss on Python code (nats per token)"
PARAMETERS, FLOPS = "parameters", "FLOPs per token"
TASKS = RELATIONS, CODE = "four relations", "Python code"
OFFSETS = (1, 3, 6, 10)
"""The tag of a token tells the bits that are these numbers of tokens before it."""


@dataclass(frozen=True)
class HeadsSettings:
    """The model, and two tasks, each with numbers of heads."""

    heads: tuple[int, ...] = (1, 2, 4, 8)
    width: int = 64
    length: int = 32
    num_lines: int = 2000
    steps: int = 400
    batch_tokens: int = 512
    code_bytes: int = 300_000
    code_layers: int = 2
    code_heads: tuple[int, ...] = (1, 8)
    code_steps: int = 250


def run(experiment: Experiment) -> Iterator[Point]:
    """Train models with different numbers of heads on tags that depend on four tokens, and on Python code."""
    settings = experiment.settings
    relations = write_relations(experiment)
    code = {
        **write_corpus(experiment, settings.code_bytes, settings.code_bytes // 20),
        "objective.kind": "causal_lm",
        "tokenizer.vocab_size": 512,
        "data.max_length": 128,
        "train.batch_tokens": 1024,
        "train.steps": settings.code_steps,
    }
    tasks = ((RELATIONS, relations, 1, settings.heads), (CODE, code, settings.code_layers, settings.code_heads))
    for name, data, layers, numbers in tasks:
        for heads in numbers:
            model = decoder_keys(layers, settings.width, {"heads": heads, "position": "rotary"})
            trained = experiment.train(f"{name}, {heads} heads", {"train.lr": 3e-3, **data, **model})
            summary = summarise_model(trained.config, settings.length)
            yield Point(PARAMETERS, name, heads, summary.total)
            yield Point(FLOPS, name, heads, summary.flops_forward)
            metric, measure = ("accuracy", ACCURACY) if name == RELATIONS else ("loss", LOSS)
            yield Point(measure, name, heads, trained.run_end.metrics[metric])


def write_relations(experiment: Experiment) -> dict[str, Any]:
    """Write random bits, each with a tag that names the bits at `OFFSETS` before it, and return recipe keys."""
    settings, rng = experiment.settings, random.Random(experiment.seed)
    lines: list[str] = []
    for _ in range(settings.num_lines):
        bits = [rng.choice("ab") for _ in range(settings.length)]
        padded = ["a"] * max(OFFSETS) + bits  # before the first bit, all bits are a
        tags = ["".join(padded[i - offset] for offset in OFFSETS) for i in range(max(OFFSETS), len(padded))]
        lines += [*(f"{bit} {tag}" for bit, tag in zip(bits, tags, strict=True)), ""]
    num_valid = max(settings.num_lines // 20, 1) * (settings.length + 1)
    return {
        "data.train": experiment.write_lines("train.conll", lines[num_valid:]),
        "data.valid": experiment.write_lines("valid.conll", lines[:num_valid]),
        "data.max_length": settings.length + 2,
        "tokenizer.kind": "word",
        "tokenizer.min_frequency": 1,
        "objective.kind": "tagging",
        "train.steps": settings.steps,
        "train.batch_tokens": settings.batch_tokens,
    }


def check(table: Table) -> list[Check]:
    """Four relations need four heads; parameters and FLOPs do not change; on code the difference is small."""
    accuracy = {int(heads): value for heads, value in table.curve(ACCURACY, RELATIONS).items()}
    enough = [value for heads, value in accuracy.items() if heads >= len(OFFSETS)] or [0.0]
    sizes = {len(set(table.curve(measure, name).values())) for measure in (PARAMETERS, FLOPS) for name in TASKS}
    fewest, most = table.xs(LOSS)[0], table.xs(LOSS)[-1]
    gain, interval = table.difference(LOSS, (CODE, fewest), (CODE, most))
    return [
        Check(
            "a model with at least one head for each of the four relations learns them (accuracy above 0.95); a "
            "model with one head does not (below 0.7)",
            min(enough) > 0.95 and accuracy[1] < 0.7,
            "accuracy "
            + ", ".join(f"{value:.2f}" for value in accuracy.values())
            + f" with {list_numbers(accuracy)} heads",
        ),
        Check(
            "the number of heads changes neither parameters nor FLOPs",
            sizes == {1},
            f"{table.mean(PARAMETERS, RELATIONS, 1):,.0f} parameters, {table.mean(FLOPS, RELATIONS, 1):,.0f} FLOPs per "
            "token",
        ),
        Check(
            f"on Python code, {most} heads and one head differ little (less than 0.1 nats)",
            abs(gain) < 0.1,
            f"loss of one head − loss of {most} heads = {gain:.3f} ± {interval:.3f} nats",
        ),
    ]


def list_numbers(numbers: Iterable[int]) -> str:
    """Numbers with commas."""
    return ", ".join(str(number) for number in numbers)


def example() -> None:
    """The idea in a few lines."""
    from qkv import Config, StackConfig
    from qkv.models.tables.summary import summarise_model

    for heads in (1, 2, 4, 8):
        stack = StackConfig(vocab_size=1000, width=512, layers=6, heads=heads, ffn_width=2048)
        summary = summarise_model(Config(encoder=stack), context_length=256)
        print(f"{heads} heads of width {stack.head_dim}: {summary.total:,} parameters, {summary.flops_forward:,} FLOPs")


CLAIM = Claim(
    name="heads",
    chapter="parts",
    title="Several heads look in several places at once, at no extra cost",
    quotes=(
        Quote("What if we want to look in multiple places in the sentence at once?", "lecture"),
        Quote("Even though we compute h many attention heads, it’s not really more costly.", "lecture"),
        Quote("Limitation: one head can only capture a single type of relationship at a time.", "inside"),
    ),
    question="What do several heads of the same total width change?",
    method="Each token is a random bit. An encoder of one layer tags each token with the four bits that are 1, 3, 6 "
    "and 10 tokens before it, so it needs four tokens at once and must know which is which. We change only the number "
    "of heads. Then we do the same with a language model on Python code. Parameters and FLOPs are counted from the "
    "configs.",
    lesson="A head has one pattern, and one value matrix for all tokens that it attends to. One head can attend to "
    "four tokens, but it adds their values, so it can tell them apart only by the sizes of their weights. With a head "
    "for each relation, each one writes its token into its own part of the output. Splitting the width among heads "
    "costs nothing: h heads of width C/h have the same matrices. On text the number of heads matters less: in "
    "translation, Vaswani et al. (2017) found 0.9 BLEU between one head and eight. With several layers, a model can "
    "also look at one token after another.",
    limits="The relations are made for this test. The language model is small and its training short, so that its loss "
    "hardly depends on relations between distant tokens.",
    settings={
        "mini": HeadsSettings((1, 4), 32, 16, 40, 3, 256, code_bytes=20_000, code_layers=1, code_steps=2),
        "small": HeadsSettings(),
        "full": HeadsSettings(
            (1, 2, 4, 8, 16),
            num_lines=10_000,
            steps=1000,
            code_bytes=3_000_000,
            code_layers=4,
            code_heads=(1, 2, 4, 8, 16),
            code_steps=2000,
        ),
    },
    run=run,
    check=check,
    charts=(
        Chart(measure=ACCURACY, x="heads", log_x=True, is_fraction=True),
        Chart(measure=LOSS, x="heads", log_x=True),
    ),
    example=example,
)
