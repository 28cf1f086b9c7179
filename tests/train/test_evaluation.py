"""Evaluation during a run: the loss over all validation data, the task's metrics, and the best weights."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from objective_cases import CASES, network
from synthetic_data import OBJECTIVES

from qkv.data.load.loader import Loader
from qkv.data.stream.sequences import SequenceStream
from qkv.models import Network
from qkv.models.runtime import eval_mode
from qkv.train import evaluation
from qkv.train.evaluation import Evaluator, ValidationLoss
from qkv.train.loss.training_module import TrainingModule, make_labelled_batch
from qkv.train.optim.averages import Ema
from qkv.train.optim.optimizers import make_optimizer
from qkv.train.parallel.world import World
from qkv.train.progress import EvalPlan, Progress
from qkv.train.recipe.schema import ObjectiveSection, TrainSection
from qkv.train.step import Stepper

CPU = torch.device("cpu")


@dataclass
class Judged:
    metrics: dict[str, float]
    main_metric: str
    samples: list[Any] = field(default_factory=list)
    num_records: int = 0
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)


@dataclass
class Task:
    """Metrics that a function computes."""

    judge: Callable[[Network], Judged]
    num_examples: int = 1
    max_examples: int = 1

    def __call__(self, network: Network, num_examples: int, progress: Any, resamples: int = 0) -> Judged:
        return self.judge(network)


def parts(name: str, smoothing: float = 0.0) -> tuple[Network, TrainingModule, Stepper, SequenceStream]:
    net = network(*CASES[name]).float()
    learner = TrainingModule(net, ObjectiveSection(label_smoothing=smoothing)).train()
    section = TrainSection(precision="float32")
    stepper = Stepper(learner, make_optimizer(net.named_parameters(), section), section, World())
    objective = OBJECTIVES[name]()
    return net, learner, stepper, SequenceStream(objective, batch_tokens=2 * sum(objective.max_lengths) + 10, seed=1)


@pytest.mark.parametrize("name", ["next token", "masked", "next sentence", "pairs", "classify", "tags", "answers"])
def test_the_loss_is_the_mean_over_all_labels_of_an_epoch(name: str) -> None:
    net, learner, stepper, rows = parts(name, smoothing=0.0 if name == "answers" else 0.3)
    found = Evaluator(learner, net, stepper, rows, None)(Progress()).metrics["loss"]
    batches = list(Loader(rows, epochs=1))
    assert len(batches) > 1
    labels, answers = (sum(counts) for counts in zip(*(batch.label_counts for batch in batches), strict=True))
    learner.eval()
    shares = [torch.tensor(1 / max(count, 1)) for count in (labels, answers)]
    with torch.no_grad():
        whole = sum(float(learner(make_labelled_batch(batch, CPU), *shares)) for batch in batches)
    assert found == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize(("name", "follows"), [("next token", True), ("masked", True), ("next sentence", False)])
def test_the_perplexity_belongs_to_the_loss_beside_it(name: str, follows: bool) -> None:
    net, learner, stepper, rows = parts(name)
    sample = {"loss": 1.5, "perplexity": math.exp(1.5), "bits_per_byte": 0.6}  # of other examples
    found = Evaluator(learner, net, stepper, rows, Task(lambda seen: Judged(dict(sample), "loss")))(Progress()).metrics
    assert found["loss"] != pytest.approx(1.5, rel=0.01)
    loss = found["loss"] if follows else 1.5  # that of next sentences is part of the loss, not of the perplexity
    assert found["perplexity"] == pytest.approx(math.exp(loss))
    assert found["bits_per_byte"] == pytest.approx(0.6 * loss / 1.5)


def test_evaluating_leaves_training_as_it_was() -> None:
    net, learner, stepper, rows = parts("pairs")
    evaluate = Evaluator(learner, net, stepper, rows, Task(lambda seen: Judged({"training": float(seen.training)}, "")))
    report = evaluate(Progress())
    assert report.metrics["training"] == 0.0
    assert net.training
    assert all(p.grad is None for p in net.parameters())
    with eval_mode(net):
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()


def test_averaged_weights_are_judged_where_there_are_some_and_the_own_come_back() -> None:
    net, learner, stepper, rows = parts("pairs")
    ema = Ema(net.named_parameters(), 0.5)
    averages = {name: p.detach().clone() for name, p in net.named_parameters()}
    with torch.no_grad():
        for p in net.parameters():
            p.add_(1.0)
    own = {name: p.detach().clone() for name, p in net.named_parameters()}
    seen: list[dict[str, torch.Tensor]] = []

    def judge(judged: Network) -> Judged:
        seen.append({name: p.detach().clone() for name, p in judged.named_parameters()})
        return Judged({"exact": 0.5}, "exact")

    Evaluator(learner, net, stepper, rows, Task(judge))(Progress(), ema)
    assert all(torch.equal(seen[0][name], average) for name, average in averages.items())
    assert all(torch.equal(p, own[name]) for name, p in net.named_parameters())


def judged_by(values: list[dict[str, float]], metric: str = "", main: str = "exact") -> tuple[list[bool], Progress]:
    """Return which of several evaluations were the best so far, and the progress after them."""
    net, learner, stepper, _ = parts("pairs")
    stepper.section = replace(stepper.section, metric=metric)
    turn = iter(values)
    evaluate = Evaluator(learner, net, stepper, None, Task(lambda seen: Judged(dict(next(turn)), main)))
    progress = Progress()
    bests = []
    for step in range(1, len(values) + 1):
        progress.step = step
        bests.append(evaluate(progress).is_best)
    return bests, progress


def test_the_judges_main_metric_says_what_is_best() -> None:
    bests, progress = judged_by([{"exact": 0.1, "loss": 1.0}, {"exact": 0.3, "loss": 2.0}, {"exact": 0.2, "loss": 0.5}])
    assert bests == [True, True, False]
    assert (progress.best_value, progress.best_step, progress.evals_since_best) == (0.3, 2, 1)


def test_where_the_metric_is_the_same_the_loss_decides() -> None:
    """A translator may have no exact match for many steps, although its loss falls."""
    bests, progress = judged_by([{"exact": 0.0, "loss": loss} for loss in (5.0, 4.0, 4.5, 3.0)])
    assert bests == [True, True, False, True]
    assert (progress.best_step, progress.evals_since_best) == (4, 0)


def test_what_was_best_by_another_metric_is_forgotten() -> None:
    net, learner, stepper, _ = parts("pairs")
    progress = Progress(step=1)
    for metric, exact, best in (("loss", 0.1, True), ("exact", 0.1, True), ("exact", 0.05, False)):
        judge = lambda seen, exact=exact: Judged({"exact": exact, "loss": 5.0}, "exact")  # noqa: E731
        stepper.section = replace(stepper.section, metric=metric)
        assert Evaluator(learner, net, stepper, None, Task(judge))(progress).is_best is best
    assert (progress.metric, progress.best_value) == ("exact", 0.1)


def test_another_metric_may_say_it() -> None:
    bests, _ = judged_by(
        [{"exact": 0.1, "loss": 1.0}, {"exact": 0.3, "loss": 2.0}, {"exact": 0.2, "loss": 0.5}], "loss"
    )
    assert bests == [True, False, True]


def test_a_metric_that_is_not_there_is_the_loss() -> None:
    bests, _ = judged_by([{"exact": 0.1, "loss": 1.0}, {"exact": 0.0, "loss": 0.5}], "bleu")
    assert bests == [True, True]


def test_what_is_not_a_number_is_never_the_best() -> None:
    bests, progress = judged_by([{"loss": float("nan")}, {"loss": 2.0}, {"loss": float("nan")}], "loss", "loss")
    assert bests == [False, True, False]
    assert progress.best_value == 2.0


def test_the_loss_over_all_rows_goes_before_the_judges() -> None:
    net, learner, stepper, rows = parts("pairs")
    report = Evaluator(learner, net, stepper, rows, Task(lambda seen: Judged({"loss": -1.0, "exact": 0.5}, "exact")))(
        Progress()
    )
    assert report.metrics["loss"] > 0


def test_without_anything_to_evaluate_on_nothing_is_found() -> None:
    net, learner, stepper, _ = parts("pairs")
    report = Evaluator(learner, net, stepper, None, None)(Progress())
    assert (report.metrics, report.is_best) == ({}, False)
    assert not report.samples


# --------------------------------------------------------------------------------------------- a limit of time


class Clock:
    """A clock that only moves when something is evaluated: a second for each piece, a tenth for each example."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.pieces, self.examples = 0.0, 0, []
        monkeypatch.setattr(evaluation, "time", SimpleNamespace(monotonic=lambda: self.now))
        usual = ValidationLoss._sums

        def sums(loss: ValidationLoss, piece: Any) -> torch.Tensor:
            self.now += 1.0
            self.pieces += 1
            return usual(loss, piece)

        monkeypatch.setattr(ValidationLoss, "_sums", sums)


@dataclass
class TimedMetrics:
    """Metrics of 500 examples that take their time; the last evaluation may use 2,000."""

    clock: Clock
    num_examples: int = 500
    max_examples: int = 2000

    def __call__(self, network: Network, num_examples: int, progress: Any, resamples: int = 0) -> Judged:
        self.clock.now += 0.1 * (num_examples or 500)
        self.clock.examples.append(num_examples)
        found = Judged({"exact": 0.5}, "exact", num_records=num_examples or 500)
        return replace(found, intervals={"exact": (0.4, 0.6)} if resamples else {})


def limited(clock: Clock | None, **keys: Any) -> Evaluator:
    net, learner, stepper, rows = parts("next token")
    stepper.section = replace(stepper.section, **{"minutes": 1.0, **keys})
    return Evaluator(learner, net, stepper, rows, None if clock is None else TimedMetrics(clock))


def test_evaluations_take_a_tenth_of_the_time_and_use_one_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, evaluate, progress = Clock(monkeypatch), limited(None), Progress(seconds=60.0)
    first = evaluate(progress)
    assert progress.eval_plan == EvalPlan(loss_pieces=6)
    assert clock.pieces == 6, "what was timed is not computed again"
    total = len(list(Loader(evaluate.valid_data, epochs=1)))
    assert total > 6
    assert f"about {6 / ValidationLoss(evaluate, evaluate.valid_data, 0).num_pieces():.1%}" in first.notes[0]
    progress = Progress.from_dict(json.loads(json.dumps(asdict(progress))))  # a resumed run
    progress.seconds = 600.0
    again = evaluate(progress)
    assert (again.metrics, again.notes, clock.pieces) == (first.metrics, (), 12)
    assert limited(None)(Progress(seconds=1e4)).metrics != first.metrics, "with more time, all data"


def test_where_all_data_fits_the_loss_is_that_of_all_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """And with a budget that has no clock, ten seconds always fit."""
    every = limited(None, max_eval_fraction=1.0)(Progress(seconds=1.0)).metrics
    clock = Clock(monkeypatch)
    for progress, keys in ((Progress(seconds=1e4), {}), (Progress(seconds=1.0), {"minutes": 0.0})):
        if not keys:
            report = limited(None)(progress)
        else:
            monkeypatch.setattr(evaluation, "MIN_SECONDS_WITHOUT_CLOCK", 1e4)
            report = limited(None, **keys)(progress)
        assert (report.metrics, report.notes) == (every, ())
        assert progress.eval_plan == EvalPlan()
    assert clock.pieces > 0


@pytest.mark.parametrize(
    ("seconds", "sample", "every"),
    [(3000.0, 0, 1), (600.0, 128, 1), (150.0, 32, 1), (10.0, 32, 6)],
    ids=["all", "some", "few", "too few: less often"],
)
def test_the_tasks_metrics_use_a_sample_that_fits(
    monkeypatch: pytest.MonkeyPatch, seconds: float, sample: int, every: int
) -> None:
    clock = Clock(monkeypatch)
    progress = Progress(seconds=seconds)
    report = limited(clock)(progress)
    assert (progress.eval_plan.metric_examples, progress.eval_plan.stride) == (sample, every)
    assert clock.examples[-1] == sample
    assert bool(report.notes) == (sample > 0)
    assert progress.metric == ("loss" if sample == 32 else "exact"), "few examples are too noisy to select weights"
    assert report.metric == progress.metric
    assert ("the loss selects" in "".join(report.notes)) == (sample == 32)
    assert report.subset.endswith(f"the task's metrics use {sample} of 500 examples" if sample else "")
    assert limited(clock)(progress).subset == report.subset, "of every evaluation, not only of the first"
    assert clock.examples[-1] == sample
    limited(clock, metric="exact")(progress)
    assert progress.metric == "exact", "the user's choice stays"


@pytest.mark.parametrize(
    ("seconds", "examples", "subset"),
    [(90.0, 68, "68 of 2,000"), (1000.0, 967, "967 of 2,000"), (1e4, 2000, "")],
    ids=["ten seconds", "a tenth of the time", "all"],
)
def test_the_last_evaluation_uses_as_many_examples_as_there_is_time_for(
    monkeypatch: pytest.MonkeyPatch, seconds: float, examples: int, subset: str
) -> None:
    """And says how many, and how far to trust the scores. It is not compared with evaluations of other examples."""
    clock, progress = Clock(monkeypatch), Progress(seconds=seconds, best_step=7, best_value=0.4, metric="exact")
    progress.eval_plan = EvalPlan(metric_examples=32)
    evaluator = limited(clock, metric="exact")
    evaluator.valid_data = None
    usual = evaluator(Progress.from_dict(asdict(progress)))
    assert (clock.examples[-1], usual.final, usual.is_best) == (32, None, True)
    last = evaluator(progress, is_last=True)
    assert last.final is not None
    assert (clock.examples[-1], last.final.num_examples) == (examples, examples)
    assert (last.final.intervals, last.is_best, progress.best_step) == ({"exact": (0.4, 0.6)}, False, 7)
    assert subset in last.subset
    assert bool(last.subset) == bool(subset)


def test_steps_between_evaluations_that_the_recipe_sets_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    progress = Progress(seconds=10.0)
    limited(Clock(monkeypatch), eval_every=5)(progress)
    assert progress.eval_plan.stride == 1
