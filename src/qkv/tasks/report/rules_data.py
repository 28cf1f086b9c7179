"""Advice on the data: unreliable scores, lost records, and missing data."""

import shlex

from qkv.data.objectives.table import OBJECTIVES
from qkv.errors import count_nouns
from qkv.tasks.baselines import BASELINE_NAME
from qkv.tasks.metrics.notation import format_score, name_metric
from qkv.tasks.report.diagnostics import Advice, RunDiagnostics, list_files
from qkv.tasks.report.leakage import LeakageReport
from qkv.tasks.report.learning_curve import LearningCurve
from qkv.tasks.report.score import to_points

MIN_LEAKS, LEAK_FRACTION, LEAK_POINTS = 3, 0.05, 1.0
"""Leaks matter if they are this fraction of the records, or if they change the score by this many points."""
MAX_REMOVED = 0.5  # fraction of the evaluation records; if more leak, the texts look alike
MIN_CONFLICTS, CONFLICT_FRACTION = 3, 0.01
UNUSABLE_FRACTION = 0.01
CUT_FRACTION = 0.05  # fraction of records that are truncated or too long
RARE_CLASS, CLASS_GAP = 0.25, 10.0
"""A class is rare below this fraction of the mean class size; its F1 is low if it is this far below the others."""
MIN_CLASS_RECORDS = 5  # evaluation records of a class, below which its F1 is ignored
MIN_GAIN_POINTS, MIN_GAIN_NATS = 1.0, 0.05  # the smallest gain from twice the data that is worth advice
WIDE_INTERVAL = 5.0  # points on either side
MAX_VALID_FRACTION = 0.2


def advise_leakage(run: RunDiagnostics) -> Advice | None:
    """Evaluation records that occur in the training data make the score too high."""
    found = run.leakage
    if found is None or len(found.leaks) < MIN_LEAKS:
        return None
    without, change = "", leak_points(run)
    if run.score is not None and run.score_without_leaks is not None:
        metric = run.score.metric
        without = (
            f" Without them, {name_metric(metric)} is {format_score(metric, run.score_without_leaks)} instead of "
            f"{format_score(metric, run.score.model.value)}."
        )
    if found.fraction < LEAK_FRACTION and abs(change) < LEAK_POINTS:
        return None
    reason = describe_leaks(found, "evaluation") + without
    if run.recipe.data.valid and 2 * found.num_exact >= len(found.leaks):
        return run.advise(
            "leakage",
            "Keep the evaluation records out of the training data: hold out a fraction of it, split by content",
            reason,
            "data.valid=",
            "data.valid_fraction=0.1",
        )
    if found.fraction > MAX_REMOVED:
        reason += " The texts look alike, as if made from a template: the score says little about other texts."
        return Advice("leakage", "Evaluate on texts that differ from the training data", reason)
    return Advice(
        "leakage",
        f"Remove the leaked {found.unit}s from the training data or from the evaluation data",
        reason,
        command=f"qkv report {shlex.quote(run.folder)} --json",
    )


def leak_points(run: RunDiagnostics) -> float:
    """The points by which leaks raise the score; 0 if this was not measured."""
    if run.score is None or run.score_without_leaks is None:
        return 0.0
    return to_points(run.score.metric, run.score.model.value - run.score_without_leaks)


def advise_test_leakage(run: RunDiagnostics) -> Advice | None:
    """Test records that occur in the training data will make the final score too high."""
    found = run.test_leakage
    if found is None or len(found.leaks) < MIN_LEAKS or found.fraction < LEAK_FRACTION:
        return None
    if run.score_without_leaks is not None and abs(leak_points(run)) < LEAK_POINTS:
        return None  # the validation data has leaks, too, and they change nothing
    return Advice(
        "test_leakage",
        f"Remove the leaked {found.unit}s from the training data, so that others can compare the test score",
        describe_leaks(found, "test"),
        command=f"qkv report {shlex.quote(run.folder)} --json",
    )


def describe_leaks(found: LeakageReport, part: str) -> str:
    """A sentence: how many records of a split occur in the training data."""
    near = len(found.leaks) - found.num_exact
    listed = f"{found.num_exact:,} word for word" + (f" and {near:,} nearly" if near else "")
    total = count_nouns(found.num_evaluation, f"{part} {found.unit}")
    percent = f"{100 * found.fraction:.0f} %"
    return f"{len(found.leaks):,} of {total} ({percent}) also occur in the training data, {listed}."


def advise_labels(run: RunDiagnostics) -> Advice | None:
    """Labels that contradict two different models are probably wrong, and so are different labels of equal texts."""
    conflicts = run.leakage.conflicts if run.leakage is not None else []
    records = run.leakage.num_training if run.leakage is not None else 0
    reasons = []
    if run.errors is not None and run.errors.has_suspect_labels:
        reasons.append(
            f"{run.errors.num_suspects:,} of the {run.errors.num_sure:,} records with the highest confidence have "
            "another label than the one that both the model and the baseline predict."
        )
    if len(conflicts) >= MIN_CONFLICTS and len(conflicts) >= CONFLICT_FRACTION * records:
        reasons.append(f"{len(conflicts):,} of {records:,} training texts occur again with another label.")
    if not reasons:
        return None
    return Advice(
        "labels",
        "Check the labels of suspect records, and correct the files",
        " ".join(reasons),
        command=f"qkv report {shlex.quote(run.folder)} --json",
    )


def advise_unusable(run: RunDiagnostics) -> Advice | None:
    """Records that cannot be read are lost."""
    data = run.data
    if data is None or data.unusable_fraction < UNUSABLE_FRACTION:
        return None
    count = data.invalid + data.empty
    return Advice(
        "unusable",
        "Correct the records that could not be used",
        f"{count:,} of {data.records + data.invalid:,} training records ({100 * data.unusable_fraction:.1f} %) are "
        "invalid or empty.",
        command=" ".join(map(shlex.quote, ["qkv", "data", *list_files(run.recipe.data.train)])),
    )


def advise_truncation(run: RunDiagnostics) -> Advice | None:
    """The model cannot learn from the truncated part of a record."""
    data = run.data
    if data is None or data.cut_fraction < CUT_FRACTION or data.suggested_length <= data.max_length:
        return None
    counts = [
        f"{count:,} {name}" for name, count in (("truncated", data.truncated), ("left out", data.skipped)) if count
    ]
    reason = (
        f"{100 * data.cut_fraction:.0f} % of the training records are longer than {data.max_length:,} tokens "
        f"({', '.join(counts)}); {data.suggested_length:,} tokens hold 99 % of them."
    )
    limit = run.config.stack.max_positions if run.config.stack.has_max_positions else 0
    if not run.is_trained_from_scratch and limit and data.suggested_length > limit:
        if limit <= data.max_length:
            return Advice("truncation", "Split long texts: this model cannot read more", reason)
        data_length = limit
    else:
        data_length = data.suggested_length
    key = "data.max_source_length" if data.is_source else "data.max_length"
    return run.advise("truncation", "Let the model read whole texts", reason, f"{key}={data_length}")


def advise_imbalance(run: RunDiagnostics) -> Advice | None:
    """Rare classes with a low F1."""
    score = run.score
    if score is None or not score.confusion or len(score.classes) < 2:
        return None
    total = sum(scores["expected"] for scores in score.classes.values())
    judged = {name: one for name, one in score.classes.items() if one["expected"] >= MIN_CLASS_RECORDS}
    rare = {name: one for name, one in judged.items() if one["expected"] < RARE_CLASS * total / len(judged)}
    frequent = [one["f1"] for name, one in judged.items() if name not in rare]
    if not rare or not frequent:
        return None
    mean = sum(frequent) / len(frequent)
    missed = {name: one for name, one in rare.items() if 100 * (mean - one["f1"]) >= CLASS_GAP}
    if not missed or len(missed) < len(rare) / 2:
        return None
    worst = sorted(missed, key=lambda name: missed[name]["f1"])[:3]
    listed = ", ".join(
        f"{name} ({count_nouns(missed[name]['expected'], 'record')}, F1 {100 * missed[name]['f1']:.0f} %)"
        for name in worst
    )
    reason = f"Rare classes have a low F1: {listed}, while frequent classes have {100 * mean:.0f} % on average."
    title = "Add records of the rare classes, or repeat those that you have"
    if score.metric != "accuracy":  # entities have no macro F1
        return Advice("imbalance", title, reason)
    title += "; keep the checkpoint with the best macro F1"
    return run.advise("imbalance", title, reason, "train.metric=macro_f1", "train.final=best")


def advise_more_data(run: RunDiagnostics) -> Advice | None:
    """More data helps if the learning curve still rises."""
    curve = run.learning_curve
    if curve is None or run.is_nearly_perfect:
        return None
    least = MIN_GAIN_NATS if curve.metric == "loss" else MIN_GAIN_POINTS
    if to_points(curve.metric, curve.gain.value) < least or curve.gain.expected[0] <= 0:
        return None
    reason = f"With twice the data, expect about {describe_gain(curve)}, by the learning curve of {curve.model}."
    is_baseline = curve.model == BASELINE_NAME
    command = f"qkv report {shlex.quote(run.folder)} --curve-minutes 15" if is_baseline else ""
    reads_documents = OBJECTIVES[run.recipe.objective.kind].reads_documents
    title = ("Add more text" if reads_documents else "Label more data") + (
        "; first measure the curve of this recipe" if is_baseline else ""
    )
    return Advice("more_data", title, reason, command=command)


def advise_evaluation(run: RunDiagnostics) -> Advice | None:
    """A score on few records is imprecise."""
    score = run.score
    if score is None or score.model.interval is None or score.metric == "loss":
        return None
    low, high = score.model.interval
    width = to_points(score.metric, high - low) / 2
    if width < WIDE_INTERVAL or score.num_records < score.num_usable:
        return None
    reason = f"With {count_nouns(score.num_records, 'record')}, the 95 % interval of the score is ±{width:.0f} points."
    fraction = run.recipe.data.valid_fraction
    if run.recipe.data.valid or not fraction or fraction >= MAX_VALID_FRACTION:
        return Advice("few_records", "Evaluate on more records", reason)
    larger = min(2 * fraction, MAX_VALID_FRACTION)
    return run.advise("few_records", "Evaluate on more records", reason, f"data.valid_fraction={larger:g}")


def describe_gain(curve: LearningCurve) -> str:
    """The gain of twice the data, with the interval of the gain that would be measured.

    >>> from qkv.tasks.report.learning_curve import Gain
    >>> describe_gain(LearningCurve("accuracy", "SVM", (), Gain(0.013, (0.008, 0.018), (0.004, 0.022)), 1.0))
    '+1.3 points (between +0.4 and +2.2)'
    >>> describe_gain(LearningCurve("loss", "this recipe", (), Gain(0.13, (0.1, 0.2), (0.08, 0.21)), 1.0))
    '-0.13 nats per token (between -0.21 and -0.08)'
    """
    gain, low, high = (to_points(curve.metric, one) for one in (curve.gain.value, *curve.gain.measured))
    if curve.metric == "loss":
        return f"{-gain:+.2f} nats per token (between {-high:+.2f} and {-low:+.2f})"
    return f"{gain:+.1f} points (between {low:+.1f} and {high:+.1f})"
