"""Make the report on a run: is the model good, and what next?

    report = make_report("runs/reviews")
    report.score.model.value, [advice.title for advice in report.advice]

The model is evaluated on the validation data, so that the test data stays unseen. `quick=True` is for the last
lines of `qkv train`: only what takes a small fraction of the run's time.
"""

import math
import shlex
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any

from qkv.data.records import Record
from qkv.errors import QkvError, UsageError, suggest_path
from qkv.files import to_path
from qkv.inside.doctor import Finding, Subject, run_check, take_sequences
from qkv.progress import OnStage
from qkv.store.hub import find_bundled
from qkv.tasks.baselines import BASELINE_NAME, applicable_baselines, unigram_scores
from qkv.tasks.describe import first_batch
from qkv.tasks.evaluate import evaluate
from qkv.tasks.metrics.notation import name_metric
from qkv.tasks.prepare.model import apply_adapters
from qkv.tasks.prepare.prepare import PreparedRun
from qkv.tasks.report.advice import give_advice
from qkv.tasks.report.curve_verdict import diagnose_curves, late_metric_gain
from qkv.tasks.report.data import (
    MAX_TEXT_CHARS,
    RecordCounts,
    RunRecords,
    count_records,
    read_data,
    read_lines,
)
from qkv.tasks.report.diagnostics import RunDiagnostics, RunFindings, is_language_model_at_baseline
from qkv.tasks.report.errors import list_errors
from qkv.tasks.report.leakage import LeakageReport, find_leakage
from qkv.tasks.report.learning_curve import (
    LearningCurve,
    baseline_curve,
    explain_no_curve,
    language_model_curve,
    recipe_curve,
)
from qkv.tasks.report.report import RunReport
from qkv.tasks.report.score import (
    Measured,
    ScoredPredictions,
    ScoreReport,
    add_baselines,
    find_scorer,
    make_score_report,
    measure,
    predict_and_score,
)
from qkv.tasks.scorer import TaskScorer
from qkv.tasks.table import find_task
from qkv.tasks.text_model import TextModel, require_tokenizer
from qkv.tasks.train import EXCERPT_CHARS, split_long_texts
from qkv.train.checkpoint.files import run_path
from qkv.train.recipe import recipe_file
from qkv.train.run.curves import read_curves
from qkv.train.run.folder import RunFolder
from qkv.train.run.load import load_model

QUICK_FRACTION, MIN_QUICK_SECONDS, MAX_QUICK_SECONDS = 0.03, 1.0, 5.0
"""A quick report evaluates for this fraction of the run's time, but at least and at most for these seconds."""
MIN_QUICK_RECORDS = 30  # with fewer, a quick report has no score
BASELINE_CURVE_SECONDS = 20.0
LANGUAGE_RECORDS, TIMED_EXCERPTS = 200, 8
"""Excerpts of a language model's data that are evaluated, and those that are timed first."""
MAX_LINES = 20_000  # lines of the evaluation data that are compared with the training data


@dataclass(frozen=True)
class ReportOptions:
    """How much a report examines."""

    max_records: int = 1000  # to evaluate
    seconds: float = 60.0  # time of the evaluation; the search for leakage takes at most a third of it
    curve_minutes: float = 0.0  # to train the recipe on fractions of the data; 0: only the curve of the baseline
    device: str = "cpu"
    quick: bool = False


def make_report(run: str | Path, options: ReportOptions | None = None, progress: OnStage | None = None) -> RunReport:
    """Examine a run: its score, errors, data and curves, and what to change next."""
    return Reporter(run, options or ReportOptions(), progress).make()


class Reporter:
    """Collects the parts of a report, one method for each."""

    def __init__(self, run: str | Path, options: ReportOptions, progress: OnStage | None) -> None:
        self.began, self.options, self.progress = time.monotonic(), options, progress
        self.path = run_path(to_path(run))
        folder = RunFolder(self.path)
        if not self.path.exists() and find_bundled(run) is None:
            hint = suggest_path(Path("runs") / self.path, folders=True) or suggest_path(self.path, folders=True)
            raise UsageError(f"{run}: no such folder; check the path{hint}")
        if not folder.is_run:
            raise UsageError(
                f"{run}: not the folder of a run, which has a recipe and a log; to evaluate another model, use "
                f"qkv eval {run} DATA"
            )
        self.run = str(self.path)
        self.recipe = recipe_file.loads(folder.read_recipe(), str(self.path / "recipe.toml"))
        stored = load_model(run, device=options.device)
        self.model_notes, self.is_finished = tuple(stored.notes), folder.has_model
        self.notes: list[str] = []
        self.model = TextModel(stored.network, require_tokenizer(stored.tokenizer), stored.config)
        self.task = find_task(stored.config)
        self.curves = read_curves(self.path.name, self.path)
        self.curve_verdict = diagnose_curves(self.curves)
        self.seconds = options.seconds
        if options.quick:
            trained = max((float(record.get("seconds", 0)) for record in folder.log_records()), default=0.0)
            self.seconds = min(max(QUICK_FRACTION * trained, MIN_QUICK_SECONDS), MAX_QUICK_SECONDS)
            self.notes.append(
                f"this is a quick report, made when the run ended; qkv report {shlex.quote(self.run)} examines more: "
                "better baselines, the score on training data, leakage of test data, truncated and unusable records, "
                "the gain from more data"
            )

    def stage(self, name: str) -> None:
        """Report the current stage."""
        if self.progress is not None:
            self.progress(name, 0, 1)

    def make(self) -> RunReport:
        """All parts."""
        self.stage("reading")
        data = read_data(self.recipe, self.task)
        train = self.recipe.train
        scorer = find_scorer(self.model.config, data.evaluation, train.metric)
        if scorer is not None and train.metric not in ("", "loss", scorer.metric):
            shown = name_metric(scorer.metric)
            self.notes.append(f"the score is {shown}: a report cannot show train.metric = {train.metric!r}")
        training = data.sample_training()
        self.stage("evaluating")
        score, predictions = self.score(data, scorer, training)
        errors = None if predictions is None else list_errors(predictions)
        self.stage("comparing records")
        leakage, clean, test_leakage = self.leakage(data, scorer, predictions)
        counted, prepared = self.count_data(data, scorer, training)
        self.stage("learning curve")
        curve = self.learning_curve(data, scorer, predictions, training, score)
        metric_curve = self.curves.validation.get(score.metric, []) if score is not None else []
        found = RunDiagnostics(
            folder=self.run,
            curve_verdict=self.curve_verdict,
            score=score,
            errors=errors,
            leakage=leakage,
            score_without_leaks=clean,
            test_leakage=test_leakage,
            data=counted,
            learning_curve=curve,
            recipe=self.recipe,
            config=self.model.config,
            most_common_output_fraction=most_common_output_fraction(predictions),
            metric_curve=metric_curve,
            full_epochs=self.curves.full_epochs,
            late_metric_gain=late_metric_gain(metric_curve, self.curves.lr),
            is_finished=self.is_finished,
        )
        found.lr_check = self.check_lr(prepared, found)
        return RunReport(
            **{one.name: getattr(found, one.name) for one in fields(RunFindings)},
            task=self.task.name,
            data_name=data.name,
            advice=tuple(give_advice(found)),
            curves=self.curves,
            model_notes=self.model_notes,
            notes=tuple(self.notes),
            seconds=time.monotonic() - self.began,
        )

    def score(
        self, data: RunRecords, scorer: TaskScorer | None, training: Sequence[Record]
    ) -> tuple[ScoreReport | None, ScoredPredictions | None]:
        """The score of the model and of the baselines, and the predictions."""
        if scorer is None:
            return (self.language_model_score(data, training) if self.task.reads_documents else None), None
        usable = sum(map(scorer.is_usable, data.evaluation))
        count, beam = self.options.max_records, self.recipe.train.eval_beam
        predictions = predict_and_score(scorer, self.model, data.evaluation, self.seconds, count, beam)
        if self.options.quick and len(predictions.records) < min(usable, MIN_QUICK_RECORDS):
            return None, None
        on_training = None
        if not self.options.quick and any(map(scorer.is_usable, training)):
            count = len(predictions.records)
            on_training = predict_and_score(scorer, self.model, training, self.seconds / 4, count, beam)
        add_baselines(predictions, training, only_cheap=self.options.quick)
        score = make_score_report(predictions, len(data.evaluation), usable, on_training)
        if score.num_records < usable:
            self.notes.append(
                f"the score is over a sample of {score.num_records:,} of {usable:,} records (--limit, --seconds)"
            )
        return score, predictions

    def language_model_score(self, data: RunRecords, training: Sequence[Record]) -> ScoreReport | None:
        """The loss of a language model, or the accuracy of a masked one, with a unigram model as the baseline."""
        records = [record for record in data.evaluation if "text" in record.fields or "messages" in record.fields]
        if not records:
            return None
        model, began, unit = self.model, time.monotonic(), data.unit
        excerpts = split_long_texts(records, self.task)
        evaluate(model.network, model.tokenizer, model.config, excerpts[:TIMED_EXCERPTS], max_samples=0)
        each = (time.monotonic() - began) / min(TIMED_EXCERPTS, len(excerpts))
        fitting = max(TIMED_EXCERPTS, int(self.seconds / max(each, 1e-9)))
        num_usable = len(records)
        if len(excerpts) > min(fitting, self.options.max_records):
            num_usable, count = len(excerpts), min(fitting, LANGUAGE_RECORDS, self.options.max_records)
            records = excerpts[:: max(1, num_usable // count)][:count]
            if unit == "document":
                unit = "excerpt"
                self.notes.append(
                    f"the score is over excerpts of {EXCERPT_CHARS:,} characters, so it differs a little from that of "
                    "qkv eval, which reads whole documents (--limit, --seconds)"
                )
        found = evaluate(model.network, model.tokenizer, model.config, records, max_samples=0)
        texts, known = (
            [str(one.fields["text"]) for one in side if "text" in one.fields] for side in (records, training)
        )
        loss, accuracy = unigram_scores(model.tokenizer, known, texts)
        is_loss = found.main_metric == "loss"
        baseline = Measured("unigram model" if is_loss else "most frequent token", loss if is_loss else accuracy)
        baselines = () if math.isnan(loss) else (baseline,)  # chats have no plain text
        own = measure("model", found.metrics[found.main_metric])
        return ScoreReport(found.main_metric, own, baselines, None, found.num_records, num_usable, unit=unit)

    def leakage(
        self, data: RunRecords, scorer: TaskScorer | None, predictions: ScoredPredictions | None
    ) -> tuple[LeakageReport | None, float | None, LeakageReport | None]:
        """Leaks of the evaluation data, the score without them, and leaks of the test data."""
        limit = self.seconds / 3
        if scorer is None:
            if self.options.quick or not any("text" in one.fields for one in data.evaluation):
                return None, None, None
            lines = list(islice(read_lines(data.evaluation_sources), MAX_LINES))
            training = read_lines(data.training_sources)
            found = find_leakage(lines, training, lambda one: str(one.fields["text"]), unit="line", max_seconds=limit)
            return found, None, None
        used = [one for one in data.evaluation if scorer.is_usable(one)]
        training = (one for one in data.training() if scorer.is_usable(one))

        def full_text(record: Record) -> str:
            return scorer.full_text(record)

        def target(record: Record) -> str:
            return scorer.show(scorer.expected(record), record)

        has_labels = scorer.modality in ("label", "labels")
        shared: Any = {"target_of": target, "max_seconds": limit}
        shared["are_variants"] = bool(self.model.config.head.one_hot_positions)
        found = find_leakage(used, training, full_text, has_labels=has_labels, **shared)
        if not found.complete:
            self.notes.append(f"the first {found.num_training:,} training records were compared (--seconds)")
        clean = None
        if found.leaks and predictions is not None:
            leaked = {id(used[i]) for i in found.leaks}
            kept = [i for i, one in enumerate(predictions.records) if id(one) not in leaked]
            predicted, expected = ([side[i] for i in kept] for side in (predictions.predicted, predictions.expected))
            clean = float(scorer.measure(predicted, expected)) if kept else None
        tested = [one for one in data.test if scorer.is_usable(one)]
        test = None
        if tested and not self.options.quick:
            training = (one for one in data.training() if scorer.is_usable(one))
            test = find_leakage(tested, training, full_text, **shared)
        return found, clean, test

    def count_data(
        self, data: RunRecords, scorer: TaskScorer | None, training: Sequence[Record]
    ) -> tuple[RecordCounts | None, PreparedRun | None]:
        """What training truncated and left out."""
        if self.options.quick:
            return None, None
        classes: Counter[str] = Counter()
        if scorer is not None and scorer.has_classes:
            usable = (record for record in training if scorer.is_usable(record))
            classes.update(str(scorer.class_of(item)) for one in usable for item in scorer.items(scorer.expected(one)))
        try:
            return count_records(data, self.model.tokenizer, dict(classes.most_common()), self.progress)
        except QkvError as error:
            self.notes.append(f"the training data could not be prepared again, so nothing was counted: {error}")
            return None, None

    def learning_curve(
        self,
        data: RunRecords,
        scorer: TaskScorer | None,
        predictions: ScoredPredictions | None,
        training: Sequence[Record],
        score: ScoreReport | None,
    ) -> LearningCurve | None:
        """The learning curve of the recipe if there is time for it; otherwise, for a classifier, of the SVM."""
        minutes = self.options.curve_minutes
        if self.options.quick:
            return None
        if minutes:
            reason, curve = "the model was not evaluated", None
            if scorer is not None and predictions is not None:
                curve = recipe_curve(scorer, self.recipe, self.run, training, predictions.records, minutes)
                reason = explain_no_curve(sum(map(scorer.is_usable, training)))
            elif score is not None:
                curve, reason = self.language_model_curve(data, score, minutes)
            if curve is None:
                self.notes.append(f"there is no learning curve: {reason}")
            return curve
        linear = (
            applicable_baselines(scorer, predictions.records).get(BASELINE_NAME) if scorer and predictions else None
        )
        if scorer is None or predictions is None or linear is None:
            return None
        return baseline_curve(
            scorer, training, predictions.records, BASELINE_NAME, linear.predict, BASELINE_CURVE_SECONDS
        )

    def language_model_curve(
        self, data: RunRecords, score: ScoreReport, minutes: float
    ) -> tuple[LearningCurve | None, str]:
        """The curve of a language model, or why there is none."""
        documents = list(data.training_documents())
        if sum(len(str(one.fields.get("text", ""))) for one in documents) >= MAX_TEXT_CHARS:
            return None, f"the text has more than {MAX_TEXT_CHARS:,} characters, so more text is not what it lacks"
        excerpts = split_long_texts(documents, self.task)
        evaluated = split_long_texts(data.evaluation, self.task)
        evaluated = evaluated[:: max(1, len(evaluated) // min(LANGUAGE_RECORDS, self.options.max_records))]
        curve = language_model_curve(score.metric, self.recipe, self.run, excerpts, evaluated, minutes)
        return curve, explain_no_curve(len(excerpts), "excerpt")

    def check_lr(self, prepared: PreparedRun | None, found: RunDiagnostics) -> Finding | None:
        """The learning-rate test of `qkv doctor`, if the run has learned little."""
        if prepared is None or not (found.has_not_learned or is_language_model_at_baseline(found.score)):
            return None
        self.stage("testing learning rates")
        network = apply_adapters(prepared.build_network(), self.recipe, prepared.config)
        batch = take_sequences(first_batch(prepared.train_data))
        recipe, tokenizer = self.recipe, prepared.tokenizer
        return run_check("lr", Subject(network, tokenizer, batch, recipe.objective, recipe.train, is_new=True))


def most_common_output_fraction(predictions: ScoredPredictions | None) -> float:
    """The fraction of equal predictions; 0 if the expected outputs are equal, too."""
    if predictions is None or not predictions.predicted:
        return 0.0
    shown, wanted = (
        Counter(map(predictions.scorer.show, side)).most_common(1)[0][1] / len(side)
        for side in (predictions.predicted, predictions.expected)
    )
    return shown if wanted < 0.8 * shown else 0.0
