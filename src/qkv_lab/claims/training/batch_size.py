"""A larger batch needs fewer steps, with diminishing returns: above the critical batch size, only more tokens."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from qkv.data import Loader
from qkv.tasks.prepare.prepare import prepare
from qkv.train.loss.training_module import TrainingModule
from qkv.train.optim.optimizers import make_optimizer
from qkv.train.parallel.world import World
from qkv.train.step import Stepper
from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.experiment import Experiment
from qkv_lab.gradients import validation_loss
from qkv_lab.markov import write_markov_chain
from qkv_lab.table import Point, Table

STEPS = "steps to the target loss"
TOKENS = "tokens to the target loss"
RATE = "best learning rate"
WARMUP_STEPS = 10


@dataclass(frozen=True)
class BatchSizeSettings:
    """Batch sizes in tokens, learning rates to choose from, and the loss to reach."""

    batch_tokens: tuple[int, ...] = (128, 256, 512, 1024, 2048, 4096, 8192)
    learning_rates: tuple[float, ...] = (1e-2, 3e-2, 3e-3)  # a run ends when it is slower than the best so far
    target: float = 1.0  # nats; the chain's own entropy is about 0.8
    num_walks: int = 6000
    max_steps: int = 1000


def run(experiment: Experiment) -> Iterator[Point]:
    """Steps and tokens to the target loss by batch size, each with its best learning rate."""
    settings = experiment.settings
    keys = {
        **write_markov_chain(experiment, settings.num_walks, num_tokens=32),
        "model.width": 32,
        "model.layers": 1,
        "model.dropout": 0.0,
        "train.steps": settings.max_steps,
    }
    for batch_tokens in settings.batch_tokens:
        steps, best_rate = settings.max_steps, settings.learning_rates[0]
        for lr in settings.learning_rates:
            needed = count_steps(experiment, {**keys, "train.batch_tokens": batch_tokens, "train.lr": lr}, steps)
            if needed < steps:
                steps, best_rate = needed, lr
        yield Point(STEPS, "measured", batch_tokens, steps)
        yield Point(TOKENS, "measured", batch_tokens, steps * batch_tokens)
        yield Point(RATE, "best of the grid", batch_tokens, best_rate)


def count_steps(experiment: Experiment, keys: dict[str, Any], max_steps: int) -> int:
    """The number of steps until the validation loss is at the target, at a constant learning rate after warm-up."""
    prepared = prepare(experiment.recipe("run", keys))
    validated = prepare(experiment.recipe("run", {**keys, "train.batch_tokens": 2048}))
    section = replace(prepared.recipe.train, precision="float32")
    module = TrainingModule(prepared.build_network(), prepared.recipe.objective)
    stepper = Stepper(module, make_optimizer(module.network.named_parameters(), section), section, World())
    next_evaluation = 10
    for step, batch in enumerate(islice(Loader(prepared.train_data), max_steps), start=1):
        stepper(batch, step, section.lr * min(1.0, step / WARMUP_STEPS))
        if step >= next_evaluation:
            if validation_loss(module, validated) <= experiment.settings.target:
                return step
            next_evaluation += max(2, step // 20)
    return max_steps


def fit_critical_batch(table: Table) -> tuple[float, float]:
    """S_min and B_crit of S(B) = S_min · (1 + B_crit/B), by least squares of the relative errors."""
    curve = table.curve(STEPS, "measured")
    sizes, steps = np.array(list(curve), float), np.array(list(curve.values()))
    terms = np.stack([1 / steps, 1 / (sizes * steps)], axis=1)
    constant, slope = np.linalg.lstsq(terms, np.ones_like(steps), rcond=None)[0]
    return float(constant), float(slope / constant)


def check(table: Table) -> list[Check]:
    """Nearly half the steps at first, hardly fewer at the end, on a hyperbola; tokens and learning rate grow."""
    sizes = [int(size) for size in table.xs(STEPS)]
    steps = [table.mean(STEPS, "measured", size) for size in sizes]
    first, last = 1 - steps[1] / steps[0], 1 - steps[-1] / steps[-2]
    tokens = table.mean(TOKENS, "measured", sizes[-1]) / table.mean(TOKENS, "measured", sizes[0])
    least, critical = fit_critical_batch(table)
    worst = max(abs(least * (1 + critical / size) / found - 1) for size, found in zip(sizes, steps, strict=True))
    rates = [table.mean(RATE, "best of the grid", size) for size in sizes]
    return [
        Check(
            "the first doubling of the batch saves at least 30 % of the steps, the last one at most 15 %",
            first >= 0.3 and last <= 0.15,
            f"{first:.0%} and {last:.0%}",
        ),
        Check(
            "the largest batch needs at least four times the tokens of the smallest",
            tokens >= 4,
            f"{tokens:.1f} times",
        ),
        Check(
            "the steps follow S_min·(1 + B_crit/B) within 30 %",
            worst <= 0.3,
            f"within {worst:.0%}, with B_crit = {critical:,.0f} tokens and S_min = {least:.0f} steps",
        ),
        Check(
            "the best learning rate is higher for the largest batch than for the smallest",
            rates[-1] > rates[0],
            f"{rates[0]:.3f} → {rates[-1]:.3f}",
        ),
    ]


def example() -> None:
    """The idea in a few lines."""
    import torch

    torch.manual_seed(0)
    gradient, noise = torch.ones(10), 5.0  # the true gradient, and the noise of one example's gradient
    for batch_size in (1, 4, 16, 64, 256, 1024):
        estimates = gradient + noise * torch.randn(2000, batch_size, 10).mean(dim=1)
        similarity = torch.cosine_similarity(estimates, gradient[None]).mean()
        print(f"batch of {batch_size}: cosine with the true gradient {similarity:.2f}")


CLAIM = Claim(
    name="batch-size",
    chapter="training",
    title="Larger batches save steps, up to the critical batch size",
    quotes=(Quote("Enables larger effective batch sizes with less memory.", "inside", "of gradient accumulation"),),
    question="How many steps and how many tokens does a target loss take, by batch size?",
    method="A small decoder learns a random Markov chain until its validation loss reaches a target. The learning "
    "rate is constant after a short warm-up, and the best of a grid for each batch size. We fit the law of McCandlish "
    "et al. (2018), S = S_min·(1 + B_crit/B).",
    lesson="The gradient of a batch is the true gradient plus noise, whose variance falls as 1/B. While noise "
    "dominates, a batch of twice the size allows a step of twice the effect: half the steps, the same tokens, and a "
    "higher learning rate. Once the gradient is nearly exact, a larger batch computes the same step at a higher "
    "price. The critical batch size lies between: there, training takes twice the minimum of steps and twice the "
    "minimum of tokens. A larger batch is worth its tokens only if it runs in parallel. Gradient accumulation runs it "
    "one part after another: it saves memory and no time.",
    limits="The critical batch size belongs to the task and to the target: it grows as the loss falls. Large "
    "language models have critical batch sizes of millions of tokens. The law was derived for SGD; Adam follows it "
    "roughly.",
    settings={
        "mini": BatchSizeSettings((128, 1024), (1e-2,), num_walks=400, max_steps=12),
        "small": BatchSizeSettings(),
        "full": BatchSizeSettings(
            (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
            (1e-3, 3e-3, 5e-3, 1e-2, 2e-2, 3e-2),
            target=0.9,
            num_walks=20_000,
            max_steps=5000,
        ),
    },
    run=run,
    check=check,
    charts=(
        Chart(measure=STEPS, x="batch size (tokens)", log_x=True, log_y=True),
        Chart(measure=TOKENS, x="batch size (tokens)", log_x=True, log_y=True),
        Chart(measure=RATE, x="batch size (tokens)", log_x=True, log_y=True),
    ),
    example=example,
)
