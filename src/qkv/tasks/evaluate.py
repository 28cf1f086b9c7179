"""The tasks, which of them a model is made for, and the two things that are done with one: run it, and judge it."""

from collections.abc import Sequence
from inspect import signature
from typing import Any

from qkv.data.records import Record
from qkv.errors import UsageError, suggest_name
from qkv.models import Config, Network
from qkv.tasks.run import answer, classify, embed, fill, language, tag, text_to_text
from qkv.tasks.task import Evaluation, ProgressCallback, Task
from qkv.text import Tokenizer

PARTS = {  # name: its file, what it does, the objective that teaches it, the fields that its records need
    "text_to_text": (text_to_text, "writes a text for a text", "seq2seq", ("source", "target")),
    "language": (language, "goes on with a text", "causal_lm", ()),
    "fill": (fill, "fills gaps in a text", "masked_lm", ("text",)),
    "classify": (classify, "says the class or the score of a text", "classification", ("text",)),
    "tag": (tag, "says the tag of each word", "tagging", ("tokens", "tags")),
    "answer": (
        answer,
        "finds the answer to a question in a passage",
        "question_answering",
        ("question", "context", "answers"),
    ),
    "embed": (embed, "gives a vector for a text", "contrastive", ("first", "second")),
}
TASKS: dict[str, Task] = {
    name: Task(name, does, objective, fields, file.available_metrics, file.run, file.evaluate)
    for name, (file, does, objective, fields) in PARTS.items()
}
BY_HEAD = {"mlm": "fill", "classify": "classify", "tag": "tag", "span": "answer", "embed": "embed"}


def find_task(config: Config) -> Task:
    """The task that a model is made for, by its head and family.

    >>> from qkv.models.tables.presets import find_preset
    >>> find_task(find_preset("gpt2")).name, find_task(find_preset("bert-base")).name
    ('language', 'fill')
    """
    kind, family = config.head.kind, config.family
    if kind == "lm" and family == "seq2seq":
        return TASKS["text_to_text"]
    if kind == "lm" and family == "decoder":
        return TASKS["language"]
    if kind in BY_HEAD and family != "seq2seq":
        return TASKS[BY_HEAD[kind]]
    raise UsageError(f"a model with a {kind} head on its {family} is made for no task that can be run on texts")


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
    network: Network,
    tokenizer: Tokenizer | None,
    config: Config,
    records: Sequence[Record],
    *,
    batch_size: int = 0,
    beam: int = 1,
    progress: ProgressCallback | None = None,
    **options: Any,
) -> Evaluation:
    """How the model does on records, whose fields are those of its task's objective (`prepare_fields.FIELDS`).

    The network is put in evaluation mode and back; the same records give the same numbers. `batch_size` records are run
    at a time; 0: what suits the task.
    """
    if batch_size:
        options["batch_size"] = batch_size
    return find_task(config).evaluate(network, tokenizer, config, records, beam=beam, progress=progress, **options)


def main_metric(config: Config, records: Sequence[Record]) -> str:
    """The metric that a model would be judged by on such records; "" where they are not its task's.

    An encoder-decoder that learns to restore spoiled texts, say, has no pairs to be judged on: its loss has to do.
    """
    return next(iter(available_metrics(config, records)), "")


def available_metrics(config: Config, records: Sequence[Record]) -> Sequence[str]:
    """The metrics that a model can be judged by on such records, the main one first; none where they are another's."""
    task = find_task(config)
    usable = usable_records(task, records)
    return task.available_metrics(config, usable) if usable else ()


def usable_records(task: Task, records: Sequence[Record]) -> list[Record]:
    """Those of the records that have what a task needs."""
    return [record for record in records if all(name in record.fields for name in task.fields)]
