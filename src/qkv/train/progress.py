"""The progress and the budget of a run, and the decision whether an evaluation is due.

Each checkpoint stores the progress as JSON.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from qkv.data.stream.sequences import FIRST_CURSOR, SequenceStream, StreamCursor
from qkv.errors import QkvError
from qkv.train.recipe.schema import TrainSection

DEFAULT_EVALUATIONS = 10
"""The number of evaluations in a run with `train.eval_every = 0`."""


@dataclass(frozen=True)
class EvalPlan:
    """How much data the evaluations of a run use. The first evaluation decides this, by its measured speed."""

    loss_pieces: int = 0  # the pieces of validation batches that the loss uses; 0: all
    metric_examples: int = 0  # the examples that the task's metrics use; 0: all
    stride: int = 1  # 3: every third scheduled evaluation is done, the others are skipped


@dataclass
class Progress:
    """The progress of a run."""

    compiled: bool = False  # the steps run compiled code (see `qkv.train.compile`)
    precision: str = "float32"  # the dtype of the products (see `qkv.train.precision`)
    step: int = 0
    tokens: int = 0  # tokens of all ranks, without padding
    seconds: float = 0.0
    cpu_seconds: float = 0.0  # that the threads of all ranks have computed
    start_fraction: float = 0.0  # the fraction of the budget that was spent before the first step, by fitting a head
    loss_sum: float = 0.0  # the sum of the losses since the last report
    loss_steps: int = 0  # the number of steps in that sum
    skipped_steps: int = 0  # steps skipped because the loss or gradient was not finite
    pending_eval: bool = False  # an evaluation was due at this step, but a signal or the run's end came first
    metric: str = ""  # the metric that selects the best step
    best_value: float | None = None
    best_loss: float | None = None  # the loss of the best step, to break ties of the metric
    best_step: int = 0
    evals_since_best: int = 0  # the number of evaluations since the best step
    scheduled_evals: int = 0  # the number of evaluations that were scheduled, done or not
    eval_plan: EvalPlan | None = None  # None before the first evaluation

    def scheduled_fraction(self, fraction_done: float) -> float:
        """Return how much of the learning rate's schedule is done: it begins with the first step.

        >>> Progress(start_fraction=0.25).scheduled_fraction(0.625)
        0.5
        """
        return max(0.0, fraction_done - self.start_fraction) / max(1.0 - self.start_fraction, 1e-9)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Progress":
        """Make a `Progress` from the JSON values of a checkpoint; `asdict` is the inverse."""
        known = {field.name for field in fields(cls)}
        if set(values) != known:
            raise QkvError(
                f"the checkpoint was written by another version of qkv: its progress has the fields {sorted(values)}, "
                f"but this version expects {sorted(known)}; resume the run with the version that started it"
            )
        plan = values["eval_plan"]
        return cls(**{**values, "eval_plan": None if plan is None else EvalPlan(**plan)})


@dataclass(frozen=True)
class Budget:
    """The limits of a run. The run ends when it reaches the first of them."""

    steps: int
    seconds: float
    cpu_seconds: float
    num_pools: int  # the limit in epochs, as a number of pools (`qkv.data` shuffles the data pool by pool); 0: no limit
    pool_size: Callable[[int], int]  # the number of items in a pool; an item is a sequence or a group of them
    pools_in_epoch: int = 0  # 0 for a mixture, which has no common epochs

    @classmethod
    def from_section(cls, section: TrainSection, data: SequenceStream) -> "Budget":
        """Make the budget of a recipe."""
        num_pools = data.order.num_pools(section.epochs) if section.epochs else 0
        pool_size = lru_cache(1)(lambda pool: len(data.plan_pool(pool).item_order))
        pools_in_epoch = data.order.num_pools(1) if len(data.objectives) == 1 else 0
        seconds, cpu_seconds = section.minutes * 60, section.cpu_minutes * 60
        return cls(section.steps, seconds, cpu_seconds, num_pools, pool_size, pools_in_epoch)

    def fraction_done(
        self, step: int, seconds: float, cursor: StreamCursor = FIRST_CURSOR, cpu_seconds: float = 0.0
    ) -> float:
        """Return the spent fraction of the budget, 0 … 1: the largest of the fractions of its limits."""
        read = self._pools_read(cursor) if self.num_pools else 0.0
        pairs = ((step, self.steps), (seconds, self.seconds), (cpu_seconds, self.cpu_seconds), (read, self.num_pools))
        return min(max((spent / limit for spent, limit in pairs if limit), default=0.0), 1.0)

    def epochs_read(self, cursor: StreamCursor) -> float:
        """Return the number of epochs of the data before the cursor; 0 for a mixture."""
        return self._pools_read(cursor) / self.pools_in_epoch if self.pools_in_epoch else 0.0

    def _pools_read(self, cursor: StreamCursor) -> float:
        # A small corpus is a single pool, so counting whole pools is too coarse: add the fraction of this pool that was
        # read.
        return cursor.pool + (cursor.item / self.pool_size(cursor.pool) if cursor.item else 0.0)

    def reason(self, step: int, seconds: float, cpu_seconds: float = 0.0) -> str:
        """Return the limit that was reached: "steps", "minutes", "cpu_minutes" or "epochs"."""
        if self.steps and step >= self.steps:
            return "steps"
        if self.cpu_seconds and cpu_seconds >= self.cpu_seconds:
            return "cpu_minutes"
        return "minutes" if self.seconds and seconds >= self.seconds else "epochs"


def is_due(every: int, step: int, before: float, after: float) -> bool:
    """Return whether an action is due after a step: every `every` steps or, with 0, at each tenth of the budget.

    `before` and `after` are the spent fractions of the budget before and after the step.
    """
    if every:
        return step % every == 0
    return int(after * DEFAULT_EVALUATIONS + 1e-9) > int(before * DEFAULT_EVALUATIONS + 1e-9)


def is_better(
    metric: str, value: float, best: float | None, loss: float | None = None, best_loss: float | None = None
) -> bool:
    """Return whether a value of a metric is better than the best so far. If they are equal, the loss decides.

    >>> is_better("exact_match", 0.0, 0.0, loss=4.5, best_loss=5.5), is_better("exact_match", 0.5, 0.5)
    (True, False)
    """
    if best is None:
        return value == value
    if value == best and loss is not None and best_loss is not None:
        return loss < best_loss or (best_loss != best_loss and loss == loss)  # any number is better than NaN
    return value < best if lower_is_better(metric) else value > best


def lower_is_better(metric: str) -> bool:
    """Return whether lower values of a metric are better.

    >>> lower_is_better("loss"), lower_is_better("word_error_rate"), lower_is_better("exact_match")
    (True, True, False)
    """
    return metric == "ter" or any(word in metric for word in ("loss", "perplexity", "bits", "error"))
