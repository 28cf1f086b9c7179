"""What a task is: the fields of its records, how a model is run on texts, and how it is evaluated."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from qkv.data.records import Record
from qkv.errors import UsageError, suggest_name
from qkv.models import Config, Network
from qkv.progress import OnProgress
from qkv.text import Tokenizer
from qkv.train.watch import Sample


@dataclass(frozen=True)
class Evaluation:
    """How well a model does on records: its metrics, the main one of them, and some predictions."""

    metrics: dict[str, float]
    samples: list[Sample]
    main_metric: str  # the metric that decides which model is better
    num_records: int = 0
    notes: tuple[str, ...] = ()  # what was left out, truncated or decided


@dataclass(frozen=True)
class EvaluationOptions:
    """How a model is evaluated; defaults leave the choice to the task. Some options are for one task only."""

    batch_size: int = 0  # 0: the task's default
    metrics: Sequence[str] = ()  # by name; none: the usual ones
    max_samples: int | None = None  # predictions to show; None: the task's default
    progress: OnProgress | None = None
    beam: int = 1  # text_to_text
    max_tokens: int = 0  # text_to_text: new tokens; 0: by the longest target
    generation: Mapping[str, Any] = field(default_factory=dict)  # text_to_text: more fields of `GenerationOptions`
    max_length: int = 0  # language, fill: tokens of a window; 0: the model's positions
    add_bos_eos: bool | None = None  # language: around each text; None: if the model has an EOS token
    mask_prob: float = 0.15  # fill
    no_answer: bool | None = None  # answer: whether "no answer" is allowed; None: if a record has none

    def with_defaults(self, *, batch_size: int, max_samples: int) -> "EvaluationOptions":
        """The options with a task's defaults where there is no choice."""
        samples = max_samples if self.max_samples is None else self.max_samples
        return replace(self, batch_size=self.batch_size or batch_size, max_samples=samples)


class EvaluateFunction(Protocol):
    """The signature of every task's `evaluate`."""

    def __call__(
        self,
        network: Network,
        tokenizer: Tokenizer | None,
        config: Config,
        records: Sequence[Record],
        options: EvaluationOptions,
    ) -> Evaluation:
        """The metrics of a model on records."""
        ...


@dataclass(frozen=True)
class Task:
    """A task. Its functions are in a file of `qkv.tasks.run`, and are called through `qkv.tasks.evaluate`."""

    name: str
    description: str  # what a model does, for messages: "a model that …"
    objective: str  # the key of `OBJECTIVES` whose records have the task's fields
    fields: tuple[str, ...]  # that every record needs for an evaluation
    run: Callable[..., Any]
    evaluate: EvaluateFunction
    available_metrics: Callable[[Config, Sequence[Record]], Sequence[str]]  # the main one first

    @property
    def generates(self) -> bool:
        """Whether the model generates text."""
        return self.name in ("text_to_text", "language")

    @property
    def accepts_pairs(self) -> bool:
        """Whether the model can read two texts together."""
        return self.name in ("classify", "answer")


@dataclass
class UsableRecords:
    """Records that have what a task needs, and a note about the others."""

    records: list[Record]
    notes: list[str] = field(default_factory=list)

    @classmethod
    def select(cls, records: Sequence[Record], **needed: type | tuple[type, ...]) -> "UsableRecords":
        """The records that have all fields with the right types; the others are counted and the first one is named."""
        usable: list[Record] = []
        first_problem = ""
        for record in records:
            wrong = next((name for name, kind in needed.items() if not _has_type(record.fields.get(name), kind)), None)
            if wrong is None:
                usable.append(record)
            elif not first_problem:
                first_problem = _describe_problem(record, wrong, needed[wrong])
        if not usable:
            raise UsageError(first_problem or "there are no records to evaluate on")
        left_out = len(records) - len(usable)
        note = f"{left_out:,} of {len(records):,} records left out: {first_problem}"
        return cls(usable, [note] if left_out else [])


def _has_type(value: Any, kind: type | tuple[type, ...]) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _describe_problem(record: Record, name: str, kind: type | tuple[type, ...]) -> str:
    names = {str: "text", list: "a list", int: "a number", float: "a number"}
    wanted = " or ".join(dict.fromkeys(names[one] for one in (kind if isinstance(kind, tuple) else (kind,))))
    if name not in record.fields:
        hint = suggest_name(name, record.fields) if record.fields else ""
        close = f" ({hint})" if hint.startswith("did you mean") else ""
        return f"{record.location}: no field {name!r}{close}; its fields are: {', '.join(record.fields) or 'none'}"
    return f"{record.location}: field {name!r} is {type(record.fields[name]).__name__}, not {wanted}"


def require_tokenizer(tokenizer: Tokenizer | None) -> Tokenizer:
    """The tokenizer, or an error if the model has none."""
    if tokenizer is None:
        raise UsageError("this model has no tokenizer, so it cannot read text; use one that has, or give token ids")
    return tokenizer


def select_metrics(requested: Sequence[str], available: Sequence[str], default: Sequence[str]) -> list[str]:
    """The requested metrics, checked and without duplicates, or the default ones."""
    for name in requested:
        if name not in available:
            raise UsageError(f"metric = {name!r} is not a metric of this task; {suggest_name(name, available)}")
    return list(dict.fromkeys(requested or default))
