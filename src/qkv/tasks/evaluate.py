"""The tasks, which of them a model is made for, and how a model is run and evaluated."""

from collections.abc import Sequence
from dataclasses import fields
from inspect import signature
from typing import Any

from qkv.data.objectives.table import OBJECTIVES
from qkv.data.records import Record
from qkv.errors import UsageError, suggest_name
from qkv.models import Config, Network
from qkv.tasks.run import answer, classify, embed, fill, language, tag, text_to_text
from qkv.tasks.task import Evaluation, EvaluationOptions, Task
from qkv.text import Tokenizer

# name: its file, what a model does, the fields that an evaluation needs
TASK_FILES: dict[str, tuple[Any, str, tuple[str, ...]]] = {
    "text_to_text": (text_to_text, "generates a text for a text", ("source", "target")),
    "language": (language, "continues a text", ()),
    "fill": (fill, "fills in masked words", ("text",)),
    "classify": (classify, "predicts the class or the score of a text", ("text",)),
    "tag": (tag, "predicts the tag of each word", ("tokens", "tags")),
    "answer": (answer, "finds the answer to a question in a passage", ("question", "context", "answers")),
    "embed": (embed, "computes an embedding of a text", ("first", "second")),
}
TASKS: dict[str, Task] = {
    name: Task(
        name,
        description,
        next(kind for kind, spec in OBJECTIVES.items() if spec.task == name),
        needed,
        file.run,
        file.evaluate,
        file.available_metrics,
    )
    for name, (file, description, needed) in TASK_FILES.items()
}


def find_task(config: Config) -> Task:
    """The task that a model is made for, by its head and family.

    >>> from qkv.models.tables.presets import find_preset
    >>> find_task(find_preset("gpt2")).name, find_task(find_preset("bert-base")).name
    ('language', 'fill')
    """
    for spec in OBJECTIVES.values():
        # A decoder can be run on an encoder's tasks, even where it cannot be trained for them.
        families = {*spec.families, *(["decoder"] if spec.families == ("encoder",) else [])}
        if spec.head == config.head.kind and config.family in families:
            return TASKS[spec.task]
    raise UsageError(
        f"a model with a {config.head.kind} head on its {config.family} is made for no task that can be run on texts"
    )


def run(
    network: Network, tokenizer: Tokenizer | None, config: Config, texts: Sequence[Any], **options: Any
) -> Sequence[Any]:
    """What the model makes of each text, in order; results and options are those of its task's `run`."""
    task = find_task(config)
    for number, text in enumerate(texts):
        if not isinstance(text, str | list | tuple) or (isinstance(text, tuple) and not task.accepts_pairs):
            raise UsageError(
                f"text {number + 1} is {type(text).__name__}: a model that {task.description} reads one text at a time"
            )
    known = [one.name for one in signature(task.run).parameters.values() if one.kind is one.KEYWORD_ONLY]
    for name in () if task.generates else options:
        if name not in known:
            raise UsageError(f"a model that {task.description} has no option {name!r}; {suggest_name(name, known)}")
    results: Sequence[Any] = task.run(network, tokenizer, config, texts, **options)
    return results


def evaluate(
    network: Network, tokenizer: Tokenizer | None, config: Config, records: Sequence[Record], **options: Any
) -> Evaluation:
    """The metrics of a model on records, whose fields are those of its task's objective.

    The options are the fields of `EvaluationOptions`. The same records give the same numbers, and the network is left
    in the mode (training or evaluation) in which it was.
    """
    known = [field.name for field in fields(EvaluationOptions)]
    for name in options:
        if name not in known:
            raise UsageError(f"unknown option {name!r}; {suggest_name(name, known)}")
    return find_task(config).evaluate(network, tokenizer, config, records, EvaluationOptions(**options))


def main_metric(config: Config, records: Sequence[Record]) -> str:
    """The metric that decides which model is better on such records; "" if they are not its task's.

    For example, an encoder-decoder that learns to denoise texts has no source and target to be evaluated on: only its
    loss can be compared.
    """
    return next(iter(available_metrics(config, records)), "")


def available_metrics(config: Config, records: Sequence[Record]) -> Sequence[str]:
    """The metrics of a model on such records, the main one first; none if they are another task's."""
    task = find_task(config)
    usable = [record for record in records if all(name in record.fields for name in task.fields)]
    return task.available_metrics(config, usable) if usable else ()
