"""Evaluate a model on records: one way for all tasks."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from qkv.data.records import Record
from qkv.errors import UsageError, suggest_name
from qkv.models import Config, Network
from qkv.tasks.evaluation import Evaluation
from qkv.tasks.metrics import confidence_intervals
from qkv.tasks.metrics.bootstrap import hash_data
from qkv.tasks.table import find_task
from qkv.tasks.task import Task
from qkv.tasks.text_model import TextModel, require_tokenizer
from qkv.text import Tokenizer


def evaluate(
    network: Network, tokenizer: Tokenizer | None, config: Config, records: Sequence[Record], **options: Any
) -> Evaluation:
    """Evaluate a model on records, which have the fields of its task's objective.

    The options are the fields of the task's `EvalOptions`. The same records always give the same numbers. The network
    keeps its mode (training or evaluation).
    """
    task = find_task(config)
    known = [one.name for one in fields(task.EvalOptions)]
    for name in options:
        if name not in known:
            raise UsageError(f"evaluate has no option {name!r}; {suggest_name(name, known)}")
    chosen = task.EvalOptions(**options)
    chosen = replace(
        chosen,
        metrics=(chosen.metrics,) if isinstance(chosen.metrics, str) else chosen.metrics,
        max_samples=task.max_samples if chosen.max_samples is None else chosen.max_samples,
    )
    notes: list[str] = []
    how: Any = {"batch_size": chosen.batch_size or task.evaluation_batch_size, "progress": chosen.progress}
    model = TextModel(network, require_tokenizer(tokenizer), config, **how)
    scored = task.score_records(model, records, chosen, notes)
    return Evaluation(
        **{one.name: getattr(scored, one.name) for one in fields(scored)},
        notes=tuple(notes),
        intervals=confidence_intervals(scored.metrics, chosen.resamples),
        data_hash=hash_data(record.fields for record in records),
    )


def has_option(task: Task, name: str) -> bool:
    """Whether the evaluation of a task has an option."""
    return name in {one.name for one in fields(task.EvalOptions)}


def main_metric(config: Config, records: Sequence[Record]) -> str:
    """The metric that decides which model is better; "" if the records lack the fields of the model's task.

    For example, the records of a denoising encoder-decoder have no source and no target, so only its loss can be
    compared.
    """
    return next(iter(available_metrics(config, records)), "")


def available_metrics(config: Config, records: Sequence[Record]) -> Sequence[str]:
    """The metrics of a model, the main one first; empty if the records lack the fields of the model's task."""
    task = find_task(config)
    usable = [record for record in records if all(name in record.fields for name in task.needed_fields)]
    return task.available_metrics(config, usable) if usable else ()
