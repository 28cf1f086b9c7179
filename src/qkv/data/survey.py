"""What qkv sees in a file, before anything is trained on it: what `qkv data FILE…` shows.

Formats and fields, how many examples, how long they are, how much of a batch would be padding, the first examples as
text and as tokens, and everything that is wrong with the data. One pass; lengths are counted, not kept, so a file of
any size will do.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any, Protocol

import numpy as np

from qkv.data.problems import Problems, ProblemSummary
from qkv.data.readers import DataFiles
from qkv.data.records import Record
from qkv.data.stream.pack import group_by_length, pack

MAX_PADDING_SAMPLE = 50_000  # examples that the padding is worked out on
RECORDS_PER_BATCH = 1024  # records tokenised at a time
MAX_LABEL_VALUES = 100  # a field with at most this many different short texts is taken for a label
PAIR_FIELDS = {"source", "target"}  # fields that are packed in step; those of aligned files are too
PREVIEW_CHARACTERS = 400  # characters of a text that are kept for showing


class SurveyTokenizer(Protocol):
    """What is needed of a tokenizer."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]: ...
    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]: ...


@dataclass(frozen=True)
class LengthStats:
    """How long something is, over all examples; `bins` are (from, to, how many), the last one up to the longest."""

    total: int
    min: int
    median: int
    mean: float
    p95: int
    p99: int
    max: int
    bins: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class FieldSurvey:
    """One field of the records."""

    name: str
    value_type: str  # text, label, texts (a list of them), tags (a list of labels), number, list or other
    num_present: int  # examples that have it
    characters: LengthStats | None = None
    tokens: LengthStats | None = None
    values: dict[str, int] = field(default_factory=dict)  # of labels and tags: how often each comes


@dataclass(frozen=True)
class FileSurvey:
    """One file, or several that go in step."""

    paths: tuple[str, ...]
    format: str
    bytes: int
    examples: int


@dataclass(frozen=True)
class PaddingEstimate:
    """The share of places without a token: in plain batches, in batches of like lengths, and packed."""

    fields: tuple[str, ...]
    sequence_lengths: tuple[int, ...]  # the row length; for pairs that of both sides, in proportion to their texts
    batch_size: int
    random_order: float
    by_length: float
    packed: float
    too_long: int  # examples above a row: left out of this for pairs, cut into whole rows otherwise
    examples: int  # that this was worked out on


@dataclass(frozen=True)
class ExamplePreview:
    """One of the first examples: its place, its fields as text, and the pieces that the tokens of a text stand for."""

    location: str
    fields: dict[str, str]
    tokens: dict[str, list[str]]


@dataclass(frozen=True)
class DataSurvey:
    """Everything `qkv data` shows."""

    files: tuple[FileSurvey, ...]
    examples: int
    complete: bool  # False if only the first examples were looked at
    fields: tuple[FieldSurvey, ...]
    padding: PaddingEstimate | None
    first: tuple[ExamplePreview, ...]
    problems: ProblemSummary

    @property
    def unit(self) -> str:
        """What lengths and padding are counted in."""
        return "tokens" if any(one.tokens for one in self.fields) else "characters"

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        plain = {name: getattr(self, name) for name in ("examples", "complete", "unit")}
        listed = {name: [asdict(one) for one in getattr(self, name)] for name in ("files", "fields", "first")}
        padding = asdict(self.padding) if self.padding else None
        return {**plain, **listed, "padding": padding, "problems": self.problems.to_dict()}


def survey_files(
    files: DataFiles,
    *,
    tokenizer: SurveyTokenizer | None = None,
    max_length: int = 512,
    batch_size: int = 32,
    num_previews: int = 3,
    max_examples: int | None = None,
    problems: Problems | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> DataSurvey:
    """Look at all examples, or at the first `limit`; lengths in tokens too where there is a tokenizer.

    >>> print(survey_files(DataFiles("train.tsv")).examples)          # doctest: +SKIP
    """
    problems = problems or Problems(max_invalid_fraction=1)
    fields: dict[str, _FieldCounter] = {}
    per_file: Counter[str] = Counter()
    lengths: list[dict[str, int]] = []  # of the first SAMPLE examples
    shown: list[ExamplePreview] = []
    records = files.records(problems, progress)
    taken = islice(records, max_examples)
    while together := list(islice(taken, RECORDS_PER_BATCH)):
        per_file.update(record.location.file for record in together)
        for found in _measure(together, fields, tokenizer):
            if len(lengths) < MAX_PADDING_SAMPLE:
                lengths.append(found)
        shown += [_preview(record, tokenizer) for record in together[: num_previews - len(shown)]]
    complete = next(records, None) is None
    seen = tuple(one.finish(name) for name, one in fields.items())
    found_files = tuple(_survey_each_file(files, per_file))
    texts = _text_fields(seen)
    in_step = len(texts) == 2 and (set(texts) == PAIR_FIELDS or any(one.format == "aligned" for one in found_files))
    return DataSurvey(
        files=found_files,
        examples=per_file.total(),
        complete=complete,
        fields=seen,
        padding=_estimate_padding(lengths, texts, in_step, max_length, batch_size) if texts else None,
        first=tuple(shown),
        problems=problems.summary(),
    )


def _text_fields(fields: Sequence[FieldSurvey]) -> tuple[str, ...]:
    """The fields that a model would read: texts, but no identifiers; lists of words where there are no texts."""
    texts = [one.name for one in fields if one.value_type == "text" and one.name.lower() != "id"]
    return tuple(texts or [one.name for one in fields if one.value_type == "texts"])


class _FieldCounter:
    """Counts for one field while the records go by."""

    def __init__(self) -> None:
        self.value_types: Counter[str] = Counter()
        self.characters: Counter[int] = Counter()
        self.tokens: Counter[int] = Counter()
        self.values: Counter[str] | None = Counter()  # None once there are too many, or too long ones

    def add(self, value: Any, text: str | None) -> None:
        kind = _value_type(value)
        self.value_types[kind] += 1
        if text is not None:
            self.characters[len(text)] += 1
        if self.values is not None and kind in ("text", "texts"):
            known = len(self.values)
            self.values.update([value] if kind == "text" else value)
            if len(self.values) > known and (
                len(self.values) > MAX_LABEL_VALUES or len(max(self.values, key=len)) > 60
            ):
                self.values = None

    def finish(self, name: str) -> FieldSurvey:
        present = self.value_types.total()
        kind = self.value_types.most_common(1)[0][0]
        if self.values and self.values.total() >= 5 * len(self.values):
            kind = {"text": "label", "texts": "tags"}.get(kind, kind)
        values = dict(self.values.most_common()) if kind in ("label", "tags") and self.values else {}
        return FieldSurvey(name, kind, present, length_stats(self.characters), length_stats(self.tokens), values)


def _measure(
    records: list[Record], fields: dict[str, _FieldCounter], tokenizer: SurveyTokenizer | None
) -> Iterator[dict[str, int]]:
    """Count the records into `fields`; yields each one's length in every field that is text."""
    measured: list[dict[str, int]] = [{} for _ in records]
    texts: list[tuple[int, str, str]] = []  # (which record, which field, its text)
    for place, record in enumerate(records):
        for name, value in record.fields.items():
            text = text_content(value)
            fields.setdefault(name, _FieldCounter()).add(value, text)
            if text is not None:
                measured[place][name] = len(text)
                texts.append((place, name, text))
    if tokenizer is not None:
        encoded = tokenizer.encode_batch([text for _, _, text in texts])
        for (place, name, _), ids in zip(texts, encoded, strict=True):
            measured[place][name] = len(ids)
            fields[name].tokens[len(ids)] += 1
    yield from measured


def text_content(value: Any) -> str | None:
    """The text in a field: itself, words joined by spaces, the contents of chat turns; None for what holds none.

    >>> text_content(["a", "b"]), text_content([{"role": "user", "content": "hi"}]), text_content(3)
    ('a b', 'user\\nhi', None)
    """
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value:
        if all(isinstance(one, str) for one in value):
            return " ".join(value)
        if all(isinstance(one, dict) for one in value):
            return "\n".join(inner for one in value for inner in one.values() if isinstance(inner, str))
    return None


def _value_type(value: Any) -> str:
    if isinstance(value, str):
        return "text"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, list):
        return "texts" if value and all(isinstance(one, str) for one in value) else "list"
    return "other"


def length_stats(counts_by_length: Counter[int], max_bins: int = 12) -> LengthStats | None:
    """Exact statistics from how often each length came.

    >>> found = length_stats(Counter({2: 1, 4: 2, 10: 1}))
    >>> found.total, found.median, found.mean, found.max
    (20, 4, 5.0, 10)
    """
    if not counts_by_length:
        return None
    lengths = np.array(sorted(counts_by_length), np.int64)
    counts = np.array([counts_by_length[length] for length in lengths.tolist()], np.int64)
    below = np.cumsum(counts)

    def quantile(share: float) -> int:
        return int(lengths[np.searchsorted(below, share * below[-1])])

    total = int((lengths * counts).sum())
    bins = _bins(lengths, counts, quantile(0.99), max_bins)
    mean = total / int(below[-1])
    return LengthStats(
        total, int(lengths[0]), quantile(0.5), mean, quantile(0.95), quantile(0.99), int(lengths[-1]), bins
    )


def _bins(lengths: np.ndarray, counts: np.ndarray, p99: int, max_bins: int) -> tuple[tuple[int, int, int], ...]:
    """Bins of a round width up to the length that 99 % stay below; the last one holds all that is longer."""
    start = int(lengths[0])
    width = next(
        w
        for power in range(12)
        for w in (10**power, 2 * 10**power, 5 * 10**power)
        if (p99 - start // w * w) // w < max_bins
    )
    start = start // width * width
    number = np.minimum((lengths - start) // width, (p99 - start) // width)  # (distinct lengths,)
    held = np.bincount(number, counts).astype(np.int64).tolist()
    ends = [start + width * (place + 1) - 1 for place in range(len(held))]
    ends[-1] = max(ends[-1], int(lengths[-1]))
    return tuple((start + width * place, ends[place], count) for place, count in enumerate(held))


def _estimate_padding(
    measured: list[dict[str, int]], texts: tuple[str, ...], in_step: bool, row: int, batch: int
) -> PaddingEstimate:
    """Pairs go into rows of two sides in step; the texts of any other example are laid end to end in one row."""
    lengths = np.array([[one.get(name, 0) for name in texts] for one in measured], np.int64).reshape(-1, len(texts))
    capacity: tuple[int, ...] = (row,)
    if in_step:
        totals = np.maximum(lengths.sum(axis=0), 1).tolist()
        capacity = tuple(min(row, -(-row * total // max(totals) // 8) * 8) for total in totals)
        too_long = (lengths > np.asarray(capacity)).any(axis=1)
        lengths = lengths[~too_long]
    else:  # as a language model does: whole rows, and what is left over
        lengths = lengths.sum(axis=1, keepdims=True)
        too_long = (lengths > row).any(axis=1)
        whole = np.full((int((lengths // row).sum()), 1), row, np.int64)
        lengths = np.concatenate([whole, lengths % row])
    total = max(int(lengths.sum()), 1)
    first = np.arange(0, len(lengths), batch)
    widest = np.maximum.reduceat(lengths, first, axis=0) if len(lengths) else lengths  # (batches, streams)
    rows = np.diff(np.append(first, len(lengths)))[:, None]
    _, starts, widths = group_by_length(lengths, batch * sum(capacity))
    by_length = int((np.diff(starts)[:, None] * widths).sum())
    return PaddingEstimate(
        fields=texts,
        sequence_lengths=capacity,
        batch_size=batch,
        random_order=1 - total / max(int((widest * rows).sum()), total),
        by_length=1 - total / max(by_length, total),
        packed=pack(lengths, capacity, max_documents=row).padding_fraction(lengths, capacity) if lengths.any() else 0.0,
        too_long=int(too_long.sum()),
        examples=len(measured),
    )


def _survey_each_file(files: DataFiles, per_file: Counter[str]) -> Iterator[FileSurvey]:
    for part in files.find_groups(Problems(max_invalid_fraction=1)):
        size = sum(path.stat().st_size for path in part.paths if path.is_file())
        yield FileSurvey(tuple(map(str, part.paths)), part.format, size, per_file[str(part.paths[0])])


def _preview(record: Record, tokenizer: SurveyTokenizer | None) -> ExamplePreview:
    texts = {
        name: text[:PREVIEW_CHARACTERS]
        for name, value in record.fields.items()
        if (text := text_content(value)) is not None
    }
    others = {name: str(value)[:PREVIEW_CHARACTERS] for name, value in record.fields.items() if name not in texts}
    pieces = {}
    for name, text in texts.items() if tokenizer is not None else ():
        assert tokenizer is not None
        spans = tokenizer.encode_with_offsets(text)[1]
        before = [(-1, -1), *spans]  # a token inside a character that is shown already stands for nothing more
        pieces[name] = ["" if span == last else text[slice(*span)] for span, last in zip(spans, before, strict=False)]
    return ExamplePreview(str(record.location), {name: {**texts, **others}[name] for name in record.fields}, pieces)
