"""The table of tasks, and the task of a model."""

import dataclasses
import itertools

from qkv.errors import UsageError
from qkv.models import Config
from qkv.tables import OpenTable
from qkv.tasks.starters.starter import PRETRAINING_STARTERS, Starter
from qkv.tasks.task import Task

TASKS: OpenTable[Task] = OpenTable(
    "task",
    lazy={
        "translate": "qkv.tasks.verbs.text_to_text:TRANSLATE",
        "summarise": "qkv.tasks.verbs.text_to_text:SUMMARISE",
        "complete": "qkv.tasks.verbs.complete:COMPLETE",
        "fill": "qkv.tasks.verbs.fill:FILL",
        "classify": "qkv.tasks.verbs.classify:CLASSIFY",
        "tag": "qkv.tasks.verbs.tag:TAG",
        "answer": "qkv.tasks.verbs.answer:ANSWER",
        "embed": "qkv.tasks.verbs.embed:EMBED",
        "describe": "qkv.tasks.verbs.describe:DESCRIBE",
        "ask": "qkv.tasks.verbs.ask:ASK",
        "draw": "qkv.tasks.verbs.draw:DRAW",
        "transcribe": "qkv.tasks.verbs.transcribe:TRANSCRIBE",
        "speak": "qkv.tasks.verbs.speak:SPEAK",
    },
)
PAYLOAD_TASKS = ("describe", "ask", "draw", "transcribe", "speak")
"""Tasks that only models with a front end or a back end can have; for other models, they are not imported."""


def register_task(task: Task, *, replace: bool = False) -> Task:
    """Add a task: every model of its objective supports it, in Python, on the command line and over HTTP."""
    return TASKS.register(task.name, task, replace=replace)


def find_task(config: Config) -> Task:
    """The task of a model: the task that it was trained for, or the first task that its head and family support.

    >>> from qkv.models.tables.presets import find_preset
    >>> find_task(find_preset("gpt2")).name, find_task(find_preset("bert-base")).name
    ('complete', 'fill')
    """
    if config.task is not None and config.task not in TASKS:
        raise UsageError(TASKS.describe_unknown(config.task, "the task of this model"))
    own = () if config.task is None else (TASKS[config.task],)
    if any(front_end.kind == "log-mel" for front_end in config.front_ends):  # Whisper's folders do not name the task
        own = (*own, TASKS["transcribe"])
    for task in itertools.chain(own, TASKS.values()):  # modules of tasks are imported one at a time
        if task.supports(config):
            return task
    raise UsageError(
        f"this model cannot be run on texts: there is no task for a {config.head.kind} head on the family "
        f"{config.family}; call its network with token ids instead"
    )


def supported_tasks(config: Config) -> list[Task]:
    """The tasks that a model supports, its own first."""
    has_ends = config.front_ends or config.back_ends
    possible = (TASKS[name] for name in TASKS if has_ends or name not in PAYLOAD_TASKS)
    found = [task for task in possible if task.supports(config)]
    return sorted(found, key=lambda task: task.name != config.task)


def name_task(config: Config, objective: str) -> Config:
    """Store the task's name in a config if head and family do not determine the task of this objective."""
    named = (task for task in TASKS.values() if task.objective == objective)
    own = next((one.name for one in named if one.supports(dataclasses.replace(config, task=one.name))), None)
    return dataclasses.replace(config, task=None if own is None or own == find_task(config).name else own)


def find_starters() -> dict[str, Starter]:
    """The starters of `qkv init`: of the tasks, and of the objectives that only pretrain a model for a task."""
    tasks = {
        task.starter_name or task.name: dataclasses.replace(task.starter, objective=task.objective)
        for task in TASKS.values()
        if task.starter is not None
    }
    return {**tasks, **PRETRAINING_STARTERS}
