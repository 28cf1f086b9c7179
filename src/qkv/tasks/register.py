"""`register`: one way to add rows to the tables of qkv from your own package."""

from collections.abc import Callable, Collection
from importlib import import_module
from typing import Any

from qkv.errors import UsageError
from qkv.tables import OpenTable
from qkv.tasks.scorer import METRICS, Metric, MetricRow
from qkv.tasks.table import TASKS

KINDS = OpenTable[str](
    "kind",
    {
        "optimizer": "qkv.train.tables:register_optimizer",
        "schedule": "qkv.train.tables:register_schedule",
        "tracker": "qkv.train.tables:register_tracker",
        "objective": "qkv.data.objectives.table:register_objective",
        "metric": "qkv.tasks.register:register_metric",
        "reader": "qkv.data.readers:register_reader",
        "tokenizer": "qkv.text.kinds:register_tokenizer",
        "front end": "qkv.blocks.front_ends:register_front_end",
        "back end": "qkv.blocks.back_ends:register_back_end",
        "decoding backend": "qkv.decode.backend:register_backend",
        "task": "qkv.tasks.table:register_task",
    },
)
"""The function that registers a row of each kind."""
NAMED_BY_ROW = {"objective": "name", "task": "name", "front end": "kind", "back end": "kind"}
"""The kinds whose rows state their own name, and the attribute that has it."""


def register(kind: str, name: str, *row: Any, **options: Any) -> None:
    """Add a row of your own to a table of qkv: recipes and calls can then name it. For parts, call `register_part`.

    kind        row and options                                                     named by
    optimizer   make, state: functions of an `OptimizerSetup`, of a parameter       train.optimizer
    schedule    decay_factor: a function of `[train]`, step, spent fraction         train.schedule
    tracker     make: a function of the run folder and the recipe                   train.trackers
    objective   an `ObjectiveSpec`                                                  objective.kind
    metric      compute: a function of predicted and expected values; tasks=(…)     train.metric, qkv eval --metric
    reader      read: a function that yields records; extensions=(…)                data.format
    tokenizer   train: a function of texts and options                              tokenizer.kind
    front end   a `FrontEndConfig` class and a module class                         Config(front_ends=…)
    back end    a `BackEndConfig` class and a module class                          Config(back_ends=…)
    decoding backend    a `Backend` of `generate`                                   each call that it supports
    task        a `Task`                                                            qkv init, m.<name>, POST /<name>

    `replace=True` allows the name of an earlier call. The names of built-in rows cannot be used.
    """
    module, _, function = KINDS.find(kind, "kind").partition(":")
    add: Callable[..., Any] = getattr(import_module(module), function)
    if kind not in NAMED_BY_ROW:
        add(name, *row, **options)
        return
    own_name = getattr(row[0], NAMED_BY_ROW[kind], None) if row else None
    if own_name != name:
        raise UsageError(f"the {kind} {name!r} has the name {own_name!r}; register it with its own name")
    add(*row, **options)


def register_metric(name: str, compute: Metric, *, tasks: Collection[str], replace: bool = False) -> None:
    """Add a metric of tasks that predict something for each record. A higher value is better."""
    names = (tasks,) if isinstance(tasks, str) else tuple(tasks)
    for task in names:
        row = TASKS.find(task, "tasks")
        if not row.scorers:
            raise UsageError(f"the task {task!r} has no prediction for each record, so no metric can compare them")
        if name not in METRICS and name in row.list_metrics():
            raise UsageError(f"the task {task!r} has a metric {name!r}; choose another name")
    METRICS.register(name, MetricRow(compute, names), replace=replace)
