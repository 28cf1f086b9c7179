"""The most probable text repeats itself. Sampled text has the entropy of the model, which filters cut down."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

import qkv
from qkv.decode import GenerationOptions
from qkv.decode.filters import make_filters
from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.corpus import BYTE_MODEL, read_passages, write_corpus
from qkv_lab.experiment import Experiment
from qkv_lab.table import Point, Table

LOSS = "loss of the text under the model (nats per byte)"
REPEATED = "repeated 16-grams of bytes (fraction)"
ENTROPY = "entropy of the next token (nats)"
KEPT = "tokens that can be chosen"
TEXT, GREEDY, PLAIN, TOP_K, TOP_P = "held-out text", "greedy", "temperature 1", "top-k 10", "top-p 0.9"
SURE, UNSURE = "where the model is sure", "where it is not"
STRATEGIES: dict[str, dict[str, Any]] = {
    GREEDY: {},
    "temperature 0.5": {"temperature": 0.5},
    "temperature 0.7": {"temperature": 0.7},
    PLAIN: {"temperature": 1.0},
    "temperature 1.5": {"temperature": 1.5},
    TOP_K: {"temperature": 1.0, "top_k": 10},
    TOP_P: {"temperature": 1.0, "top_p": 0.9},
}
NGRAM = 16  # bytes: two or three words


@dataclass(frozen=True)
class SamplingSettings:
    """A language model of the standard library's sources, and texts that continue prompts of held-out files."""

    steps: int = 500
    width: int = 64
    train_bytes: int = 1_000_000
    num_texts: int = 40
    prompt_tokens: int = 56
    new_tokens: int = 200


def run(experiment: Experiment) -> Iterator[Point]:
    """Train a model, and compare texts of each strategy with the text that follows the prompts."""
    settings = experiment.settings
    keys = {
        **BYTE_MODEL,
        **write_corpus(experiment, settings.train_bytes, 100_000),
        "model.width": settings.width,
        "data.max_length": 256,
        "train.batch_tokens": 2048,
        "train.steps": settings.steps,
    }
    trained = experiment.train("language model", keys)
    model = qkv.Model(trained.config, trained.network.eval(), trained.tokenizer)
    length = settings.prompt_tokens + settings.new_tokens
    passages = read_passages(keys["data.valid"], trained.tokenizer, settings.num_texts, length)
    prompts = [passage[: settings.prompt_tokens] for passage in passages]
    yield from describe_texts(model, TEXT, prompts, [passage[settings.prompt_tokens :] for passage in passages])
    size = {"max_tokens": settings.new_tokens, "min_tokens": settings.new_tokens}
    for name, options in STRATEGIES.items():
        results = model.generate(prompts, **size, **options)
        yield from describe_texts(model, name, prompts, [result.ids for result in results])
    logits = model.logits(passages).flatten(0, 1)  # (N, V)
    for name, options in STRATEGIES.items():
        yield from describe_distribution(name, logits, options)


def describe_texts(
    model: qkv.Model, name: str, prompts: Sequence[Sequence[int]], texts: Sequence[Sequence[int]]
) -> Iterator[Point]:
    """The loss of texts under the model, and how much they repeat."""
    scores = model.score(prompts, texts)
    yield Point(LOSS, "text", name, -fmean(token.logprob for scored in scores for token in scored))
    yield Point(REPEATED, "text", name, fmean(repeated_fraction(text) for text in texts))


def repeated_fraction(ids: Sequence[int], n: int = NGRAM) -> float:
    """The fraction of the n-grams of a text that have occurred before in it.

    >>> repeated_fraction([1, 2, 3, 4, 1, 2, 3, 4], n=4)
    0.2
    """
    ngrams = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
    return 1 - len(set(ngrams)) / len(ngrams)


def describe_distribution(name: str, logits: Tensor, options: dict[str, Any]) -> Iterator[Point]:
    """The distribution of the next token after the filters of a strategy: its entropy, and how many tokens it has."""
    model_entropy = entropy(logits)
    if name == GREEDY:
        filtered = torch.full_like(logits, float("-inf")).scatter(1, logits.argmax(dim=1, keepdim=True), 0.0)
    else:
        filtered = logits
        for apply in make_filters(GenerationOptions(**options), (), 0):
            filtered = apply(filtered, filtered)
    yield Point(ENTROPY, "next token", name, entropy(filtered).mean().item())
    kept = (filtered > float("-inf")).sum(dim=1).float()
    low, high = model_entropy.quantile(torch.tensor([0.25, 0.75]))
    for group, chosen in ((SURE, model_entropy <= low), (UNSURE, model_entropy >= high)):
        yield Point(KEPT, group, name, kept[chosen].mean().item())


def entropy(logits: Tensor) -> Tensor:
    """The entropy of each distribution, (N, V) → (N,), in nats."""
    distribution = logits.softmax(dim=1)
    return -(distribution * distribution.clamp(min=1e-30).log()).sum(dim=1)


def check(table: Table) -> list[Check]:
    """Greedy text is too probable and repeats itself; text sampled at temperature 1 is like held-out text."""
    loss, repeated, kept = table.curve(LOSS, "text"), table.curve(REPEATED, "text"), table.curve(KEPT, UNSURE)
    sure = table.curve(KEPT, SURE)
    entropies = table.curve(ENTROPY, "next token")
    by_temperature = [entropies[name] for name in STRATEGIES if name.startswith("temperature")]
    growth = {name: kept[name] / sure[name] for name in (TOP_K, TOP_P)}
    return [
        Check(
            "greedy text is more probable than held-out text, and repeats at least twice as much of itself",
            loss[GREEDY] < loss[TEXT] and repeated[GREEDY] >= 2 * repeated[TEXT],
            f"{loss[GREEDY]:.2f} against {loss[TEXT]:.2f} nats; {repeated[GREEDY]:.0%} against {repeated[TEXT]:.0%} "
            "of its 16-grams",
        ),
        Check(
            "text sampled at temperature 1 is as probable as held-out text (within 15 %), and repeats no more",
            abs(loss[PLAIN] / loss[TEXT] - 1) <= 0.15 and repeated[PLAIN] <= 1.1 * repeated[TEXT],
            f"{loss[PLAIN]:.2f} against {loss[TEXT]:.2f} nats; {repeated[PLAIN]:.0%} against {repeated[TEXT]:.0%}",
        ),
        Check(
            "entropy grows with the temperature; top-k and top-p lower it",
            by_temperature == sorted(by_temperature) and max(entropies[TOP_K], entropies[TOP_P]) < entropies[PLAIN],
            f"{', '.join(f'{value:.2f}' for value in by_temperature)}; {entropies[TOP_K]:.2f} and "
            f"{entropies[TOP_P]:.2f} nats",
        ),
        Check(
            "where the model is not sure, top-p keeps at least 4 times more tokens; top-k keeps the same number",
            growth[TOP_P] >= 4 and abs(growth[TOP_K] - 1) < 0.05,
            f"top-p {growth[TOP_P]:.0f} times, top-k {growth[TOP_K]:.1f} times",
        ),
    ]


def example() -> None:
    """The idea in a few lines."""
    import torch

    from qkv.decode.filters import temperature, top_k, top_p

    logits = torch.tensor([[4.0, 3.0, 2.0, 1.0, 0.0, -1.0]])
    filters = {"temperature 0.5": temperature(0.5), "temperature 1": temperature(1.0), "temperature 2": temperature(2)}
    filters |= {"top-k 2": top_k(2), "top-p 0.9": top_p(0.9)}
    for name, apply in filters.items():
        probabilities = apply(logits, logits).softmax(dim=1)
        entropy = torch.special.entr(probabilities).sum()
        print(f"{name:16}", [f"{p:.3f}" for p in probabilities[0].tolist()], f"entropy {entropy:.2f} nats")


CLAIM = Claim(
    name="sampling",
    chapter="running",
    title="The most probable text repeats itself; sampling does not",
    quotes=(
        Quote("At the end of decoder to transform into probabilities to choose words (in LMs) to output.", "mechanism"),
        Quote("**Greedy:** At each timestep, take output token having max prob. (not a good idea)", "video"),
    ),
    question="What do temperature, top-k and top-p change in a text, compared with text that people wrote?",
    method="A small language model, whose tokens are bytes, is trained on the sources of Python's standard library. It "
    "continues prompts from held-out files with each strategy. We measure how probable the texts are under the model "
    "itself, and how many of their 16-grams have occurred before in the same text. On held-out text, we compute "
    "exactly what the filters do to the distribution of the next token: its entropy, and the number of tokens left. "
    "The model is called sure in the quarter of the positions with the lowest entropy, and not sure in the quarter "
    "with the highest.",
    lesson="Each token of a written text has some surprise. Greedy decoding never takes it, so its text is far more "
    "probable than written text; a phrase that has occurred makes itself more probable, and the text falls into a "
    "loop. Sampling at temperature 1 has the right probability, but the many improbable tokens together are chosen "
    "often, and one of them can spoil a text. A lower temperature, top-k and top-p remove this tail. Top-k always "
    "keeps k tokens. Top-p keeps few where the model is sure, and many where it is not.",
    limits="The model is small and its text makes little sense, so nothing here measures quality. Loops become rarer "
    "with larger models, but greedy decoding of an open-ended text still causes them.",
    settings={
        "mini": SamplingSettings(5, width=32, train_bytes=10_000, num_texts=2, new_tokens=32),
        "small": SamplingSettings(),
        "full": SamplingSettings(3000, num_texts=100),
    },
    run=run,
    check=check,
    charts=(
        Chart(measure=LOSS, x="how tokens are chosen"),
        Chart(measure=REPEATED, x="how tokens are chosen"),
        Chart(measure=ENTROPY, x="how tokens are chosen"),
        Chart(measure=KEPT, x="how tokens are chosen", log_y=True),
    ),
    example=example,
)
