"""The result of one check of `qkv doctor`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Status = Literal["ok", "warning", "failed", "skipped"]


@dataclass(frozen=True)
class Finding:
    """What a check found, and what to do about it."""

    status: Status
    summary: str  # what was measured, in one sentence
    advice: str = ""  # what to do next; empty if there is nothing to do
    values: Mapping[str, Any] = field(default_factory=dict)  # the measured numbers, for --json
    check: str = ""  # the name of the check

    def to_dict(self) -> dict[str, Any]:
        """The finding for JSON."""
        return asdict(self)


def passed(summary: str, **values: Any) -> Finding:
    """A check that found no problem."""
    return Finding("ok", summary, "", values)


def failed(summary: str, advice: str, **values: Any) -> Finding:
    """A check that found an error. The doctor then ends with a non-zero exit status."""
    return Finding("failed", summary, advice, values)


def warned(summary: str, advice: str, **values: Any) -> Finding:
    """A check that found something unusual, which may be intended."""
    return Finding("warning", summary, advice, values)


def skipped(reason: str, advice: str = "") -> Finding:
    """A check that does not apply."""
    return Finding("skipped", reason, advice)
