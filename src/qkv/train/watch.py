"""What a run reports to its watchers: a display, a log file, a tracker."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class RunStart:
    """A run that starts or resumes."""

    run: str
    parameters: int
    trainable: int  # the number of parameters that are trained
    step: int  # 0, or the step that it resumes from
    steps: int  # the budget; 0: none in steps
    minutes: float  # the budget; 0: none in minutes
    device: str
    metric: str  # the metric that decides which weights are best
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class StepReport:
    """One step, or the mean of those since the last report."""

    step: int
    loss: float  # nats per label
    lr: float
    grad_norm: float
    tokens: int  # since the run started, without padding
    tokens_per_second: float
    seconds: float  # since the run started
    fraction_done: float  # of the budget, 0 … 1
    seconds_left: float  # an estimate
    epoch: int


@dataclass(frozen=True)
class Sample:
    """A prediction for an example of the validation data."""

    source: str
    prediction: str
    expected: str
    model_input: str | None = None  # the text to run the model on, if it is not the source as shown


@dataclass(frozen=True)
class EvalReport:
    """The result of an evaluation on the validation data."""

    step: int
    seconds: float
    metrics: dict[str, float]  # "loss" and the task's metrics
    is_best: bool
    samples: Sequence[Sample] = ()


@dataclass(frozen=True)
class RunEnd:
    """A run that ended."""

    step: int
    seconds: float
    reason: str  # "steps", "minutes", "epochs", "patience", "signal"
    metrics: dict[str, float] = field(default_factory=dict)
    folder: str = ""


class Watcher:
    """Receives a run's reports. Subclasses override what they need; none of the methods can change the run."""

    def on_start(self, start: RunStart) -> None:
        """Before the first step."""

    def on_step(self, report: StepReport) -> None:
        """Every `train.log_every` steps."""

    def on_evaluate(self, report: EvalReport) -> None:
        """After each evaluation."""

    def on_sample(self, step: int, sample: Sample) -> None:
        """Every few seconds, if the run is displayed."""

    def on_note(self, step: int, text: str) -> None:
        """When there is something that the user should know."""

    def on_end(self, end: RunEnd) -> None:
        """After the last evaluation, or when a signal stopped the run."""
