"""Advice on the training: the learning rate, over- and underfitting, and the start from a pretrained model."""

import shlex

from qkv.inside.doctor import Finding
from qkv.tasks.report.facts import Advice, Facts, capitalise, list_files
from qkv.tasks.report.score import format_score

GAP_POINTS = 8.0  # between the scores on training and validation data
SMALL_MODEL = 0.9  # a lower score on the training data shows that the model is too small
MIN_EPOCHS = 2.0  # if the model has seen its training data less often, it was not too small but trained too briefly
PRETRAINED = "sentence-transformers/all-MiniLM-L6-v2"
INIT_TASKS = {
    "classification": "classify",
    "tagging": "tag",
    "question_answering": "answer",
    "contrastive": "embed",
}
"""The tasks of `qkv init` by objective, for which a pretrained encoder helps."""


def advise_lr(facts: Facts) -> Advice | None:
    """A learning rate that is too high lets the loss rise; one that is too low leaves it where it is."""
    lr = facts.recipe.train.lr
    check = facts.lr_check
    if not facts.has_not_learned:
        return None
    reason = f"{capitalise(facts.fit.summary)}." if facts.fit.verdict in ("diverged", "stalled") else ""
    if facts.same_output:
        reason += f" The model predicts the same for {100 * facts.same_output:.0f} % of the records."
    best = best_lr(check) if check is not None and check.status in ("failed", "warning") else None
    if facts.fit.verdict == "diverged" and (best is None or best > lr):
        return facts.advise("lr_too_high", "Lower the learning rate", reason, f"train.lr={lr / 10:.3g}")
    if check is None and facts.fit.verdict == "improving":
        return None  # the run was too short
    if check is None:  # a quick report, which does not test learning rates
        title = "Find out why the model has not learned: the report tests other learning rates"
        return Advice("not_learned", title, reason.strip(), command=shlex.join(["qkv", "report", facts.run]))
    if best is None or best == lr:
        return None
    tried = f" In a short test with new weights, {best:.3g} learned faster than {lr:.3g}."
    if best < lr:
        return facts.advise("lr_too_high", "Lower the learning rate", reason + tried, f"train.lr={best:.3g}")
    return facts.advise("lr_too_low", "Raise the learning rate", reason + tried, f"train.lr={best:.3g}")


def advise_overfitting(facts: Facts) -> Advice | None:
    """Keep the best weights, and regularise."""
    if facts.fit.verdict != "overfitted" or facts.is_nearly_perfect:
        return None
    metric = dict(facts.metric_curve)
    if metric and facts.score is not None and facts.score.metric != "loss":
        last = facts.metric_curve[-1][1]
        if last >= max(metric.values()) and facts.training_gap < GAP_POINTS:
            return None  # the loss rose because the model became too sure, but it is still getting better
    dropout = facts.config.stack.dropout
    overrides = [f"model.dropout={min(dropout + 0.1, 0.4):.1g}"]
    if facts.recipe.train.final != "best":
        overrides.append("train.final=best")
    if not facts.recipe.train.patience:
        overrides.append("train.patience=3")
    gap = ""
    if facts.training_gap >= GAP_POINTS and facts.score is not None:
        gap = f" The score is {facts.training_gap:.0f} points better on the training data."
    return facts.advise(
        "overfitting",
        "Keep the best checkpoint, and use more dropout",
        f"{capitalise(facts.fit.summary)}.{gap}",
        *overrides,
    )


def advise_underfitting(facts: Facts) -> Advice | None:
    """A run whose validation loss still falls is too short; a model that settles below a baseline is too small."""
    has_passed = facts.fit.verdict == "improving" if facts.lr_check is None else facts.lr_check.status == "ok"
    is_slow = facts.has_not_learned and facts.fit.verdict != "diverged" and has_passed
    if facts.is_nearly_perfect or (facts.has_not_learned and not is_slow):
        return None
    if facts.fit.verdict == "improving" or is_slow:
        return facts.advise(
            "underfitting", "Train longer", f"{capitalise(facts.fit.summary)}.", *facts.budget_overrides
        )
    if facts.fit.verdict != "settled" or not facts.is_below_baseline or not facts.is_trained_from_scratch:
        return None
    is_cut = facts.data is not None and facts.data.truncated + facts.data.skipped > 0
    training = None if facts.score is None or facts.epochs < MIN_EPOCHS else facts.score.training
    if training is not None and training.value < SMALL_MODEL and facts.training_gap < GAP_POINTS and not is_cut:
        assert facts.score is not None
        stack, reached = facts.config.stack, format_score(facts.score.metric, training.value)
        return facts.advise(
            "too_small",
            "Use a larger model",
            f"The loss settled, but the model reaches only {reached} even on its training data, "
            f"with {stack.layers} layers of width {stack.width}.",
            f"model.width={2 * stack.width}",
            f"model.layers={stack.layers + 2}",
        )
    return None


def advise_pretrained(facts: Facts) -> Advice | None:
    """A new encoder that a simple baseline beats, or that memorises its training data, needs better weights."""
    can_start = facts.is_trained_from_scratch and facts.recipe.objective.kind in INIT_TASKS
    if not can_start or facts.has_not_learned or facts.is_nearly_perfect:
        return None
    reason = compare_with_baseline(facts)
    if not reason and facts.training_gap >= GAP_POINTS and facts.fit.verdict in ("settled", "overfitted"):
        reason = (
            f"The score is {facts.training_gap:.0f} points better on the training data: there is too little of it to "
            "train a new model."
        )
    title = "Fine-tune a pretrained model instead of training a new one"
    return Advice("pretrained", title, reason, command=init_command(facts, PRETRAINED)) if reason else None


def advise_baseline(facts: Facts) -> Advice | None:
    """A model that a simple baseline beats has learned too little."""
    reason = compare_with_baseline(facts)
    if not reason or facts.has_not_learned or facts.fit.verdict == "improving" or advise_pretrained(facts) is not None:
        return None  # other advice says what to do
    title = "Train longer: the model is worse than a simple baseline"
    return facts.advise("baseline", title, reason, *facts.budget_overrides)


def compare_with_baseline(facts: Facts) -> str:
    """A sentence if a baseline is clearly better than the model, else nothing."""
    if not facts.is_below_baseline or facts.score is None or facts.score.best_baseline is None:
        return ""
    best, metric = facts.score.best_baseline, facts.score.metric
    own = format_score(metric, facts.score.model.value)
    return f"The baseline ({best.name}) reaches {format_score(metric, best.value)}, the model {own}."


def best_lr(check: Finding) -> float | None:
    """The learning rate with the lowest loss in the range test of `qkv doctor`."""
    losses = {float(lr): loss for lr, loss in check.values.get("losses", {}).items() if loss == loss}
    return min(losses, key=lambda lr: losses[lr], default=None)


def init_command(facts: Facts, checkpoint: str) -> str:
    """The commands that write a recipe for the data of the run, to fine-tune a checkpoint, and train it."""
    data, recipe = facts.recipe.data, f"{facts.run}-2.toml"
    if not data.train:  # a mixture, which `qkv init` does not write
        return ""
    words = ["qkv", "init", INIT_TASKS[facts.recipe.objective.kind], *list_files(data.train)]
    for option, files in (("--valid", data.valid), ("--test", data.test)):
        words += [word for file in list_files(files) for word in (option, file)]
    words += [word for field, column in data.columns.items() for word in ("--columns", f"{field}={column}")]
    words += ["--format", data.format] if data.format else []
    words += ["--records-key", data.records_key] if data.records_key else []
    words += ["--from", checkpoint, "--out", recipe]
    return f"{shlex.join(words)} && {shlex.join(['qkv', 'train', recipe])}"
