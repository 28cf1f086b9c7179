"""What a run tells those who watch it: a display, a log file, a tracker."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class RunStart:
    """What is about to begin."""

    run: str
    parameters: int
    trainable: int  # parameters that change
    step: int  # 0, or where it goes on from
    steps: int  # the budget; 0: none in steps
    minutes: float  # the budget; 0: none in minutes
    device: str
    metric: str  # what evaluation is judged by
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class StepReport:
    """One step, or the mean of those since the last report."""

    step: int
    loss: float  # nats a label
    lr: float
    grad_norm: float
    tokens: int  # since the run began, padding not counted
    tokens_per_second: float
    seconds: float  # since the run began
    fraction_done: float  # the share of the budget that is spent, 0 … 1
    seconds_left: float  # as far as it can be told
    epoch: int


@dataclass(frozen=True)
class Sample:
    """What the model makes of an example it was not trained on."""

    source: str
    prediction: str
    expected: str
    model_input: str | None = None  # what the model is run on for it, where that is not the source as it is shown


@dataclass(frozen=True)
class EvalReport:
    """How the model does on data it was not trained on."""

    step: int
    seconds: float
    metrics: dict[str, float]  # "loss" and the task's own
    is_best: bool
    samples: Sequence[Sample] = ()


@dataclass(frozen=True)
class RunEnd:
    """How it ended."""

    step: int
    seconds: float
    reason: str  # "steps", "minutes", "epochs", "patience", "signal"
    metrics: dict[str, float] = field(default_factory=dict)
    folder: str = ""


class Watcher:
    """Hears of everything and, unless it is made to, does nothing."""

    def on_start(self, start: RunStart) -> None: ...
    def on_step(self, report: StepReport) -> None: ...
    def on_evaluate(self, report: EvalReport) -> None: ...
    def on_sample(self, step: int, sample: Sample) -> None: ...
    def on_note(self, step: int, text: str) -> None: ...
    def on_end(self, end: RunEnd) -> None: ...
