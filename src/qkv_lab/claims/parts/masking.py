"""A mask sets scores to −∞ before the softmax. A score of 0 still gets the weight e⁰, so the future leaks."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv import Config, HeadConfig, StackConfig, Tap
from qkv.blocks.attention import pattern
from qkv.models import Decoder, Network
from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.experiment import Experiment
from qkv_lab.loop import training_steps
from qkv_lab.scoring import next_token_loss
from qkv_lab.table import Point, Table

FUTURE = "weight on future tokens"
TOTAL = "sum of the weights of a query"
LOSS = "loss (nats per token)"
INFINITE, ZERO_SCORES, ZERO_WEIGHTS = "−∞ before the softmax", "0 before the softmax", "0 after the softmax"
TRAINING, GENERATING = "with the mask of its training", "with the correct mask, as in generation"
CHANCE = "chance, ln(vocabulary size)"


@dataclass(frozen=True)
class MaskingSettings:
    """Random scores: queries and heads. A small language model of random tokens: its data and its training."""

    num_queries: int = 64
    num_heads: int = 100
    vocab_size: int = 8
    length: int = 8
    width: int = 64
    steps: int = 300
    batch_size: int = 64


def run(experiment: Experiment) -> Iterator[Point]:
    """The weights of random scores under three masks; then the losses of two language models."""
    settings = experiment.settings
    scores = torch.randn(settings.num_heads, settings.num_queries, settings.num_queries)
    allowed = torch.ones_like(scores, dtype=torch.bool).tril()
    for name, mask in MASKS.items():
        weights = mask(scores, allowed)
        future = weights.masked_fill(allowed, 0.0).sum(-1).mean(0)
        for query in range(0, settings.num_queries, max(settings.num_queries // 16, 1)):
            yield Point(FUTURE, name, query, future[query].item())
            yield Point(TOTAL, name, query, weights.sum(-1).mean(0)[query].item())
    tokens = torch.randint(settings.vocab_size, (1000, settings.length + 1))
    for name, change in ((INFINITE, {}), (ZERO_SCORES, {"decoder.*.scores": unmask})):
        experiment.progress(name, 0, 1)
        network = train_on_random_tokens(settings, Tap(change=change))
        with torch.no_grad():
            yield Point(LOSS, TRAINING, name, next_token_loss(network, tokens, Tap(change=change)).item())
            yield Point(LOSS, GENERATING, name, next_token_loss(network, tokens, Tap()).item())
        yield Point(LOSS, CHANCE, name, math.log(settings.vocab_size))


def mask_scores_with_zero(scores: Tensor, allowed: Tensor) -> Tensor:
    """The mistake of the notes."""
    return pattern(scores.masked_fill(~allowed, 0.0))


def mask_scores_with_infinity(scores: Tensor, allowed: Tensor) -> Tensor:
    """The mask of the Transformer."""
    return pattern(scores.masked_fill(~allowed, float("-inf")))


def mask_weights_with_zero(scores: Tensor, allowed: Tensor) -> Tensor:
    """Weights of masked keys are set to 0, and nothing is renormalised."""
    return pattern(scores).masked_fill(~allowed, 0.0)


MASKS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    INFINITE: mask_scores_with_infinity,
    ZERO_SCORES: mask_scores_with_zero,
    ZERO_WEIGHTS: mask_weights_with_zero,
}


def unmask(scores: Tensor) -> Tensor:
    """Replace the −∞ of masked scores by 0."""
    return scores.masked_fill(scores == float("-inf"), 0.0)


def train_on_random_tokens(settings: MaskingSettings, tap: Tap) -> Network:
    """A decoder, trained to predict tokens that are independent: without future tokens, no model beats chance."""
    stack = StackConfig(
        vocab_size=settings.vocab_size,
        width=settings.width,
        layers=2,
        heads=2,
        ffn_width=4 * settings.width,
        position="learned",
        max_positions=settings.length,
    )
    network = Decoder(Config(decoder=stack, head=HeadConfig(kind="lm", outputs=settings.vocab_size)))

    def compute_loss() -> Tensor:
        tokens = torch.randint(settings.vocab_size, (settings.batch_size, settings.length + 1))
        return next_token_loss(network, tokens, tap)

    for _ in training_steps(network, compute_loss, settings.steps, lr=3e-3):
        pass
    return network


def check(table: Table) -> list[Check]:
    """Scores of 0 leak weight to the future, and a model learns to use it."""
    leaks = {name: list(table.curve(FUTURE, name).values()) for name in MASKS}
    totals = list(table.curve(TOTAL, ZERO_WEIGHTS).values())
    chance = table.mean(LOSS, CHANCE, ZERO_SCORES)
    trained, generating = (table.mean(LOSS, series, ZERO_SCORES) for series in (TRAINING, GENERATING))
    honest = table.mean(LOSS, TRAINING, INFINITE)
    return [
        Check(
            "with −∞, no weight goes to future tokens; with scores of 0, the first query puts most of its weight on "
            "them",
            max(leaks[INFINITE]) == 0 and leaks[ZERO_SCORES][0] > 0.5,
            f"weight on future tokens {max(leaks[INFINITE]):.0%} with −∞, {leaks[ZERO_SCORES][0]:.0%} with scores of 0",
        ),
        Check(
            "weights that are set to 0 after the softmax do not leak, but no longer sum to 1",
            max(leaks[ZERO_WEIGHTS]) == 0 and totals[0] < 0.5,
            f"sum {totals[0]:.2f} at the first query",
        ),
        Check(
            "with scores of 0 a model learns to predict random tokens (loss below half of chance), with −∞ it does not",
            trained < chance / 2 and abs(honest - chance) < 0.05,
            f"loss {trained:.2f} and {honest:.2f}, chance {chance:.2f}",
        ),
        Check(
            "in generation, where future tokens do not exist, that model is worse than chance",
            generating > chance,
            f"loss {generating:.2f}, chance {chance:.2f}",
        ),
    ]


def example() -> None:
    """The idea in a few lines."""
    import torch

    scores = torch.tensor([2.0, 1.0, 0.5, -1.0])  # the second of four queries: keys 2 and 3 are in its future
    future = torch.tensor([False, False, True, True])
    for value in (0.0, float("-inf")):
        weights = scores.masked_fill(future, value).softmax(dim=0)
        print(f"{value}: weights {weights.numpy().round(2)}, on the future {weights[future].sum():.2f}")


CLAIM = Claim(
    name="masking",
    chapter="parts",
    title="A mask sets scores to −∞ before the softmax, not to zero",
    quotes=(
        Quote("we mask out attention to the future words by setting attention scores to zero.", "lecture", "wrong"),
        Quote("before softmax, set invalid entries to –∞ → they become zero after softmax", "inside"),
    ),
    question="How much weight do masked tokens get if their scores are set to zero, and does it matter?",
    method="Scores are standard normal. We mask the future in three ways and add up the weights on future tokens, by "
    "the position of the query (the last position has no future). Then we train a decoder on independent random "
    "tokens, so that no model without access to the future can beat chance, once with each mask on the scores. We "
    "measure its loss on new random tokens, with the mask of its training and with the correct mask.",
    lesson="The softmax gives a score of 0 the weight e⁰ = 1, as much as a key with an average score. Only e^−∞ is "
    "0. Under a score of 0, a model reads the sum of all future tokens. It cannot choose one of them, but the sum is "
    "enough to find the next token. Training then reports a loss that means nothing. The formula below the quoted "
    "sentence in the notes has the correct −∞. Weights can also be set to zero after the softmax, if they are then "
    "divided by their sum; this gives the same weights as −∞.",
    limits="An untrained model has such random scores; a trained one does not. The language model is small and its "
    "sequences are short. The last token of a sequence has no future token to read, so its loss stays at chance, and "
    "the mean loss cannot fall below chance divided by the length.",
    settings={
        "mini": MaskingSettings(num_queries=16, num_heads=20, width=16, steps=5, batch_size=16),
        "small": MaskingSettings(),
        "full": MaskingSettings(num_queries=256, vocab_size=32, length=16, width=128, steps=2000),
    },
    run=run,
    check=check,
    charts=(
        Chart(measure=FUTURE, x="position of the query", is_fraction=True),
        Chart(measure=TOTAL, x="position of the query", is_fraction=True),
        Chart(measure=LOSS, x="mask", title="loss on random tokens (nats per token)"),
    ),
    example=example,
    is_deterministic=True,
)
