"""All tasks; find the task of a model, run the model, and evaluate it."""

from collections.abc import Sequence
from dataclasses import fields, replace
from inspect import signature
from typing import Any

from qkv.data.objectives.table import OBJECTIVES
from qkv.data.records import Record
from qkv.errors import UsageError, shorten, suggest_name
from qkv.models import Config, Network
from qkv.tasks.metrics import confidence_intervals
from qkv.tasks.run import answer, classify, embed, fill, language, tag, text_to_text
from qkv.tasks.task import Evaluation, EvaluationOptions, Task, TextModel, require_tokenizer
from qkv.text import Tokenizer

# task name → (module, what a model of this task does, the fields, batch size and number of samples of an evaluation)
TASK_FILES: dict[str, tuple[Any, str, tuple[str, ...], int, int]] = {
    "text_to_text": (text_to_text, "generates a text for a text", ("source", "target"), 64, 8),
    "language": (language, "continues a text", (), 16, 3),
    "fill": (fill, "fills in masked words", ("text",), 32, 3),
    "classify": (classify, "predicts the class or the score of a text", ("text",), 32, 8),
    "tag": (tag, "predicts the tag of each word", ("tokens", "tags"), 32, 5),
    "answer": (answer, "finds the answer to a question in a passage", ("question", "context", "answers"), 32, 5),
    "embed": (embed, "computes an embedding of a text", ("first", "second"), 32, 5),
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
        batch_size,
        max_samples,
    )
    for name, (file, description, needed, batch_size, max_samples) in TASK_FILES.items()
}


def find_task(config: Config) -> Task:
    """The task of a model, which its head and family determine.

    >>> from qkv.models.tables.presets import find_preset
    >>> find_task(find_preset("gpt2")).name, find_task(find_preset("bert-base")).name
    ('language', 'fill')
    """
    for spec in OBJECTIVES.values():
        # A decoder can run the tasks of an encoder, even those that it cannot be trained for.
        families = {*spec.families, *(["decoder"] if spec.families == ("encoder",) else [])}
        if spec.head == config.head.kind and config.family in families:
            return TASKS[spec.task]
    raise UsageError(
        f"this model cannot be run on texts: there is no task for a {config.head.kind} head on the family "
        f"{config.family}; call its network with token ids instead"
    )


def run(
    network: Network, tokenizer: Tokenizer | None, config: Config, texts: Sequence[Any], **options: Any
) -> Sequence[Any]:
    """Run a model on each text, in order; results and options are those of its task's `run`."""
    task = find_task(config)
    check_texts(task, texts)
    check_pairs(config, texts)
    known = [one.name for one in signature(task.run).parameters.values() if one.kind is one.KEYWORD_ONLY]
    for name in () if task.generates else options:
        if name not in known:
            raise UsageError(f"a model that {task.description} has no option {name!r}; {suggest_name(name, known)}")
    results: Sequence[Any] = task.run(TextModel(network, require_tokenizer(tokenizer), config), texts, **options)
    return results


def check_texts(task: Task, texts: Sequence[Any]) -> None:
    """Raise an error if a text is not of a type that the task reads."""
    for number, text in enumerate(texts):
        is_list = isinstance(text, list | tuple) and all(isinstance(one, str) for one in text)
        is_known = task.reads_words or (task.accepts_pairs and len(text) == 2) if is_list else isinstance(text, str)
        if not is_known:
            wanted = (
                "words" if task.reads_words else "one text or two texts" if task.accepts_pairs else "one text at a time"
            )
            advice = "give two strings" if is_list and task.accepts_pairs else "give a list of strings"
            raise UsageError(
                f"text {number + 1} is {shorten(repr(text), 60)} ({type(text).__name__}), but a model that "
                f"{task.description} reads {wanted}; {advice}"
            )


def check_pairs(config: Config, texts: Sequence[Any]) -> None:
    """Raise an error if a classifier that was trained on single texts reads a pair, or the other way round."""
    if config.head.kind != "classify" or config.reads_pairs is None:
        return
    for number, text in enumerate(texts):
        if isinstance(text, str) == config.reads_pairs:
            given = f"text {number + 1} is {shorten(repr(text), 60)}"
            if config.reads_pairs:
                raise UsageError(
                    f"{given}, a single text, but this model was trained on pairs of texts; give two texts: "
                    "m.classify((first, second)), or on the command line one line with a tab between them"
                )
            raise UsageError(
                f"{given}, a pair of texts, but this model was trained on single texts; give one string (on the "
                "command line, a tab separates two texts: replace it by a space)"
            )


def evaluate(
    network: Network, tokenizer: Tokenizer | None, config: Config, records: Sequence[Record], **options: Any
) -> Evaluation:
    """Evaluate a model on records, which have the fields of its task's objective.

    The options are the fields of `EvaluationOptions`. The same records always give the same numbers. The network keeps
    its mode (training or evaluation).
    """
    known = [field.name for field in fields(EvaluationOptions)]
    for name in options:
        if name not in known:
            raise UsageError(f"evaluate has no option {name!r}; {suggest_name(name, known)}")
    task, chosen = find_task(config), EvaluationOptions(**options)
    chosen = replace(
        chosen,
        batch_size=chosen.batch_size or task.batch_size,
        max_samples=task.max_samples if chosen.max_samples is None else chosen.max_samples,
    )
    found = task.evaluate(TextModel(network, require_tokenizer(tokenizer), config), records, chosen)
    return replace(found, intervals=confidence_intervals(found.metrics, chosen.resamples))


def main_metric(config: Config, records: Sequence[Record]) -> str:
    """The metric that decides which model is better; "" if the records lack the fields of the model's task.

    For example, the records of a denoising encoder-decoder have no source and no target, so only its loss can be
    compared.
    """
    return next(iter(available_metrics(config, records)), "")


def available_metrics(config: Config, records: Sequence[Record]) -> Sequence[str]:
    """The metrics of a model, the main one first; empty if the records lack the fields of the model's task."""
    task = find_task(config)
    usable = [record for record in records if all(name in record.fields for name in task.fields)]
    return task.available_metrics(config, usable) if usable else ()
