"""Check before the first step that the recipe's metric and beam apply to the validation data."""

from collections.abc import Sequence

from qkv.data import Record
from qkv.errors import UsageError, suggest_name
from qkv.models import Config
from qkv.tasks.evaluate import available_metrics, has_option
from qkv.tasks.metrics.text import ROUGE_NAMES, has_rouge
from qkv.tasks.table import find_task
from qkv.train.recipe.schema import Recipe


def check_evaluation(recipe: Recipe, config: Config, records: Sequence[Record]) -> None:
    """Raise an error if `train.metric` or `train.eval_beam` does not apply to the validation records."""
    metric, kind = recipe.train.metric, recipe.objective.kind
    if metric not in ("", "loss"):
        known = available_metrics(config, records)
        if not recipe.train.eval_examples:
            raise UsageError(
                f"train.metric = {metric!r} is computed on validation records, but train.eval_examples = 0; raise "
                'train.eval_examples, or set train.metric = "loss"'
            )
        if not known:
            raise UsageError(
                f"train.metric = {metric!r} does not apply: a {kind} run can only be evaluated by its loss; remove "
                'train.metric, or set it to "loss"'
            )
        if metric not in known:
            raise UsageError(
                f"train.metric = {metric!r} is not a metric of {kind}; {suggest_name(metric, {*known, 'loss'})}"
            )
        if metric in ROUGE_NAMES and not has_rouge():
            raise UsageError(
                f"train.metric = {metric!r} needs the package rouge-score, which is not installed; install it with: "
                "pip install 'qkv[rouge]', or remove train.metric"
            )
    beam, task = recipe.train.eval_beam, find_task(config)
    if beam > 1 and not (task.objective == kind and has_option(task, "beam")):
        raise UsageError(f"train.eval_beam = {beam} has no effect: evaluating {kind} generates no text; remove it")
    if config.head.kind == "lm" and beam > config.stack.vocab_size:
        raise UsageError(
            f"train.eval_beam = {beam} is larger than the vocabulary of {config.stack.vocab_size:,} tokens; lower it"
        )
