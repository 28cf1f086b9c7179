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
from qkv.tasks.metrics.bootstrap import hash_data
from qkv.tasks.run import answer, classify, embed, fill, language, tag, text_to_text
from qkv.tasks.task import Evaluation, EvaluationOptions, Task, TextModel, require_tokenizer
from qkv.text import Tokenizer

EMBED_POOLED = "embed with pooling="
TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            name="text_to_text",
            module=text_to_text,
            description="generates a text for a text",
            objective="seq2seq",
            fields=("source", "target"),
            calls=("translate", "summarise", "generate", "score"),
            batch_size=64,
            max_samples=8,
            generates=True,
        ),
        Task(
            name="language",
            module=language,
            description="continues a text",
            objective="causal_lm",
            calls=("complete", "chat", "generate", "score", EMBED_POOLED),
            batch_size=16,
            max_samples=3,
            generates=True,
        ),
        Task(
            name="fill",
            module=fill,
            description="fills in masked words",
            objective="masked_lm",
            fields=("text",),
            calls=("fill", EMBED_POOLED),
            max_samples=3,
        ),
        Task(
            name="classify",
            module=classify,
            description="predicts the class or the score of a text",
            objective="classification",
            fields=("text",),
            calls=("classify", EMBED_POOLED),
            max_samples=8,
            accepts_pairs=True,
        ),
        Task(
            name="tag",
            module=tag,
            description="predicts the tag of each word",
            objective="tagging",
            fields=("tokens", "tags"),
            calls=("tag", EMBED_POOLED),
            reads_words=True,
        ),
        Task(
            name="answer",
            module=answer,
            description="finds the answer to a question in a passage",
            objective="question_answering",
            fields=("question", "context", "answers"),
            calls=("answer", EMBED_POOLED),
            accepts_pairs=True,
        ),
        Task(
            name="embed",
            module=embed,
            description="computes an embedding of a text",
            objective="contrastive",
            fields=("first", "second"),
            calls=("embed",),
        ),
    )
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
    known = [one.name for one in signature(task.module.run).parameters.values() if one.kind is one.KEYWORD_ONLY]
    for name in () if task.generates else options:
        if name not in known:
            raise UsageError(f"a model that {task.description} has no option {name!r}; {suggest_name(name, known)}")
    results: Sequence[Any] = task.module.run(TextModel(network, require_tokenizer(tokenizer), config), texts, **options)
    return results


def check_texts(task: Task, texts: Sequence[Any]) -> None:
    """Raise an error if a text is not of a type that the task reads."""
    for number, text in enumerate(texts):
        is_list = isinstance(text, list | tuple) and all(isinstance(one, str) for one in text)
        is_known = task.reads_words or (task.accepts_pairs and len(text) == 2) if is_list else isinstance(text, str)
        if not is_known:
            wanted, advice = "one text at a time", "give a list of strings"
            if task.reads_words:
                wanted = "words"
            elif task.accepts_pairs:
                is_pair = isinstance(text, list | tuple) and len(text) == 2
                wanted, advice = "one text or two texts", f"give {'two strings' if is_pair else 'a string, or two'}"
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
        metrics=(chosen.metrics,) if isinstance(chosen.metrics, str) else chosen.metrics,
        max_samples=task.max_samples if chosen.max_samples is None else chosen.max_samples,
    )
    found = task.module.evaluate(TextModel(network, require_tokenizer(tokenizer), config), records, chosen)
    intervals = confidence_intervals(found.metrics, chosen.resamples)
    return replace(found, intervals=intervals, data_hash=hash_data(record.fields for record in records))


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
    return task.module.available_metrics(config, usable) if usable else ()
