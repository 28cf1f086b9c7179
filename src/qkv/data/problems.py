"""Bad data: counted, named with file and line, and capped.

Real files hold broken lines. Stopping at the first one wastes a night; dropping them in silence thins the data
unseen. So every reader and encoder reports here, in one of three ways:

- `skip`: one record cannot be used and is left out;
- `note`: something unusual was handled and nothing is lost (a byte-order mark, Windows line ends, blank lines);
- `broken`: a file is lost from here on, and nobody can know how much was in it (a gzip that ends early).

The run stops when more than `max_bad` of the records seen were skipped (1 % unless told otherwise): at the end, where
the share is exact, or earlier once `SETTLED` records have been seen. A broken file stops it at once, because the
share that was lost is unknown; `max_bad=1` accepts everything and only counts, which is how `qkv data` lists all
there is.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from qkv.data.records import FileLocation
from qkv.errors import QkvError

Severity = Literal["bad", "broken", "note"]

MIN_RECORDS_TO_JUDGE = 10_000  # records after which a share is taken seriously while reading


class InvalidRecord(Exception):
    """A record that cannot be encoded. An `Encode` returns it in the record's place in its list.

    >>> InvalidRecord("the label 'maybe' is not one of: no, yes").reason
    "the label 'maybe' is not one of: no, yes"
    """

    def __init__(self, reason: str, category: str = "not encodable"):
        super().__init__(reason)
        self.reason = reason
        self.category = category


class TooManyProblems(QkvError):
    """More of the data is unusable than the caller accepts."""


@dataclass
class ProblemCategory:
    """All problems of one kind: how many, in which files, and the first few in full."""

    name: str
    severity: Severity
    count: int = 0
    files: dict[str, int] = field(default_factory=dict)
    samples: list[tuple[FileLocation, str]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        first = [{"file": where.file, "line": where.line, "reason": reason} for where, reason in self.samples]
        return {"kind": self.name, "severity": self.severity, "count": self.count, "files": self.files, "first": first}


@dataclass(frozen=True)
class ProblemSummary:
    """What went wrong, for a person (`str`) and for a program (`to_dict`)."""

    num_seen: int
    num_invalid: int
    max_invalid_fraction: float
    categories: tuple[ProblemCategory, ...]

    @property
    def invalid_fraction(self) -> float:
        return self.num_invalid / self.num_seen if self.num_seen else 0.0

    def to_dict(self) -> dict[str, Any]:
        kinds = [kind.to_dict() for kind in self.categories]
        return {
            "seen": self.num_seen,
            "bad": self.num_invalid,
            "share": self.invalid_fraction,
            "max_bad": self.max_invalid_fraction,
            "kinds": kinds,
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        limit = f"; the limit is {_format_percent(self.max_invalid_fraction)}" if self.max_invalid_fraction < 1 else ""
        share = f" ({_format_percent(self.invalid_fraction)}{limit})" if self.num_invalid else ""
        yield f"{self.num_invalid:,} of {self.num_seen:,} records could not be used{share}"
        for kind in self.categories:
            place = f"in {len(kind.files):,} files" if len(kind.files) > 1 else f"in {next(iter(kind.files))}"
            handled = ", handled" if kind.severity == "note" else ""
            yield f"  {kind.name}: {kind.count:,} {place}{handled}"
            shown = kind.samples[:1] if kind.severity == "note" else kind.samples
            yield from (f"    {where}: {reason}" for where, reason in shown)
            if kind.severity != "note" and kind.count > len(shown):
                yield f"    … and {kind.count - len(shown):,} more"


class Problems:
    """Counts and names bad data; raises `TooManyProblems` when the share is above the limit.

    >>> problems = Problems(max_invalid_fraction=0.5)
    >>> problems.add_seen(10)
    >>> problems.skip("broken JSON", FileLocation("train.jsonl", 3), "expected ',' at column 9")
    >>> print(problems.summary())
    1 of 10 records could not be used (10 %; the limit is 50 %)
      broken JSON: 1 in train.jsonl
        train.jsonl:3: expected ',' at column 9
    >>> problems.finish()
    """

    def __init__(self, max_invalid_fraction: float = 0.01, max_samples: int = 5):
        if not 0 <= max_invalid_fraction <= 1:
            raise QkvError(f"max_bad is a share between 0 and 1, not {max_invalid_fraction}")
        self.max_invalid_fraction = max_invalid_fraction
        self.max_samples = max_samples  # examples of each kind kept in full
        self.num_seen = 0
        self.num_invalid = 0
        self.categories: dict[str, ProblemCategory] = {}

    def add_seen(self, num_records: int = 1) -> None:
        """Records come by, good or bad; a reader counts each once, before it knows."""
        self.num_seen += num_records

    def skip(self, category: str, location: FileLocation, reason: str) -> None:
        """One record is left out."""
        self.num_invalid += 1
        self._add(category, "bad", location, reason)
        if self.num_invalid > self.max_invalid_fraction * self.num_seen and (
            self.num_seen >= MIN_RECORDS_TO_JUDGE or self.max_invalid_fraction == 0
        ):
            raise self._too_many_error()

    def note(self, category: str, location: FileLocation, reason: str, count: int = 1) -> None:
        """Something unusual was handled; nothing is lost."""
        self._add(category, "note", location, reason, count)

    def broken_file(self, category: str, location: FileLocation, reason: str) -> None:
        """The rest of a file is lost, and with it an unknown number of records."""
        self._add(category, "broken", location, reason)
        if self.max_invalid_fraction < 1:
            raise _broken_file_error(location, reason)

    def finish(self) -> None:
        """At the end of the data, where the share is exact: raise if too much was bad."""
        for kind in self.categories.values():  # a cache built with max_bad = 1 may be reused by a stricter run
            if kind.severity == "broken" and self.max_invalid_fraction < 1:
                raise _broken_file_error(*kind.samples[0])
        if self.num_invalid > self.max_invalid_fraction * self.num_seen:
            raise self._too_many_error()

    def summary(self) -> ProblemSummary:
        """What was found so far, the worst first."""
        order = {"broken": 0, "bad": 1, "note": 2}
        kinds = sorted(self.categories.values(), key=lambda kind: (order[kind.severity], -kind.count, kind.name))
        return ProblemSummary(self.num_seen, self.num_invalid, self.max_invalid_fraction, tuple(kinds))

    def merge(self, summary: dict[str, Any]) -> None:
        """Add what an earlier run found (`Summary.to_dict`), as a reused cache reports what its building met."""
        self.num_seen += summary["seen"]
        self.num_invalid += summary["bad"]
        for told in summary["kinds"]:
            kind = self.categories.setdefault(told["kind"], ProblemCategory(told["kind"], told["severity"]))
            kind.count += told["count"]
            for file, count in told["files"].items():
                kind.files[file] = kind.files.get(file, 0) + count
            first = [(FileLocation(one["file"], one["line"]), one["reason"]) for one in told["first"]]
            kind.samples.extend(first[: max(0, self.max_samples - len(kind.samples))])

    def _add(self, name: str, severity: Severity, location: FileLocation, reason: str, count: int = 1) -> None:
        kind = self.categories.get(name)
        if kind is None:
            kind = self.categories[name] = ProblemCategory(name, severity)
        kind.count += count
        kind.files[location.file] = kind.files.get(location.file, 0) + count
        if len(kind.samples) < self.max_samples:
            kind.samples.append((location, reason))

    def _too_many_error(self) -> TooManyProblems:
        encoding = " Files in another encoding are read with encoding." if "invalid UTF-8" in self.categories else ""
        return TooManyProblems(
            f"too much of the data is unusable: {self.summary()}\n"
            f"Correct the lines named above, or accept a larger share with max_bad.{encoding}"
        )


def _broken_file_error(location: FileLocation, reason: str) -> TooManyProblems:
    return TooManyProblems(
        f"{location}: {reason}\nHow many records are lost cannot be known, so the run stops here. "
        "Replace the file, or accept whatever could be read with max_bad = 1."
    )


def _format_percent(fraction: float) -> str:
    """A share as people write it; a small one is not rounded to nothing.

    >>> _format_percent(0.01), _format_percent(0.000012), _format_percent(1.0)
    ('1 %', '0.0012 %', '100 %')
    """
    return f"{100 * fraction:.4g} %" if fraction >= 0.01 else f"{100 * fraction:.2g} %"
