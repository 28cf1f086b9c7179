"""How far a run has come: what it has done, what its budget is, when the next evaluation is due.

All of it is a few numbers that go into each checkpoint as JSON.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import Any

from qkv.data.stream.sequences import STREAM_START, SequenceStream, StreamCursor
from qkv.errors import QkvError
from qkv.train.recipe.schema import TrainSection

DEFAULT_EVALUATIONS = 10
"""Without a cadence of its own, a run is evaluated so many times in its budget."""


@dataclass
class Progress:
    """What a run has done so far."""

    step: int = 0
    tokens: int = 0  # of all processes, padding not counted
    seconds: float = 0.0
    loss: float = 0.0  # summed over the steps since the last report
    loss_steps: int = 0  # those of them that had one
    skipped_steps: int = 0  # steps left out because of numbers that are none
    pending_eval: bool = False  # an evaluation was due at this step, and a signal or the run's end came first
    metric: str = ""  # what the best is told by
    best_value: float | None = None
    best_loss: float | None = None  # what decides where the metric is the same
    best_step: int = 0
    evals_since_best: int = 0  # evaluations since the best one

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Progress":
        known = {field.name for field in fields(cls)}
        if set(values) != known:
            raise QkvError(f"the checkpoint's progress has other fields than this version of qkv: {sorted(values)}")
        return cls(**values)


@dataclass(frozen=True)
class Budget:
    """How long a run may go on: steps, minutes, epochs, whichever is spent first."""

    steps: int
    seconds: float
    num_windows: int  # of the data's order, in the epochs asked for
    units_in_window: Callable[[int], int]  # how many units of rows a window has

    @classmethod
    def from_section(cls, section: TrainSection, data: SequenceStream) -> "Budget":
        windows = data.order.num_pools(section.epochs) if section.epochs else 0
        return cls(
            section.steps, section.minutes * 60, windows, lru_cache(1)(lambda window: len(data.plan_pool(window).units))
        )

    def fraction_done(self, step: int, seconds: float, cursor: StreamCursor = STREAM_START) -> float:
        """The share that is spent, 0 … 1: the largest of the three."""
        read: float = cursor.pool
        if self.num_windows and cursor.unit:  # a small corpus is a single window: its share must be told within it
            read += cursor.unit / self.units_in_window(cursor.pool)
        pairs = ((step, self.steps), (seconds, self.seconds), (read, self.num_windows))
        return min(max((spent / all_ for spent, all_ in pairs if all_), default=0.0), 1.0)

    def reason(self, step: int, seconds: float) -> str:
        """What was spent first."""
        if self.steps and step >= self.steps:
            return "steps"
        return "minutes" if self.seconds and seconds >= self.seconds else "epochs"


def is_due(every: int, step: int, before: float, after: float) -> bool:
    """Whether something that happens every so many steps, or (0) at each tenth of the budget, is due after a step."""
    if every:
        return step % every == 0
    return int(after * DEFAULT_EVALUATIONS + 1e-9) > int(before * DEFAULT_EVALUATIONS + 1e-9)


def is_better(
    metric: str, value: float, best: float | None, loss: float | None = None, best_loss: float | None = None
) -> bool:
    """Whether a value beats the best so far: losses and errors should be low, all else high. The loss decides a tie.

    >>> better("exact_match", 0.0, 0.0, loss=4.5, best_loss=5.5), better("exact_match", 0.5, 0.5)
    (True, False)
    """
    if best is None:
        return value == value
    if value == best and loss is not None and best_loss is not None:
        return loss < best_loss or (best_loss != best_loss and loss == loss)  # anything is better than no number
    return value < best if lower_is_better(metric) else value > best


def lower_is_better(metric: str) -> bool:
    """Whether less of a metric is better.

    >>> lower_is_better("loss"), lower_is_better("word_error"), lower_is_better("exact")
    (True, True, False)
    """
    return any(word in metric for word in ("loss", "perplexity", "bits", "error"))
