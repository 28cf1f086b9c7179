"""The definition of a task, and what all tasks share: options, results, and checks of records."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Protocol

from qkv.data.records import Record
from qkv.errors import UsageError, suggest_name
from qkv.models import Config, Network
from qkv.progress import OnProgress
from qkv.tasks.metrics import ClassReport, Difference, Interval, compare_metrics
from qkv.tasks.metrics.bootstrap import DEFAULT_RESAMPLES, check_same_data
from qkv.tasks.results import format_rows
from qkv.text import Tokenizer
from qkv.train.watch import Sample


@dataclass(frozen=True, repr=False)
class Evaluation:
    """The result of an evaluation: metrics, and some predictions. It prints as a table of the metrics."""

    metrics: dict[str, float]  # each is a `Score`, unless it cannot be resampled
    samples: list[Sample]
    main_metric: str  # the metric that decides which model is better
    num_records: int = 0
    notes: tuple[str, ...] = ()  # what the user should know: records left out, texts truncated
    signatures: Mapping[str, str] = field(default_factory=dict)  # how a metric was computed, as sacreBLEU states it
    report: ClassReport | None = None  # the scores of each class, and the confusion matrix
    intervals: Mapping[str, Interval] = field(default_factory=dict)  # 95 % confidence intervals of metrics
    data_hash: str = ""  # of the records; evaluations of other records cannot be compared

    def compare(self, other: "Evaluation", resamples: int = DEFAULT_RESAMPLES) -> dict[str, Difference]:
        """The metrics of another model on the same records minus those of this one, with intervals and p-values."""
        check_same_data(self, other)
        if not self.metrics.keys() & other.metrics.keys():
            raise UsageError(
                f"the evaluations have no metric in common: {', '.join(self.metrics)}, and {', '.join(other.metrics)}; "
                "evaluate both with the same metrics"
            )
        return compare_metrics(self.metrics, other.metrics, resamples)

    def __repr__(self) -> str:
        return f"<Evaluation: {self.main_metric} {self.metrics[self.main_metric]:.4g}, {self.num_records:,} records>"

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = []
        for name, value in self.metrics.items():
            ends = [f"{end:.4g}" for end in self.intervals.get(name, ())]
            rows.append((name, f"{value:.4g}", f"[{', '.join(ends)}]" if ends else ""))
        return "\n".join([f"{self.num_records:,} records", *format_rows(rows), *self.notes])


@dataclass(frozen=True)
class EvaluationOptions:
    """Options of an evaluation. Some apply to one task only, which their comment names."""

    batch_size: int = 0  # 0: the task's default
    metrics: Sequence[str] = ()  # names of metrics; empty: the task's default
    max_samples: int | None = None  # number of predictions to show; None: the task's default
    progress: OnProgress | None = None
    resamples: int = 0  # of the bootstrap, for confidence intervals; 0: none
    beam: int = 1  # text_to_text: number of beams
    max_tokens: int = 0  # text_to_text: maximum of new tokens; 0: derived from the longest target
    generation: Mapping[str, Any] = field(default_factory=dict)  # text_to_text: other fields of `GenerationOptions`
    max_length: int = 0  # language, fill: tokens of a window; 0: the model's number of positions
    add_bos_eos: bool | None = None  # language: add BOS and EOS to each text; None: yes if the model has an EOS token
    mask_prob: float = 0.15  # fill: probability of masking a token
    check_classes: bool = True  # classify, tag: raise an error if none of the labels or tags is a class of the model
    no_answer: bool | None = None  # answer: allow "no answer"; None: yes if some record has no answer


@dataclass(frozen=True)
class TextModel:
    """A network with its config and tokenizer, which every task needs."""

    network: Network
    tokenizer: Tokenizer
    config: Config


class TaskModule(Protocol):
    """The functions that every task's file in `qkv.tasks.run` has."""

    @property
    def run(self) -> Callable[..., Any]:
        """Run a model on texts; the options depend on the task."""

    def evaluate(self, model: TextModel, records: Sequence[Record], options: EvaluationOptions) -> Evaluation:
        """Evaluate a model on records."""

    def available_metrics(self, config: Config, records: Sequence[Record]) -> Sequence[str]:
        """The metrics of a model on these records, the main one first."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A row of `qkv.tasks.evaluate.TASKS`."""

    name: str
    module: TaskModule
    description: str  # completes "a model that …" in messages
    objective: str  # the key of `OBJECTIVES` whose records have the task's fields
    fields: tuple[str, ...] = ()  # the fields that every record needs for an evaluation
    calls: tuple[str, ...]  # the methods of `Model` that a model of this task supports
    batch_size: int = 32  # of an evaluation, by default
    max_samples: int = 5  # predictions that an evaluation shows, by default
    generates: bool = False  # the model generates text
    accepts_pairs: bool = False  # the model can read two texts together
    reads_words: bool = False  # a tuple is the words of one text, and not a pair of texts

    def list_calls(self) -> str:
        """The calls, for an error message."""
        return ", ".join(f"m.{name}" for name in self.calls)


def select_usable(records: Sequence[Record], **needed: type | tuple[type, ...]) -> tuple[list[Record], list[str]]:
    """The records that have all fields with the right types, and a note that counts the others."""
    usable: list[Record] = []
    first_problem = ""
    for record in records:
        wrong = next((name for name, kind in needed.items() if not _has_type(record.fields.get(name), kind)), None)
        if wrong is None:
            usable.append(record)
        elif not first_problem:
            first_problem = _describe_problem(record, wrong, needed[wrong])
    if not usable:
        raise UsageError(first_problem or "there are no records to evaluate the model on; give a file that has some")
    left_out = len(records) - len(usable)
    note = f"{left_out:,} of {len(records):,} records left out: {first_problem}"
    return usable, [note] if left_out else []


def _has_type(value: Any, kind: type | tuple[type, ...]) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _describe_problem(record: Record, name: str, kind: type | tuple[type, ...]) -> str:
    names = {str: "text", list: "a list", int: "a number", float: "a number"}
    wanted = " or ".join(dict.fromkeys(names[one] for one in (kind if isinstance(kind, tuple) else (kind,))))
    if name not in record.fields:
        hint = suggest_name(name, record.fields) if record.fields else ""
        close = f" ({hint})" if hint.startswith("did you mean") else ""
        return f"{record.location}: no field {name!r}{close}; its fields are: {', '.join(record.fields) or 'none'}"
    return f"{record.location}: field {name!r} is {type(record.fields[name]).__name__}, but must be {wanted}"


def require_tokenizer(tokenizer: Tokenizer | None) -> Tokenizer:
    """The tokenizer, or an error if the model has none."""
    if tokenizer is None:
        raise UsageError(
            "this model has no tokenizer, so it cannot read text; use a model with a tokenizer, or pass token ids"
        )
    return tokenizer


def check_count(name: str, value: int, minimum: int = 1) -> None:
    """Raise an error if a number of results or tokens is not an integer or too small."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < minimum:
        raise UsageError(f"{name} = {value!r}: must be an integer of at least {minimum}")


def check_flag(name: str, value: bool | None) -> None:
    """Raise an error if a flag is neither true nor false, such as the text "no", which Python takes for true."""
    if value is not None and not isinstance(value, bool):
        raise UsageError(f"{name} = {value!r}: must be True or False")


def select_metrics(requested: Sequence[str], available: Sequence[str], default: Sequence[str]) -> list[str]:
    """The requested metrics, checked and without duplicates, or the default ones."""
    for name in requested:
        if name not in available:
            raise UsageError(f"metric = {name!r} is not a metric of this task; {suggest_name(name, available)}")
    return list(dict.fromkeys(requested or default))
