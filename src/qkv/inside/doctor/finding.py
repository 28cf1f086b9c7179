"""The result of one check of `qkv doctor`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Status = Literal["ok", "warning", "failed", "skipped"]


@dataclass(frozen=True)
class Finding:
    """What a check found, and what to do about it."""

    check: str
    status: Status
    summary: str  # what was measured, in one sentence
    advice: str = ""  # what to do next; empty if there is nothing to do
    values: Mapping[str, Any] = field(default_factory=dict)  # the measured numbers, for --json

    def to_dict(self) -> dict[str, Any]:
        """The finding for JSON."""
        return asdict(self)


def passed(check: str, summary: str, **values: Any) -> Finding:
    """A check that found no problem."""
    return Finding(check, "ok", summary, "", values)


def failed(check: str, summary: str, advice: str, **values: Any) -> Finding:
    """A check that found an error. The doctor then ends with a non-zero exit status."""
    return Finding(check, "failed", summary, advice, values)


def warned(check: str, summary: str, advice: str, **values: Any) -> Finding:
    """A check that found something unusual, which may be intended."""
    return Finding(check, "warning", summary, advice, values)


def skipped(check: str, reason: str, advice: str = "") -> Finding:
    """A check that does not apply."""
    return Finding(check, "skipped", reason, advice)
