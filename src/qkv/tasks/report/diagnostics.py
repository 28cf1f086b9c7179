"""`RunDiagnostics`, the measurements of a run on which advice depends, and the class `Advice`."""

import math
import shlex
from dataclasses import asdict, dataclass, field
from typing import Any

from qkv.data.objectives.table import OBJECTIVES
from qkv.inside.doctor import Finding
from qkv.models import Config
from qkv.tasks.report.curve_verdict import CurveVerdict
from qkv.tasks.report.data import RecordCounts
from qkv.tasks.report.errors import ErrorReport
from qkv.tasks.report.leakage import LeakageReport
from qkv.tasks.report.learning_curve import LearningCurve
from qkv.tasks.report.score import ScoreReport, to_points
from qkv.train.recipe.schema import BUDGETS, Files, Recipe

NEARLY_PERFECT = 98.0  # points
MIN_LEAD = 2.0  # points above a baseline
MIN_METRIC_GAIN = 2.0  # points; a smaller rise of a metric does not count
MIN_LOSS_LEAD = 0.1  # nats per token below the unigram model
NEAR_UNIGRAM = 0.85  # a loss above this fraction of the unigram model's is close to it
LANGUAGE_METRICS = ("loss", "masked_accuracy")  # the main metrics of language models
MIN_STEPS = 20  # a run of fewer steps is too short for a verdict
MAX_BUDGET_FACTOR = 10
SAME_OUTPUT = 0.9  # if this fraction of the predictions is equal, the model has learned nothing


@dataclass(frozen=True)
class Advice:
    """A change that is likely to help."""

    name: str
    title: str  # what to do
    reason: str  # what was measured
    overrides: tuple[str, ...] = ()  # changes to the recipe
    command: str = ""  # to run as it is

    @property
    def starts_run(self) -> bool:
        """Whether the command trains a new run."""
        return "qkv train " in self.command and "run=" in self.command

    def to_dict(self) -> dict[str, Any]:
        """The advice for JSON."""
        return asdict(self) | {"starts_run": self.starts_run}


@dataclass(kw_only=True)
class RunFindings:
    """The measurements of a run. Parts that do not apply to its task, or were not measured, are None."""

    folder: str
    curve_verdict: CurveVerdict
    score: ScoreReport | None = None
    errors: ErrorReport | None = None
    leakage: LeakageReport | None = None
    score_without_leaks: float | None = None
    test_leakage: LeakageReport | None = None
    data: RecordCounts | None = None
    learning_curve: LearningCurve | None = None
    lr_check: Finding | None = None


@dataclass(kw_only=True)
class RunDiagnostics(RunFindings):
    """What the rules of advice read."""

    recipe: Recipe
    config: Config
    most_common_output_fraction: float = 0.0  # 0 if the expected outputs are equal, too
    metric_curve: list[tuple[float, float]] = field(default_factory=list)  # (step, main metric)
    full_epochs: int | None = None  # how often the run has read all of its training data; None: unknown
    late_metric_gain: float = 0.0  # rise of the main metric in the last quarter; 0 if it was higher before
    is_finished: bool = True  # whether the run has spent its budget, or ended early by itself
    new_run: str = ""  # a free name for the next run; by default the name of this run with -2

    def __post_init__(self) -> None:
        self.new_run = self.new_run or f"{self.folder}-2"

    def command(self, *overrides: str) -> str:
        """The command that trains a new run with these changes."""
        words = ["qkv", "train", f"{self.folder}/recipe.toml", f"run={self.new_run}", *overrides]
        return " ".join(map(shlex.quote, words))

    def advise(self, name: str, title: str, reason: str, *overrides: str) -> Advice:
        """Make advice whose command trains a new run."""
        return Advice(name, title, reason, overrides, self.command(*overrides))

    @property
    def budget(self) -> dict[str, float]:
        """The limits of the run: the keys of its recipe and their values."""
        train = self.recipe.train
        limits = {f"train.{name}": getattr(train, name) for name in BUDGETS}
        return {key: value for key, value in limits.items() if value}

    @property
    def budget_overrides(self) -> tuple[str, ...]:
        """Twice the budget of the run; up to ten times if the run read few of its records or had few steps."""
        reads_records = not OBJECTIVES[self.recipe.objective.kind].reads_documents
        needed = max(MIN_STEPS / max(1, self.curve_verdict.steps), 2 / self.epochs if reads_records else 0)
        factor = min(max(2, math.ceil(needed)), MAX_BUDGET_FACTOR)
        return tuple(f"{key}={factor * value:g}" for key, value in self.budget.items())

    @property
    def is_trained_from_scratch(self) -> bool:
        """Whether the run started with new weights."""
        return not self.recipe.model.from_

    @property
    def is_first_epoch(self) -> bool:
        """Whether the run ended before it had read its training data once."""
        return self.full_epochs == 0

    @property
    def training_gap(self) -> float:
        """The score on training data minus the score on evaluation data, in points; 0 if it was not measured."""
        if self.score is None or self.score.training is None:
            return 0.0
        return to_points(self.score.metric, self.score.training.value - self.score.model.value)

    @property
    def epochs(self) -> float:
        """How often the run has seen its training data; infinity if it is unknown."""
        if self.data is None or not self.data.tokens or not self.curve_verdict.steps:
            return math.inf
        return self.curve_verdict.steps * self.recipe.train.batch_tokens / self.data.tokens

    @property
    def is_nearly_perfect(self) -> bool:
        """Whether the score is so high that little can be gained."""
        if self.score is None or self.score.metric == "loss":
            return False
        return to_points(self.score.metric, self.score.model.value) >= NEARLY_PERFECT

    @property
    def is_below_baseline(self) -> bool:
        """Whether a baseline is clearly better than the model: its score is above the model's interval."""
        if self.score is None or self.score.best_baseline is None:
            return False
        low, high = self.score.model.interval or (self.score.model.value, self.score.model.value)
        best = self.score.best_baseline.value
        return best < low if self.score.metric == "loss" else best > high

    @property
    def is_at_baseline(self) -> bool:
        """Whether the model is not clearly better than the best baseline; False for a loss."""
        if self.score is None or self.score.best_baseline is None or self.score.metric == "loss":
            return False
        model, best = self.score.model, self.score.best_baseline.value
        lead = to_points(self.score.metric, model.value - best)
        return lead < MIN_LEAD or (model.interval is not None and model.interval[0] <= best)

    @property
    def is_near_unigram(self) -> bool:
        """Whether the loss of a language model is close to the loss of the unigram model."""
        if self.score is None or self.score.best_baseline is None or self.score.metric != "loss":
            return False
        return self.score.model.value > NEAR_UNIGRAM * self.score.best_baseline.value

    @property
    def has_metric_risen(self) -> bool:
        """Whether the main metric clearly rose in the run: by more than the width of the score's interval."""
        if self.score is None or len(self.metric_curve) < 2:
            return False
        metric, (low, high) = self.score.metric, self.score.model.interval or (0.0, 0.0)
        rise = to_points(metric, self.metric_curve[-1][1] - self.metric_curve[0][1])
        return metric != "loss" and rise >= max(MIN_METRIC_GAIN, to_points(metric, high - low))

    @property
    def has_stalled(self) -> bool:
        """Whether the losses hardly fell, and the score does not prove that the model has learned.

        If a loss is low at the start, as in fine-tuning, it hardly falls although the model learns. Chats have no
        baseline to compare with.
        """
        score = self.score
        has_lead = score is not None and (score.best_baseline is not None or score.metric == "loss")
        has_lead = has_lead and not (self.is_at_baseline or is_language_model_at_baseline(score))
        has_learned = self.has_metric_risen or (has_lead and not self.is_trained_from_scratch)
        return self.curve_verdict.verdict == "stalled" and not has_learned

    @property
    def has_not_learned(self) -> bool:
        """Whether the run diverged or stalled, or the model predicts the same for all records."""
        return (
            self.curve_verdict.verdict == "diverged"
            or self.has_stalled
            or self.most_common_output_fraction >= SAME_OUTPUT
        )


def is_language_model_at_baseline(score: ScoreReport | None) -> bool:
    """Whether a language model, causal or masked, is not clearly better than token frequencies."""
    if score is None or score.best_baseline is None or score.metric not in LANGUAGE_METRICS:
        return False
    sign, lead = (-1, MIN_LOSS_LEAD) if score.metric == "loss" else (1, MIN_LEAD)
    ends = score.model.interval or (score.model.value, score.model.value)
    best = sign * score.best_baseline.value
    is_inside = min(sign * end for end in ends) <= best
    return is_inside or to_points(score.metric, sign * score.model.value - best) < lead


def capitalise(text: str) -> str:
    """The text with a capital letter at its start; the rest stays as it is."""
    return text[:1].upper() + text[1:]


def list_files(files: Files) -> list[str]:
    """The files of a recipe as arguments of a command; aligned files as field=file."""
    if isinstance(files, dict):
        return [f"{field}={file}" for field, file in files.items()]
    return [files] * bool(files) if isinstance(files, str) else list(files)
