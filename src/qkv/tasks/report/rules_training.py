"""Advice on the training: the learning rate, over- and underfitting, and the start from a pretrained model."""

import math
import shlex
from dataclasses import replace

from qkv.errors import count_nouns
from qkv.inside.doctor import Finding
from qkv.tasks.baselines import BASELINE_NAME
from qkv.tasks.metrics.notation import format_score, name_metric
from qkv.tasks.report.diagnostics import (
    MIN_METRIC_GAIN,
    MIN_STEPS,
    Advice,
    RunDiagnostics,
    capitalise,
    is_language_model_at_baseline,
    list_files,
)
from qkv.tasks.report.score import to_points
from qkv.tasks.table import find_starters
from qkv.train.run.folder import resume_command

GAP_POINTS = 8.0  # between the scores on training and validation data
UNDERFITTED = 90.0  # points; a lower score on the training data shows that the model is too small or hardly trained
MIN_EPOCHS = 2.0  # a model that has seen its training data less often is not too small, but was trained too briefly
ENOUGH_EPOCHS = 10  # a longer run does not help a language model that is near the unigram model after these epochs
MAX_DROPOUT, DROPOUT_STEP = 0.5, 0.1
PRETRAINED = "sentence-transformers/all-MiniLM-L6-v2"


def find_init_task(run: RunDiagnostics) -> str:
    """The task of `qkv init` for the objective of a run if a pretrained encoder helps with this task; otherwise ""."""
    if run.recipe.data.modality == "protein":  # `PRETRAINED` reads texts
        return ""
    starters = find_starters().items()
    kind = run.recipe.objective.kind
    return next((name for name, one in starters if one.objective == kind and one.pretrained), "")


def advise_resuming(run: RunDiagnostics) -> Advice | None:
    """Finish a run that has not finished, unless it has diverged."""
    if run.is_finished or run.curve_verdict.verdict == "diverged":
        return None
    budget = ", ".join(f"{key}={value:g}" for key, value in run.budget.items())
    reason = f"The run has not finished: its log ends at step {run.curve_verdict.steps:,}, and its budget is {budget}."
    return Advice("unfinished", "Resume the run", reason, command=resume_command(run.folder))


def advise_lr(run: RunDiagnostics) -> Advice | None:
    """Change the learning rate: if it is too high, the loss rises; if it is too low, the loss hardly changes."""
    lr = run.recipe.train.lr
    check = run.lr_check
    if not run.has_not_learned:
        return None
    reason = (
        f"{capitalise(run.curve_verdict.summary)}."
        if run.curve_verdict.verdict == "diverged" or run.has_stalled
        else ""
    )
    if run.most_common_output_fraction:
        reason += f" {describe_same_output(run)}"
    best = better_lr(check)
    if run.curve_verdict.verdict == "diverged" and (best is None or best > lr):
        return run.advise("lr_too_high", "Lower the learning rate", reason, f"train.lr={lr / 10:.3g}")
    if check is None and is_too_short(run):
        return None
    if check is None:  # a quick report, which does not test learning rates
        title = "Find out why the model has not learned: the report tests other learning rates"
        return Advice("not_learned", title, reason.strip(), command=shlex.join(["qkv", "report", run.folder]))
    return advise_tested_lr(run, reason)


def advise_tested_lr(run: RunDiagnostics, reason: str) -> Advice | None:
    """Use the learning rate that was best in the test of `qkv doctor`, if it differs from the recipe's."""
    lr, best = run.recipe.train.lr, better_lr(run.lr_check)
    if best is None or best == lr:
        return None
    tried = f" In a short test with new weights, {best:.3g} learned faster than {lr:.3g}."
    if best < lr:
        return run.advise("lr_too_high", "Lower the learning rate", reason + tried, f"train.lr={best:.3g}")
    return run.advise("lr_too_low", "Raise the learning rate", reason + tried, f"train.lr={best:.3g}")


def advise_overfitting(run: RunDiagnostics) -> Advice | None:
    """Keep the best weights, and regularise."""
    if run.curve_verdict.verdict != "overfitted" or run.is_nearly_perfect:
        return None
    metric = dict(run.metric_curve)
    if metric and run.score is not None and run.score.metric != "loss":
        last = run.metric_curve[-1][1]
        if last >= max(metric.values()) and run.training_gap < GAP_POINTS:
            return None  # the loss rose because the model became too sure, but it is still getting better
    gap = ""
    if run.training_gap >= GAP_POINTS and run.score is not None:
        gap = f" The score is {run.training_gap:.0f} points better on the training data."
    reason = f"{capitalise(run.curve_verdict.summary)}.{gap}"
    stack, changes = run.config.stack, {}
    if run.recipe.train.final != "best":
        changes["keep the best checkpoint"] = ["train.final=best"]
    if stack.dropout < MAX_DROPOUT:
        changes["use more dropout"] = [f"model.dropout={min(stack.dropout + DROPOUT_STEP, MAX_DROPOUT):.2g}"]
    elif run.is_trained_from_scratch and stack.layers > 1:
        changes["use a smaller model"] = [f"model.layers={stack.layers // 2}"]
    if not changes:
        return Advice("overfitting", "Add training data: the recipe already limits overfitting", reason)
    overrides = [one for several in changes.values() for one in several]
    if not run.recipe.train.patience:
        overrides.append("train.patience=3")
    return run.advise("overfitting", capitalise(", and ".join(changes)), reason, *overrides)


def advise_underfitting(run: RunDiagnostics) -> Advice | None:
    """If a run was still improving, or is not better than a baseline, it is too short or its model is too small."""
    is_tested, best_lr = run.lr_check is not None, better_lr(run.lr_check)
    has_passed = best_lr in (None, run.recipe.train.lr) if is_tested else is_too_short(run)
    is_slow = run.has_not_learned and run.curve_verdict.verdict != "diverged" and has_passed
    is_other = (run.has_not_learned and not is_slow) or advise_overfitting(run) is not None
    if run.is_nearly_perfect or is_other or not run.is_finished:
        return None
    if run.curve_verdict.verdict == "improving" or run.has_stalled:
        return advise_longer(run, f"{capitalise(run.curve_verdict.summary)}.")
    if is_slow:
        return advise_longer(run, describe_same_output(run))
    if reason := describe_late_gain(run) or describe_short_run(run):
        return advise_longer(run, reason)
    score = run.score
    if score is None or score.training is None or not run.is_at_baseline or run.training_gap >= GAP_POINTS:
        return None
    metric, own = score.metric, format_score(score.metric, score.model.value)
    if to_points(metric, score.training.value) >= UNDERFITTED:
        return None
    reached = format_score(metric, score.training.value)
    is_cut = run.data is not None and run.data.truncated + run.data.skipped > 0
    has_settled = run.curve_verdict.verdict == "settled" and run.epochs >= MIN_EPOCHS and not is_cut
    if run.is_below_baseline and run.is_trained_from_scratch and has_settled:
        stack = run.config.stack
        return run.advise(
            "too_small",
            "Use a larger model",
            f"The loss settled, but the model reaches only {reached} even on its training data, "
            f"with {count_nouns(stack.layers, 'layer')} of width {stack.width}.",
            f"model.width={2 * stack.width}",
            f"model.layers={stack.layers + 2}",
        )
    assert score.best_baseline is not None
    best = f"the baseline ({score.best_baseline.name}) reaches {format_score(metric, score.best_baseline.value)}"
    name = capitalise(name_metric(metric))
    return advise_longer(run, f"{name} is {own}, about the same on the training data ({reached}), and {best}.")


def describe_late_gain(run: RunDiagnostics) -> str:
    """A sentence for a run whose metric still rose clearly at the end, and whose model has not memorised its training
    data.
    """
    if run.score is None or run.training_gap >= GAP_POINTS:
        return ""
    metric, model = run.score.metric, run.score.model
    low, high = model.interval or (model.value, model.value)
    gain = to_points(metric, run.late_metric_gain)
    if gain < max(MIN_METRIC_GAIN, to_points(metric, high - low) / 2):
        return ""
    return f"{capitalise(name_metric(metric))} still rose by {gain:.0f} points in the last quarter of the training."


def describe_short_run(run: RunDiagnostics) -> str:
    """A sentence for a run that was too short. Its loss may be flat at its end, where learning rates are low."""
    if is_language_model_at_baseline(run.score):
        return ""  # left to `advise_baseline`, which also considers the learning rate
    if run.curve_verdict.steps < MIN_STEPS and (run.is_first_epoch or run.training_gap < GAP_POINTS):
        return f"The run took only {count_nouns(run.curve_verdict.steps, 'step')}."
    if run.is_first_epoch:
        return f"{capitalise(run.curve_verdict.summary)}."
    if run.is_near_unigram and (run.full_epochs or 0) < ENOUGH_EPOCHS:
        return f"{describe_baseline(run)} The model has learned little more than the frequencies of tokens."
    return ""


def is_too_short(run: RunDiagnostics) -> bool:
    """Whether the run ended while it was improving, or had read only some of its training data in a few steps."""
    return run.curve_verdict.verdict == "improving" or (run.curve_verdict.verdict == "unknown" and run.is_first_epoch)


def advise_longer(run: RunDiagnostics, reason: str) -> Advice:
    """Twice the budget, or more if the run has read few of its records."""
    if run.epochs < 1:
        reason += f" The run has read about {min(99, math.ceil(100 * run.epochs))} % of its training data."
    elif run.is_first_epoch:
        reason += " The run ended before it had read its training data once."
    return run.advise("underfitting", "Train longer", reason, *run.budget_overrides)


def describe_same_output(run: RunDiagnostics) -> str:
    """A sentence about a model whose predictions are nearly all equal."""
    return f"The model predicts the same for {100 * run.most_common_output_fraction:.0f} % of the records."


def advise_pretrained(run: RunDiagnostics) -> Advice | None:
    """Fine-tune a pretrained encoder if a new encoder is not clearly better than a linear SVM, or memorises its
    training data.
    """
    can_start = run.is_trained_from_scratch and find_init_task(run)
    if not can_start or not run.is_finished or run.has_not_learned or run.is_nearly_perfect:
        return None
    best = run.score.best_baseline if run.score is not None else None
    is_near = run.is_at_baseline and best is not None and best.name == BASELINE_NAME
    reason = describe_baseline(run) if run.is_below_baseline or is_near else ""
    has_memorised = run.training_gap >= GAP_POINTS and not run.is_first_epoch
    if not reason and has_memorised and run.curve_verdict.verdict in ("settled", "overfitted"):
        reason = (
            f"The score is {run.training_gap:.0f} points better on the training data: there is too little of it to "
            "train a new model."
        )
    title = "Fine-tune a pretrained model instead of training a new one"
    return Advice("pretrained", title, reason, command=init_command(run, PRETRAINED)) if reason else None


def advise_baseline(run: RunDiagnostics) -> Advice | None:
    """If a simple baseline beats a model, it has learned too little. A language model must beat token frequencies.

    Language models are not evaluated on their training data, so `advise_underfitting` does not apply to them.
    """
    reason, verdict = compare_with_baseline(run), "worse than"
    if not reason and is_language_model_at_baseline(run.score) and advise_overfitting(run) is None:
        reason, verdict = describe_baseline(run), "not better than"
    is_other = run.has_not_learned or any(rule(run) for rule in (advise_underfitting, advise_pretrained))
    if not reason or is_other or not run.is_finished:
        return None  # other advice says what to do
    if (advice := advise_tested_lr(run, reason)) is not None:
        return replace(advice, title=f"{advice.title}: the model is {verdict} a simple baseline")
    title = f"Train longer: the model is {verdict} a simple baseline"
    return run.advise("baseline", title, reason, *run.budget_overrides)


def compare_with_baseline(run: RunDiagnostics) -> str:
    """A sentence if a baseline is clearly better than the model; otherwise ""."""
    return describe_baseline(run) if run.is_below_baseline else ""


def describe_baseline(run: RunDiagnostics) -> str:
    """A sentence with the scores of the best baseline and of the model."""
    assert run.score is not None
    assert run.score.best_baseline is not None
    best, metric = run.score.best_baseline, run.score.metric
    own = format_score(metric, run.score.model.value)
    return f"The baseline ({best.name}) reaches {format_score(metric, best.value)}, the model {own}."


def better_lr(check: Finding | None) -> float | None:
    """The learning rate with the lowest loss in the range test of `qkv doctor`; None if the recipe's rate passed."""
    if check is None or check.status not in ("failed", "warning"):
        return None
    losses = {float(lr): loss for lr, loss in check.values.get("losses", {}).items() if loss == loss}
    return min(losses, key=lambda lr: losses[lr], default=None)


def init_command(run: RunDiagnostics, checkpoint: str) -> str:
    """The commands that write a recipe for the data of the run, to fine-tune a checkpoint, and train it."""
    data, recipe = run.recipe.data, f"{run.new_run}.toml"
    if not data.train:  # a mixture, which `qkv init` does not write
        return ""
    words = ["qkv", "init", find_init_task(run), *list_files(data.train)]
    for option, files in (("--valid", data.valid), ("--test", data.test)):
        words += [word for file in list_files(files) for word in (option, file)]
    words += [word for field, column in data.columns.items() for word in ("--columns", f"{field}={column}")]
    words += ["--format", data.format] if data.format else []
    words += ["--encoding", data.encoding] if data.encoding else []
    words += ["--records-key", data.records_key] if data.records_key else []
    words += ["--from", checkpoint, "--out", recipe]
    return f"{shlex.join(words)} && {shlex.join(['qkv', 'train', recipe, f'run={run.new_run}'])}"
