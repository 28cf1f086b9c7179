"""Post-norm fails to learn at high learning rates unless they warm up; pre-norm learns without warm-up."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy

from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.decoders import BARE_ADAM, build_decoder, decoder_keys
from qkv_lab.experiment import Experiment
from qkv_lab.markov import MAX_LEARNED_LOSS, NUM_STATES, write_markov_chain
from qkv_lab.table import Point, Table

LOSS = "validation loss (nats per token)"
FAILED = "fraction of runs that fail"
FIRST_STEP = "relative change of the output by the first step"
PLACEMENTS = {"pre-norm": "pre", "post-norm": "post"}
WARM, COLD = "warm-up", "no warm-up"


@dataclass(frozen=True)
class WarmUpSettings:
    """Short training runs at several peak learning rates."""

    lrs: tuple[float, ...] = (0.002, 0.004, 0.008, 0.016)
    warmup: float = 0.3  # the fraction of the run
    layers: int = 6
    width: int = 32
    num_tokens: int = 30
    num_walks: int = 2000
    steps: int = 100
    batch_tokens: int = 512


def run(experiment: Experiment) -> Iterator[Point]:
    """Train pre-norm and post-norm decoders with and without warm-up, and measure their first step."""
    settings = experiment.settings
    data = write_markov_chain(experiment, settings.num_walks, settings.num_tokens)
    training = {**BARE_ADAM, "train.steps": settings.steps, "train.batch_tokens": settings.batch_tokens}
    for norm, placement in PLACEMENTS.items():
        model = decoder_keys(settings.layers, settings.width, {"norm_placement": placement})
        for schedule, warmup in ((COLD, 0.0), (WARM, settings.warmup)):
            name, failures = f"{norm}, {schedule}", 0
            for lr in settings.lrs:
                keys = {**data, **model, **training, "train.lr": lr, "train.warmup": warmup}
                loss = experiment.train(f"{name}, lr {lr}", keys).run_end.metrics["loss"]
                failures += not loss < MAX_LEARNED_LOSS
                yield Point(LOSS, name, lr, loss)
            yield Point(FAILED, "all learning rates", name, failures / len(settings.lrs))
        for lr in settings.lrs:
            yield Point(FIRST_STEP, norm, lr, first_step_change(settings, placement, lr))


def first_step_change(settings: WarmUpSettings, placement: str, lr: float) -> float:
    """‖h′ − h‖ / ‖h‖, where h and h′ are the outputs of a new decoder before and after one step of Adam."""
    network = build_decoder(settings.layers, settings.width, NUM_STATES, norm_placement=placement)
    ids = torch.randint(NUM_STATES, (16, settings.num_tokens + 1))
    inputs, labels = ids[:, :-1], ids[:, 1:]
    before = network.hidden(inputs)[0].detach()
    optimizer = torch.optim.Adam(network.parameters(), lr=lr)
    cross_entropy(network(inputs).flatten(0, 1), labels.flatten()).backward()
    optimizer.step()
    after = network.hidden(inputs)[0].detach()
    return float((after - before).norm() / before.norm())


def check(table: Table) -> list[Check]:
    """Only post-norm without warm-up fails."""
    failed = table.curve(FAILED, "all learning rates")
    best = {name: min(table.curve(LOSS, name).values()) for name in table.series(LOSS)}
    cold, warm = (f"post-norm, {schedule}" for schedule in (COLD, WARM))
    gain = best[f"pre-norm, {COLD}"] - best[f"pre-norm, {WARM}"]
    low = table.xs(FIRST_STEP)[0]
    pre, post = (table.mean(FIRST_STEP, norm, low) for norm in PLACEMENTS)
    return [
        Check(
            "without warm-up, post-norm fails in at least a quarter of the runs; warm-up at least halves the number of "
            "failures",
            failed[cold] >= 0.25 and failed[warm] <= failed[cold] / 2,
            f"{failed[cold]:.0%} of the runs fail without warm-up, {failed[warm]:.0%} with it",
        ),
        Check(
            "pre-norm needs no warm-up: no run fails, and its best loss improves by less than 0.05 nats with it",
            failed[f"pre-norm, {COLD}"] == 0 and gain < 0.05,
            f"{failed[f'pre-norm, {COLD}']:.0%} fail; warm-up improves the best loss by {gain:.3f}",
        ),
        Check(
            "with warm-up, post-norm reaches the loss of pre-norm (within 0.1 nats, at the best learning rate)",
            best[warm] - best[f"pre-norm, {WARM}"] < 0.1,
            f"{best[warm]:.2f} against {best[f'pre-norm, {WARM}']:.2f} nats",
        ),
        Check(
            f"the first step (learning rate {low:g}) changes post-norm's output more (by a factor of 1.5)",
            post > 1.5 * pre,
            f"{post:.2f} against {pre:.2f}",
        ),
    ]


def example() -> None:
    """The idea in a few lines."""
    import torch

    from qkv_lab.decoders import build_decoder

    ids = torch.randint(50, (8, 33))
    for placement in ("pre", "post"):
        network = build_decoder(layers=12, width=32, vocab_size=50, norm_placement=placement)
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
        before = network.hidden(ids[:, :-1])[0]
        logits = network(ids[:, :-1])
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimizer.step()
        change = (network.hidden(ids[:, :-1])[0] - before).norm() / before.norm()
        print(f"{placement}-norm: one step of Adam changes the output by {change:.0%}")


CLAIM = Claim(
    name="warm-up",
    chapter="training",
    title="Post-norm needs warm-up, pre-norm does not",
    quotes=(
        Quote("Requires learning rate warm up", "mechanism", "of post-norm"),
        Quote("No need for learning rate warmup", "mechanism", "of pre-norm"),
    ),
    question="Which learning rates can a model be trained with, pre-norm and post-norm, with and without warm-up?",
    method="Decoders learn a Markov chain with Adam, a cosine schedule and no gradient clipping. Warm-up raises the "
    "learning rate linearly over the first 30 % of the steps. A run fails if its loss stays above "
    f"{MAX_LEARNED_LOSS:g} nats: it has learned little more than the frequencies of the tokens. We also measure how "
    "far one step of Adam moves the output of a new decoder.",
    lesson="Adam's first step changes every weight by the learning rate, whatever the size of its gradient. With "
    "pre-norm, the residual stream grows with depth, and each layer changes only a small part of it. Post-norm "
    "normalises the stream, so each layer has a larger weight in it, and the same step moves the output further (Liu "
    "et al., 2020). After too large a first step, the model predicts the same distribution for every token, and it "
    "does not recover. Warm-up makes the first steps small; later, the same learning rate does no harm. A learning "
    "rate that is low throughout also works, but trains more slowly.",
    limits="Six layers on a synthetic language; we chose a depth and learning rates at which the effect shows. The "
    "learning rates at which post-norm fails depend on depth and width. Warm-up does not always help: in trials with "
    "16 layers and 100 steps, post-norm failed with it, too, at all three learning rates that we tried. Large pre-norm "
    "models are trained with warm-up as well; at their size it makes training more stable.",
    settings={
        "mini": WarmUpSettings((0.002, 0.016), layers=2, num_walks=100, steps=2),
        "small": WarmUpSettings(),
        "full": WarmUpSettings((0.0005, 0.001, 0.002, 0.004, 0.008), layers=12, width=64, num_walks=8000, steps=200),
    },
    run=run,
    check=check,
    charts=(
        Chart(measure=LOSS, x="peak learning rate", log_x=True, integer_x=False),
        Chart(measure=FIRST_STEP, x="learning rate", log_x=True, integer_x=False),
    ),
    example=example,
)
