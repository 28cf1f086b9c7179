"""The reports of a run, and `Watcher`, which receives them: a display, a log file, a tracker."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class RunStart:
    """A run that starts or resumes."""

    run: str
    parameters: int
    trainable: int  # the number of parameters that are trained
    step: int  # the step that the run resumes from; 0 for a new run
    steps: int  # the budget in steps; 0 if there is no such limit
    minutes: float  # the budget in minutes; 0 if there is no such limit
    device: str
    notes: tuple[str, ...] = ()
    cpu_minutes: float = 0.0  # the budget in minutes of computing; 0 if there is no such limit


@dataclass(frozen=True)
class StepReport:
    """A report on training. The mean loss and the speed are over the steps since the last report."""

    step: int
    loss: float  # in nats per label
    lr: float
    grad_norm: float
    tokens: int  # tokens since the run started, without padding
    tokens_per_second: float
    seconds: float  # training time since the run started
    fraction_done: float  # the spent fraction of the budget, 0 … 1
    seconds_left: float  # the estimated time left
    epoch: int
    core_share: float = math.nan  # of the cores that it asks for, the fraction that it gets; NaN if unknown


@dataclass(frozen=True)
class Sample:
    """A prediction for an example of the validation data."""

    source: str
    prediction: str
    expected: str
    model_input: str | None = None  # the text that the model reads, if `source` is formatted for display


@dataclass(frozen=True)
class EvalReport:
    """The result of an evaluation on the validation data."""

    step: int
    seconds: float
    metrics: dict[str, float]  # "loss" and the task's metrics
    is_best: bool
    samples: Sequence[Sample] = ()
    notes: tuple[str, ...] = ()  # messages for the user, for example that only a sample of the data was used
    metric: str = ""  # the metric that selects the best weights
    subset: str = ""  # how much of the validation data the metrics use, in words; "" is all of it
    final: "FinalScore | None" = None  # of the last evaluation of a run: what its metrics rest on


@dataclass(frozen=True)
class FinalScore:
    """What the metrics at the end of a run rest on."""

    num_examples: int  # that the task's metrics use
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # 95 % confidence intervals
    weights_step: int | None = None  # the step of the final weights; None for an average


@dataclass(frozen=True)
class RunEnd:
    """A run that ended."""

    step: int
    seconds: float
    reason: str  # "steps", "minutes", "cpu_minutes", "epochs", "patience", "signal"
    metrics: dict[str, float] = field(default_factory=dict)
    folder: str = ""
    subset: str = ""  # how much of the validation data the metrics use, in words; "" is all of it
    final: FinalScore | None = None
    core_share: float = math.nan  # of the cores that it asked for, the fraction that it got; NaN if unknown


class Watcher:
    """Receives a run's reports. Subclasses override the methods that they need. A watcher cannot change the run."""

    def on_start(self, start: RunStart) -> None:
        """Called before the first step."""

    def on_stage(self, stage: str, fraction: float) -> None:
        """Called during work before the first step, with the fraction of it that is done."""

    def on_step(self, report: StepReport) -> None:
        """Called every `train.log_every` steps, and at the end of the budget."""

    def on_eval_progress(self, step: int, fraction: float) -> None:
        """Called during an evaluation, with the fraction of it that is done."""

    def on_evaluate(self, report: EvalReport) -> None:
        """Called after each evaluation."""

    def on_sample(self, step: int, sample: Sample) -> None:
        """Called every few seconds, if the run is displayed."""

    def on_note(self, step: int, text: str) -> None:
        """Called with a message for the user."""

    def on_end(self, end: RunEnd) -> None:
        """Called after the last evaluation, or when a signal stopped the run."""
