"""Invalid data is counted and reported with its file and line. Too much of it is an error.

Real files contain broken lines. Stopping at the first broken line would waste a night, and dropping broken lines
silently would lose data unnoticed. So every reader and encoder reports to a `Problems`, in one of three ways:

- `skip`: one record cannot be used and is left out.
- `note`: something unusual was handled and nothing is lost (a byte-order mark, Windows line ends, blank lines).
- `broken_file`: the rest of a file cannot be read, so an unknown number of records is lost (a truncated gzip file).

If more than `max_invalid_fraction` of the records are skipped (1 % by default), reading stops with an error. The
fraction is checked at the end of the data, and for every skipped record after the first `MIN_RECORDS_TO_JUDGE` records.
A broken file stops reading immediately. `qkv data` uses `max_invalid_fraction=1`, which accepts everything, so it can
list all problems.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from textwrap import indent
from typing import Any, Literal

from qkv.data.records import FileLocation
from qkv.errors import QkvError

Severity = Literal["broken", "invalid", "note"]
SEVERITIES: tuple[Severity, ...] = ("broken", "invalid", "note")  # from worst to mildest

MIN_RECORDS_TO_JUDGE = 10_000  # the fraction over fewer records is too noisy to stop at


class InvalidRecord(Exception):
    """The reason why a record is not used. An encoder returns it in place of the encoded record.

    `is_expected` is true if the user asked to leave such records out; they are then not a problem of the data.

    >>> InvalidRecord("the label 'maybe' is not one of: no, yes").reason
    "the label 'maybe' is not one of: no, yes"
    """

    def __init__(self, reason: str, category: str = "not encodable", *, is_expected: bool = False):
        super().__init__(reason)
        self.reason = reason
        self.category = category
        self.is_expected = is_expected


class TooManyProblems(QkvError):
    """The fraction of invalid records is above the limit, or a file is broken."""


@dataclass(frozen=True)
class ProblemSample(FileLocation):
    """The location of a problem, and its reason."""

    reason: str = ""


@dataclass
class ProblemCategory:
    """The problems of one category: their number, their number in each file, and the first few with their reasons."""

    category: str
    severity: Severity
    count: int = 0
    files: dict[str, int] = field(default_factory=dict)
    samples: list[ProblemSample] = field(default_factory=list)


@dataclass(frozen=True)
class ProblemSummary:
    """All problems found, as text (`str`) or as JSON values (`to_dict`)."""

    num_seen: int
    num_invalid: int
    max_invalid_fraction: float
    categories: tuple[ProblemCategory, ...]

    @property
    def invalid_fraction(self) -> float:
        """The fraction of records that could not be used."""
        return self.num_invalid / self.num_seen if self.num_seen else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The summary as JSON values."""
        return {**asdict(self), "invalid_fraction": self.invalid_fraction}

    def __str__(self) -> str:
        if not self.categories:
            return "all records can be used" if self.num_seen else ""
        listed = self.describe_categories()
        if not self.num_invalid:
            return listed
        limit = f"; the limit is {_format_percent(self.max_invalid_fraction)}" if self.max_invalid_fraction < 1 else ""
        fraction = f"{_format_percent(self.invalid_fraction)}{limit}"
        unused = f"{self.num_invalid:,} of {self.num_seen:,} records could not be used ({fraction})"
        return f"{unused}\n{indent(listed, '  ')}"

    def describe_categories(self) -> str:
        """The problems of each category, the most severe first."""
        return "\n".join(self._category_lines())

    def _category_lines(self) -> Iterator[str]:
        for category in self.categories:
            files = category.files
            where = f"in {len(files):,} files" if len(files) > 1 else f"in {next(iter(files))}"
            is_note = category.severity == "note"
            yield f"{category.category}: {category.count:,} {where}{', handled' if is_note else ''}"
            shown = category.samples[:1] if is_note else category.samples
            yield from (f"  {sample}: {sample.reason}" for sample in shown)
            if not is_note and category.count > len(shown):
                yield f"  … and {category.count - len(shown):,} more"


class Problems:
    """Collects problems, and raises `TooManyProblems` when the fraction of invalid records exceeds the limit.

    Readers add 1 to `num_seen` for each record, before they know whether it is valid.

    >>> problems = Problems(max_invalid_fraction=0.5)
    >>> problems.num_seen += 10
    >>> problems.skip("broken JSON", FileLocation("train.jsonl", 3), "expected ',' at column 9")
    >>> print(problems.summary())
    1 of 10 records could not be used (10 %; the limit is 50 %)
      broken JSON: 1 in train.jsonl
        train.jsonl:3: expected ',' at column 9
    >>> problems.finish()
    """

    def __init__(self, max_invalid_fraction: float = 0.01, max_samples: int = 5):
        if not 0 <= max_invalid_fraction <= 1:
            raise QkvError(f"max_invalid_fraction = {max_invalid_fraction} is not a fraction; set a number from 0 to 1")
        self.max_invalid_fraction = max_invalid_fraction
        self.max_samples = max_samples  # the number of problems of each category whose reason is kept
        self.num_seen = 0
        self.num_invalid = 0
        self.categories: dict[str, ProblemCategory] = {}

    def skip(self, category: str, location: FileLocation, reason: str) -> None:
        """Report a record that is left out."""
        self.num_invalid += 1
        self._add(category, "invalid", location, reason)
        if self.num_seen >= MIN_RECORDS_TO_JUDGE or self.max_invalid_fraction == 0:
            self._check_fraction()

    def leave_out(self, invalid: InvalidRecord, location: FileLocation) -> None:
        """Report a record that an encoder does not use: as a note if this is expected, else as skipped."""
        report = self.note if invalid.is_expected else self.skip
        report(invalid.category, location, invalid.reason)

    def note(self, category: str, location: FileLocation, reason: str, count: int = 1) -> None:
        """Report something unusual that was handled without loss."""
        self._add(category, "note", location, reason, count)

    def note_empty_file(self, location: FileLocation) -> None:
        """Report an empty file, unless it has been reported as broken: then it only seems to be empty."""
        if not any(
            category.severity == "broken" and location.file in category.files for category in self.categories.values()
        ):
            self.note("empty file", location, "the file is empty")

    def broken_file(self, category: str, location: FileLocation, reason: str) -> None:
        """Report a file whose rest cannot be read, so that an unknown number of records is lost."""
        self._add(category, "broken", location, reason)
        self._check_broken()

    def finish(self) -> None:
        """Check the limit at the end of the data, when the fraction is exact."""
        self._check_broken()  # a reused cache may have been built with max_invalid_fraction = 1
        self._check_fraction()

    def summary(self) -> ProblemSummary:
        """The problems found so far, the most severe first."""
        listed = [
            (SEVERITIES.index(category.severity), -category.count, category.category)
            for category in self.categories.values()
        ]
        worst_first = tuple(self.categories[name] for _, _, name in sorted(listed))
        return ProblemSummary(self.num_seen, self.num_invalid, self.max_invalid_fraction, worst_first)

    def merge(self, summary: dict[str, Any]) -> None:
        """Add the problems of a `ProblemSummary.to_dict()`, which a token cache stores when it is built."""
        self.num_seen += summary["num_seen"]
        self.num_invalid += summary["num_invalid"]
        for found in summary["categories"]:
            name = found["category"]
            category = self.categories.setdefault(name, ProblemCategory(name, found["severity"]))
            category.count += found["count"]
            for file, count in found["files"].items():
                category.files[file] = category.files.get(file, 0) + count
            room = max(0, self.max_samples - len(category.samples))
            category.samples.extend(ProblemSample(**sample) for sample in found["samples"][:room])

    def _add(self, name: str, severity: Severity, location: FileLocation, reason: str, count: int = 1) -> None:
        category = self.categories.setdefault(name, ProblemCategory(name, severity))
        category.count += count
        category.files[location.file] = category.files.get(location.file, 0) + count
        if len(category.samples) < self.max_samples:
            category.samples.append(ProblemSample(location.file, location.line, reason))

    def _check_broken(self) -> None:
        broken = [category for category in self.categories.values() if category.severity == "broken"]
        if broken and self.max_invalid_fraction < 1:
            first = broken[0].samples[0]
            raise TooManyProblems(
                f"{first}: {first.reason}\nThe number of lost records is unknown, so reading stops here. "
                "Replace the file, or set max_invalid_fraction = 1 to accept whatever can be read."
            )

    def _check_fraction(self) -> None:
        if self.num_invalid <= self.max_invalid_fraction * self.num_seen:
            return
        is_utf8 = "invalid UTF-8" not in self.categories
        hint = " If the files are not UTF-8, name their encoding: --encoding latin-1, or data.encoding in a recipe."
        encoding = "" if is_utf8 else hint
        raise TooManyProblems(
            f"too much of the data is unusable: {self.summary()}\n"
            f"Correct the lines listed above, or raise max_invalid_fraction.{encoding}"
        )


def _format_percent(fraction: float) -> str:
    """Format a fraction as a percentage. Small fractions keep two significant digits, so they are not shown as 0.

    >>> _format_percent(0.01), _format_percent(0.000012), _format_percent(1.0)
    ('1 %', '0.0012 %', '100 %')
    """
    return f"{100 * fraction:.4g} %" if fraction >= 0.01 else f"{100 * fraction:.2g} %"
