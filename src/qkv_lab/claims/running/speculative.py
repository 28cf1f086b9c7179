"""Speculative decoding gives the same tokens with fewer passes of the large model. A better draft saves more."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from qkv.decode import Draft, DraftModel, GenerationOptions, PromptLookup, SpeculativeResult, generate
from qkv.models import Network
from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.corpus import BYTE_MODEL, read_passages, write_corpus
from qkv_lab.experiment import Experiment
from qkv_lab.table import Point, Table

PASSES = "passes of the large model for each token"
ACCEPTED = "proposed tokens that are accepted (fraction)"
READ = "weights read for each token (1: without a draft)"
SAME = "tokens that are the same as without a draft (fraction)"
LOOKUP, ITSELF = "prompt look-up", "the large model itself"
OPTIONS = GenerationOptions(max_tokens=90, min_tokens=90, no_repeat_ngram_size=8)
"""Greedy decoding without loops, which every draft would predict."""


@dataclass(frozen=True)
class SpeculativeSettings:
    """A large and a small language model, and drafts of the small one after some of its training."""

    width: int = 64
    layers: int = 2
    steps: int = 400
    draft_steps: tuple[int, ...] = (20, 100, 400)
    num_draft_tokens: tuple[int, ...] = (1, 2, 4, 8)
    num_prompts: int = 16
    train_bytes: int = 500_000


def run(experiment: Experiment) -> Iterator[Point]:
    """Train the models, and generate from held-out prompts with each draft."""
    settings = experiment.settings
    keys = {**BYTE_MODEL, **write_corpus(experiment, settings.train_bytes, 50_000), "data.max_length": 128}
    large_keys = {"model.width": settings.width, "model.layers": settings.layers, "train.batch_tokens": 2048}
    trained = experiment.train("large", {**keys, **large_keys, "train.steps": settings.steps})
    large = trained.network.double()  # rounding is too small to change a token
    prompts = read_passages(keys["data.valid"], trained.tokenizer, settings.num_prompts, 64)
    plain = [result.ids for result in decode(large, prompts)]
    drafts: dict[str, Network | None] = {LOOKUP: None}
    for steps in settings.draft_steps:
        small = {"model.width": settings.width // 2, "model.layers": 1, "train.steps": steps}
        drafts[f"small model, {steps} steps"] = experiment.train(f"small {steps}", {**keys, **small}).network.double()
    drafts[ITSELF] = large
    for name, network in drafts.items():
        for count in settings.num_draft_tokens:
            draft = PromptLookup(num_draft_tokens=count) if network is None else DraftModel(network, count)
            yield from compare(name, count, decode(large, prompts, draft), plain, size_ratio(network, large))


def decode(network: Network, prompts: Sequence[Sequence[int]], draft: Draft | None = None) -> list[Any]:
    """Continue prompts greedily."""
    return generate(network, prompts, OPTIONS, draft=draft)


def size_ratio(network: Network | None, large: Network) -> float:
    """The number of a draft's weights, as a fraction of the large model's."""
    return 0.0 if network is None else count_weights(network) / count_weights(large)


def count_weights(network: Network) -> int:
    """The number of weights that a forward pass reads, with the tables of positions."""
    return sum(tensor.numel() for tensor in (*network.parameters(), *network.buffers()))


def compare(
    name: str, count: int, results: list[SpeculativeResult], plain: list[list[int]], ratio: float
) -> Iterator[Point]:
    """Passes, accepted tokens, weights read and equal tokens of results with a draft that proposes `count` tokens."""
    num_tokens = sum(map(len, plain))
    passes = sum(result.num_forward_passes for result in results) / num_tokens
    proposed = sum(result.num_proposed for result in results)
    yield Point(PASSES, name, count, passes)
    yield Point(ACCEPTED, name, count, sum(result.num_accepted for result in results) / max(proposed, 1))
    yield Point(READ, name, count, passes + ratio * proposed / num_tokens)
    pairs = zip(chain(*(result.ids for result in results)), chain(*plain), strict=True)
    yield Point(SAME, name, count, sum(a == b for a, b in pairs) / num_tokens)


def check(table: Table) -> list[Check]:
    """The tokens are the same; a better draft needs fewer passes."""
    drafts = [name for name in table.series(PASSES) if name.startswith("small")]
    counts = [int(count) for count in table.xs(PASSES)]
    same = min(min(table.curve(SAME, name).values()) for name in table.series(SAME))
    passes = [table.mean(PASSES, name, 4) for name in drafts]
    itself = table.curve(PASSES, ITSELF)
    read = table.curve(READ, drafts[-1])
    best = min(read, key=lambda count: read[count])
    return [
        Check(
            "with every draft, all tokens are the same as without one, and a draft that is trained longer needs fewer "
            "passes",
            same == 1.0 and passes == sorted(passes, reverse=True) and passes[-1] < 1,
            f"{same:.0%} of the tokens; {', '.join(f'{value:.2f}' for value in passes)} passes for each token with 4 "
            "proposed tokens",
        ),
        Check(
            "the best possible draft, the model itself, needs 1 / (n + 1) passes with n proposed tokens (within 5 %)",
            all(abs(itself[n] * (n + 1) - 1) <= 0.05 for n in counts),
            ", ".join(f"{itself[n]:.3f} with {n}" for n in counts),
        ),
        Check(
            f"{drafts[-1]}: reading fewer weights than without a draft, with a best number of proposed tokens",
            read[best] < 1 and best != counts[0],
            f"{read[best]:.2f} with {best} proposed tokens, {read[counts[-1]]:.2f} with {counts[-1]}",
        ),
    ]


def example() -> None:
    """The idea in a few lines."""
    import qkv

    translator = qkv.load("en-fr")
    text = "The cat chased the mouse."
    plain = translator.generate(text)
    for name, draft in (("a draft of the same quality", translator), ("prompt look-up", "lookup")):
        result = translator.generate(text, draft=draft)
        passes, tokens = result.num_forward_passes, len(result.ids) + 1  # type: ignore[attr-defined]
        print(f"{name}: {passes} passes for {tokens} tokens, same text: {result.text == plain.text}")


CLAIM = Claim(
    name="speculative",
    chapter="running",
    title="Speculative decoding gives the same tokens with fewer passes",
    quotes=(Quote("generation is gonna happen one token at a time", "video", "not necessarily"),),
    question="How many passes of a large model does each token need if a small model proposes tokens?",
    method="A language model of bytes is trained on the sources of Python's standard library, and a smaller one for "
    "different numbers of steps. The large model continues held-out text greedily; an 8-gram must not repeat, because "
    "every draft would predict a loop. A draft proposes n tokens, and one "
    "pass of the large model verifies them all. We count the passes, and the weights that are read, because reading "
    "weights takes most of the time of a pass with few tokens.",
    lesson="A pass over several tokens computes the large model's choice after each of them, so it can check all "
    "proposals at once, like the tokens of a training text. Proposals are kept up to the first that differs from the "
    "large model's own choice, which replaces it. So each pass yields at least one token, and the text cannot change. "
    "The draft decides only how many tokens a pass yields. More proposals help as long as they are accepted: each "
    "costs a pass of the draft.",
    limits="Both models are small, and source code is easy to predict. A pass over many tokens or many sequences is "
    "limited by arithmetic rather than by reading weights; then a draft saves nothing.",
    settings={
        "mini": SpeculativeSettings(32, 1, 3, (2,), (1, 4), num_prompts=1, train_bytes=10_000),
        "small": SpeculativeSettings(),
        "full": SpeculativeSettings(192, 4, 4000, (10, 100, 1000, 4000), (1, 2, 4, 8, 17), 40, train_bytes=5_000_000),
    },
    run=run,
    check=check,
    charts=(
        Chart(measure=PASSES, x="proposed tokens n", log_x=True),
        Chart(measure=ACCEPTED, x="proposed tokens n", log_x=True),
        Chart(measure=READ, x="proposed tokens n", log_x=True),
    ),
    example=example,
)
