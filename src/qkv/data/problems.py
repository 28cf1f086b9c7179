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

from qkv.data.records import Where
from qkv.errors import QkvError

Severity = Literal["bad", "broken", "note"]

SETTLED = 10_000  # records after which a share is taken seriously while reading


class BadRecord(Exception):
    """A record that cannot be encoded. An `Encode` returns it in the record's place in its list.

    >>> BadRecord("the label 'maybe' is not one of: no, yes").reason
    "the label 'maybe' is not one of: no, yes"
    """

    def __init__(self, reason: str, kind: str = "not encodable"):
        super().__init__(reason)
        self.reason = reason
        self.kind = kind


class TooManyProblems(QkvError):
    """More of the data is unusable than the caller accepts."""


@dataclass
class Kind:
    """All problems of one kind: how many, in which files, and the first few in full."""

    name: str
    severity: Severity
    count: int = 0
    files: dict[str, int] = field(default_factory=dict)
    first: list[tuple[Where, str]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        first = [{"file": where.file, "line": where.line, "reason": reason} for where, reason in self.first]
        return {"kind": self.name, "severity": self.severity, "count": self.count, "files": self.files, "first": first}


@dataclass(frozen=True)
class Summary:
    """What went wrong, for a person (`str`) and for a program (`to_dict`)."""

    seen: int
    bad: int
    max_bad: float
    kinds: tuple[Kind, ...]

    @property
    def share(self) -> float:
        return self.bad / self.seen if self.seen else 0.0

    def to_dict(self) -> dict[str, Any]:
        kinds = [kind.to_dict() for kind in self.kinds]
        return {"seen": self.seen, "bad": self.bad, "share": self.share, "max_bad": self.max_bad, "kinds": kinds}

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        limit = f"; the limit is {_percent(self.max_bad)}" if self.max_bad < 1 else ""
        share = f" ({_percent(self.share)}{limit})" if self.bad else ""
        yield f"{self.bad:,} of {self.seen:,} records could not be used{share}"
        for kind in self.kinds:
            place = f"in {len(kind.files):,} files" if len(kind.files) > 1 else f"in {next(iter(kind.files))}"
            handled = ", handled" if kind.severity == "note" else ""
            yield f"  {kind.name}: {kind.count:,} {place}{handled}"
            shown = kind.first[:1] if kind.severity == "note" else kind.first
            yield from (f"    {where}: {reason}" for where, reason in shown)
            if kind.severity != "note" and kind.count > len(shown):
                yield f"    … and {kind.count - len(shown):,} more"


class Problems:
    """Counts and names bad data; raises `TooManyProblems` when the share is above the limit.

    >>> problems = Problems(max_bad=0.5)
    >>> problems.saw(10)
    >>> problems.skip("broken JSON", Where("train.jsonl", 3), "expected ',' at column 9")
    >>> print(problems.summary())
    1 of 10 records could not be used (10 %; the limit is 50 %)
      broken JSON: 1 in train.jsonl
        train.jsonl:3: expected ',' at column 9
    >>> problems.finish()
    """

    def __init__(self, max_bad: float = 0.01, keep: int = 5):
        if not 0 <= max_bad <= 1:
            raise QkvError(f"max_bad is a share between 0 and 1, not {max_bad}")
        self.max_bad = max_bad
        self.keep = keep  # examples of each kind kept in full
        self.seen = 0
        self.bad = 0
        self.kinds: dict[str, Kind] = {}

    def saw(self, records: int = 1) -> None:
        """Records come by, good or bad; a reader counts each once, before it knows."""
        self.seen += records

    def skip(self, kind: str, where: Where, reason: str) -> None:
        """One record is left out."""
        self.bad += 1
        self._add(kind, "bad", where, reason)
        if self.bad > self.max_bad * self.seen and (self.seen >= SETTLED or self.max_bad == 0):
            raise self._too_many()

    def note(self, kind: str, where: Where, reason: str, count: int = 1) -> None:
        """Something unusual was handled; nothing is lost."""
        self._add(kind, "note", where, reason, count)

    def broken(self, kind: str, where: Where, reason: str) -> None:
        """The rest of a file is lost, and with it an unknown number of records."""
        self._add(kind, "broken", where, reason)
        if self.max_bad < 1:
            raise _broken(where, reason)

    def finish(self) -> None:
        """At the end of the data, where the share is exact: raise if too much was bad."""
        for kind in self.kinds.values():  # a cache built with max_bad = 1 may be reused by a stricter run
            if kind.severity == "broken" and self.max_bad < 1:
                raise _broken(*kind.first[0])
        if self.bad > self.max_bad * self.seen:
            raise self._too_many()

    def summary(self) -> Summary:
        """What was found so far, the worst first."""
        order = {"broken": 0, "bad": 1, "note": 2}
        kinds = sorted(self.kinds.values(), key=lambda kind: (order[kind.severity], -kind.count, kind.name))
        return Summary(self.seen, self.bad, self.max_bad, tuple(kinds))

    def merge(self, found: dict[str, Any]) -> None:
        """Add what an earlier run found (`Summary.to_dict`), as a reused cache reports what its building met."""
        self.seen += found["seen"]
        self.bad += found["bad"]
        for told in found["kinds"]:
            kind = self.kinds.setdefault(told["kind"], Kind(told["kind"], told["severity"]))
            kind.count += told["count"]
            for file, count in told["files"].items():
                kind.files[file] = kind.files.get(file, 0) + count
            first = [(Where(one["file"], one["line"]), one["reason"]) for one in told["first"]]
            kind.first.extend(first[: max(0, self.keep - len(kind.first))])

    def _add(self, name: str, severity: Severity, where: Where, reason: str, count: int = 1) -> None:
        kind = self.kinds.get(name)
        if kind is None:
            kind = self.kinds[name] = Kind(name, severity)
        kind.count += count
        kind.files[where.file] = kind.files.get(where.file, 0) + count
        if len(kind.first) < self.keep:
            kind.first.append((where, reason))

    def _too_many(self) -> TooManyProblems:
        encoding = " Files in another encoding are read with encoding." if "invalid UTF-8" in self.kinds else ""
        return TooManyProblems(
            f"too much of the data is unusable: {self.summary()}\n"
            f"Correct the lines named above, or accept a larger share with max_bad.{encoding}"
        )


def _broken(where: Where, reason: str) -> TooManyProblems:
    return TooManyProblems(
        f"{where}: {reason}\nHow many records are lost cannot be known, so the run stops here. "
        "Replace the file, or accept whatever could be read with max_bad = 1."
    )


def _percent(share: float) -> str:
    """A share as people write it; a small one is not rounded to nothing.

    >>> _percent(0.01), _percent(0.000012), _percent(1.0)
    ('1 %', '0.0012 %', '100 %')
    """
    return f"{100 * share:.4g} %" if share >= 0.01 else f"{100 * share:.2g} %"
