"""How far a run has come: its progress, its budget, and when the next evaluation is due.

The progress is a few numbers that each checkpoint has as JSON.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import Any

from qkv.data.stream.sequences import FIRST_CURSOR, SequenceStream, StreamCursor
from qkv.errors import QkvError
from qkv.train.recipe.schema import TrainSection

DEFAULT_EVALUATIONS = 10
"""With `train.eval_every = 0`, a run is evaluated this many times in its budget."""


@dataclass
class Progress:
    """What a run has done so far."""

    step: int = 0
    tokens: int = 0  # of all ranks, without padding
    seconds: float = 0.0
    loss: float = 0.0  # summed over the steps since the last report
    loss_steps: int = 0  # the number of steps in that sum
    skipped_steps: int = 0  # steps skipped because the loss or gradient was not finite
    pending_eval: bool = False  # an evaluation was due at this step, but a signal or the run's end came first
    metric: str = ""  # the metric that decides which step is best
    best_value: float | None = None
    best_loss: float | None = None  # decides if the metric is equal
    best_step: int = 0
    evals_since_best: int = 0  # evaluations since the best one

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Progress":
        """The reverse of `to_dict`."""
        known = {field.name for field in fields(cls)}
        if set(values) != known:
            raise QkvError(
                f"the checkpoint's progress has other fields than in this version of qkv: {sorted(values)}; "
                "use the qkv that wrote it"
            )
        return cls(**values)


@dataclass(frozen=True)
class Budget:
    """How long a run may take: steps, minutes or epochs, whichever is spent first."""

    steps: int
    seconds: float
    num_pools: int  # shuffling pools of the data in `train.epochs`; 0: no limit in epochs
    units_in_pool: Callable[[int], int]  # the number of units in a pool

    @classmethod
    def from_section(cls, section: TrainSection, data: SequenceStream) -> "Budget":
        """The budget of a recipe."""
        num_pools = data.order.num_pools(section.epochs) if section.epochs else 0
        units_in_pool = lru_cache(1)(lambda pool: len(data.plan_pool(pool).unit_order))
        return cls(section.steps, section.minutes * 60, num_pools, units_in_pool)

    def fraction_done(self, step: int, seconds: float, cursor: StreamCursor = FIRST_CURSOR) -> float:
        """The fraction that is spent, 0 … 1: the largest of the three."""
        read: float = cursor.pool
        if self.num_pools and cursor.unit:  # a small corpus is a single pool, so the fraction within it counts
            read += cursor.unit / self.units_in_pool(cursor.pool)
        pairs = ((step, self.steps), (seconds, self.seconds), (read, self.num_pools))
        return min(max((spent / limit for spent, limit in pairs if limit), default=0.0), 1.0)

    def reason(self, step: int, seconds: float) -> str:
        """Which part of the budget is spent."""
        if self.steps and step >= self.steps:
            return "steps"
        return "minutes" if self.seconds and seconds >= self.seconds else "epochs"


def is_due(every: int, step: int, before: float, after: float) -> bool:
    """Whether what is done every `every` steps, or with 0 at each tenth of the budget, is due after a step."""
    if every:
        return step % every == 0
    return int(after * DEFAULT_EVALUATIONS + 1e-9) > int(before * DEFAULT_EVALUATIONS + 1e-9)


def is_better(
    metric: str, value: float, best: float | None, loss: float | None = None, best_loss: float | None = None
) -> bool:
    """Whether a value beats the best so far: losses and errors should be low, other metrics high. The loss breaks ties.

    >>> is_better("exact_match", 0.0, 0.0, loss=4.5, best_loss=5.5), is_better("exact_match", 0.5, 0.5)
    (True, False)
    """
    if best is None:
        return value == value
    if value == best and loss is not None and best_loss is not None:
        return loss < best_loss or (best_loss != best_loss and loss == loss)  # any number is better than NaN
    return value < best if lower_is_better(metric) else value > best


def lower_is_better(metric: str) -> bool:
    """Whether lower values of a metric are better.

    >>> lower_is_better("loss"), lower_is_better("word_error"), lower_is_better("exact")
    (True, True, False)
    """
    return any(word in metric for word in ("loss", "perplexity", "bits", "error"))
