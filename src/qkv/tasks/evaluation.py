"""An evaluation: its options, its result, and the checks of records that all tasks share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from qkv.data.problems import InvalidRecord
from qkv.data.records import Record
from qkv.errors import UsageError, count_nouns, suggest_name
from qkv.progress import OnProgress
from qkv.tasks.metrics import ClassReport, Difference, Interval, compare_metrics
from qkv.tasks.metrics.bootstrap import DEFAULT_RESAMPLES, check_same_data
from qkv.tasks.results import format_rows
from qkv.train.watch import Sample


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """Options of every evaluation. A task may have a subclass with more."""

    batch_size: int = 0  # 0: the task's default
    metrics: Sequence[str] = ()  # names of metrics; empty: the task's default
    max_samples: int | None = None  # number of predictions to show; None: the task's default
    progress: OnProgress | None = None
    resamples: int = 0  # bootstrap resamples for confidence intervals; 0: no intervals


@dataclass(frozen=True)
class Scored:
    """The metrics of a model on records, and what to show beside them."""

    metrics: dict[str, float]  # each is a `Score`, unless it cannot be resampled
    samples: list[Sample]
    main_metric: str  # the metric that decides which model is better
    num_records: int = 0
    signatures: Mapping[str, str] = field(default_factory=dict)  # how a metric was computed, as sacreBLEU states it
    report: ClassReport | None = None  # the scores of each class, and the confusion matrix


@dataclass(frozen=True, repr=False)
class Evaluation(Scored):
    """The result of an evaluation: metrics, and some predictions. It prints as a table of the metrics."""

    notes: tuple[str, ...] = ()  # what the user should know: records left out, texts truncated
    intervals: Mapping[str, Interval] = field(default_factory=dict)  # 95 % confidence intervals of metrics
    data_hash: str = ""  # hash of the records; only evaluations with the same hash can be compared

    def compare(self, other: "Evaluation", resamples: int = DEFAULT_RESAMPLES) -> dict[str, Difference]:
        """Another model's metrics on the same records minus these, with intervals and p-values."""
        check_same_data(self, other)
        if not self.metrics.keys() & other.metrics.keys():
            raise UsageError(
                f"the evaluations have no metric in common: {', '.join(self.metrics)}, and {', '.join(other.metrics)}; "
                "evaluate both with the same metrics"
            )
        return compare_metrics(self.metrics, other.metrics, resamples)

    def __repr__(self) -> str:
        records = count_nouns(self.num_records, "record")
        return f"<Evaluation: {self.main_metric} {self.metrics[self.main_metric]:.4g}, {records}>"

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = []
        for name, value in self.metrics.items():
            ends = [f"{end:.4g}" for end in self.intervals.get(name, ())]
            rows.append((name, f"{value:.4g}", f"[{', '.join(ends)}]" if ends else ""))
        return "\n".join([count_nouns(self.num_records, "record"), *format_rows(rows), *self.notes])


def select_usable(records: Sequence[Record], notes: list[str], **needed: type | tuple[type, ...]) -> list[Record]:
    """The records that have all fields with the right types. A note counts the others."""
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
    if left_out := len(records) - len(usable):
        notes.append(f"{left_out:,} of {len(records):,} records left out: {first_problem}")
    return usable


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


def select_metrics(requested: Sequence[str], available: Sequence[str], default: Sequence[str]) -> list[str]:
    """The requested metrics, checked and without duplicates, or the default ones."""
    for name in requested:
        if name not in available:
            raise UsageError(f"metric = {name!r} is not a metric of this task; {suggest_name(name, available)}")
    return list(dict.fromkeys(requested or default))


def select_decodable(records: Sequence[Record], notes: list[str]) -> list[Record]:
    """The records whose images and sounds can be decoded. A note counts the others and names the first."""
    problems = [find_bad_file(record) for record in records]
    usable = [record for record, problem in zip(records, problems, strict=True) if not problem]
    first = next(filter(None, problems), "")
    if not usable and first:
        raise UsageError(first)
    if first:
        notes.append(f"{len(records) - len(usable):,} of {len(records):,} records left out: {first}")
    return usable


def find_bad_file(record: Record) -> str:
    """Why an image or a sound of a record cannot be decoded; "" if all can."""
    from qkv.data.modalities import MODALITIES

    for name, value in record.fields.items():
        format = MODALITIES["audio" if name == "audio" else "image"].payload
        if isinstance(value, bytes) and format is not None:
            try:
                format.store(value)
            except InvalidRecord as invalid:
                return f"{record.location}: {invalid.reason}"
    return ""
