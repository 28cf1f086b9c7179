"""What a task is: the fields of its records, how it is run on texts, and how a model is judged at it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from qkv.data.records import Record
from qkv.errors import UsageError, suggest_name
from qkv.models import Config
from qkv.text import Tokenizer
from qkv.train.watch import Sample

ProgressCallback = Callable[[int, int], None]
"""Called with how many are done and how many there are."""


@dataclass(frozen=True)
class Evaluation:
    """How a model does on records: its metrics, the one that it is judged by, and some of what it made of them."""

    metrics: dict[str, float]
    samples: list[Sample]
    main: str
    num_records: int = 0  # how many were judged
    notes: tuple[str, ...] = ()  # what was left out, cut or decided on the way


@dataclass(frozen=True)
class Task:
    """One task. `run` and `evaluate` are called as those of `qkv.tasks.evaluate` call them."""

    name: str
    description: str  # in a few words, for messages
    objective: str  # what such a model learns; its records have that objective's fields (`prepare_fields`)
    fields: tuple[str, ...]  # of these, what every record needs
    available_metrics: Callable[
        [Config, Sequence[Record]], Sequence[str]
    ]  # the metrics; first what a model is judged by
    run: Callable[..., Any]
    evaluate: Callable[..., Evaluation]

    @property
    def generates(self) -> bool:
        """Whether the model writes text, token by token."""
        return self.name in ("text_to_text", "language")

    @property
    def accepts_pairs(self) -> bool:
        """Whether two texts may be read together."""
        return self.name in ("classify", "answer")


@dataclass
class UsableRecords:
    """Records that have what a task needs, and a word on those that do not."""

    records: list[Record]
    notes: list[str] = field(default_factory=list)

    @classmethod
    def select(cls, records: Sequence[Record], **needed: type | tuple[type, ...]) -> "UsableRecords":
        """Records whose fields are there and of the right kind; the others are counted and the first one is named."""
        good, first = [], ""
        for record in records:
            wrong = next((name for name, kind in needed.items() if not _has_type(record.fields.get(name), kind)), None)
            if wrong is None:
                good.append(record)
            elif not first:
                first = _describe_problem(record, wrong, needed[wrong])
        if not good:
            raise UsageError(first or "there are no records to evaluate on")
        left = len(records) - len(good)
        return cls(good, [f"{left:,} of {len(records):,} records left out: {first}"] if left else [])


def _has_type(value: Any, kind: type | tuple[type, ...]) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _describe_problem(record: Record, name: str, kind: type | tuple[type, ...]) -> str:
    kinds = {str: "text", list: "a list", int: "a number", float: "a number"}
    wanted = " or ".join(dict.fromkeys(kinds[one] for one in (kind if isinstance(kind, tuple) else (kind,))))
    if name not in record.fields:
        there = ", ".join(record.fields) or "none"
        hint = suggest_name(name, record.fields) if record.fields else ""
        close = f" ({hint})" if hint.startswith("did you mean") else ""
        return f"{record.location}: no field {name!r}{close}; its fields are: {there}"
    return f"{record.location}: field {name!r} is {type(record.fields[name]).__name__}, not {wanted}"


def require_tokenizer(tokenizer: Tokenizer | None) -> Tokenizer:
    """The tokenizer, without which nothing here can read text."""
    if tokenizer is None:
        raise UsageError("this model has no tokenizer, so it cannot read text")
    return tokenizer


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """The network in evaluation mode (no dropout), without gradients; every part of it is put back as it was."""
    training = [module for module in network.modules() if module.training]
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def select_metrics(requested: Sequence[str], available: Sequence[str], default: Sequence[str]) -> list[str]:
    """The metrics asked for by name, checked, or those that are usual; without doubles."""
    for name in requested:
        if name not in available:
            raise UsageError(f"metric = {name!r} is not one of this task's; {suggest_name(name, available)}")
    return list(dict.fromkeys(requested or default))
