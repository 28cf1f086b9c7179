"""Statistics of data files before training, which `qkv data FILE…` shows.

It lists the formats and fields, the number of examples and their lengths, the fraction of padding in a batch, the first
examples as text and as tokens, and every problem in the data. The files are read once. Only counts of lengths are kept
in memory, so files may have any size.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np

from qkv.data.problems import Problems, ProblemSummary
from qkv.data.proteins import COLUMN_NAMES
from qkv.data.readers import DataFiles
from qkv.data.readers.columns import MAX_RECORDS_SEARCHED
from qkv.data.records import Record
from qkv.data.stream.pack import group_by_length, pack
from qkv.progress import OnProgress
from qkv.text import Tokenizer
from qkv.text.residues import look_like_proteins

MAX_PADDING_SAMPLE = 50_000  # padding is estimated from this number of examples
RECORDS_PER_BATCH = 1024  # the number of records that are tokenized at a time
MAX_LABEL_VALUES = 100  # a field with more distinct texts is not a label
MAX_LABEL_CHARACTERS = 60  # a field with a longer text is not a label
PAIR_FIELDS = {"source", "target"}  # packed as pairs, like the two fields of aligned files
PREVIEW_CHARACTERS = 400


@dataclass(frozen=True)
class LengthStats:
    """Statistics of lengths over all examples; `bins` are (first length, last length, number of examples)."""

    total: int
    min: int
    median: int
    mean: float
    p95: int
    p99: int
    max: int
    bins: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class FieldStats:
    """One field of the records."""

    name: str
    value_type: str  # text, protein, label, texts (a list of text), tags (a list of labels), number, list or other
    num_present: int  # the number of examples that have this field
    characters: LengthStats | None = None
    tokens: LengthStats | None = None
    values: dict[str, int] = field(default_factory=dict)  # label or tag → how often it occurs


@dataclass(frozen=True)
class FileStats:
    """One file, or several line-aligned files."""

    paths: tuple[str, ...]
    format: str
    bytes: int
    examples: int


@dataclass(frozen=True)
class PaddingEstimate:
    """The fraction of padding: of unsorted batches, of batches of similar lengths, and of packed sequences."""

    fields: tuple[str, ...]
    sequence_lengths: tuple[int, ...]  # (length,); for pairs, a length for each field, proportional to its texts
    batch_size: int
    unsorted: float
    by_length: float
    packed: float
    too_long: int  # the number of examples longer than a sequence: the estimate drops pairs, and splits all others
    examples: int  # the number of examples that the estimate uses


@dataclass(frozen=True)
class ExamplePreview:
    """One of the first examples: its location, its fields as text, and its tokens as text."""

    location: str
    fields: dict[str, str]
    tokens: dict[str, list[str]]


@dataclass(frozen=True)
class DatasetStats:
    """Everything that `qkv data` shows."""

    files: tuple[FileStats, ...]
    examples: int
    complete: bool  # False if only the first examples were read
    fields: tuple[FieldStats, ...]
    padding: PaddingEstimate | None
    previews: tuple[ExamplePreview, ...]
    problems: ProblemSummary

    @property
    def unit(self) -> str:
        """The unit of lengths and padding."""
        return "tokens" if any(field.tokens for field in self.fields) else "characters"

    def to_dict(self) -> dict[str, Any]:
        """The statistics as JSON values, for `--json`."""
        return {**asdict(self), "unit": self.unit, "problems": self.problems.to_dict()}


def compute_stats(
    files: DataFiles,
    *,
    tokenizer: Tokenizer | None = None,
    max_length: int = 512,
    batch_size: int = 32,
    num_previews: int = 3,
    max_examples: int | None = None,
    problems: Problems | None = None,
    progress: OnProgress | None = None,
) -> DatasetStats:
    """Survey all examples, or the first `max_examples`. With a tokenizer, the statistics include lengths in tokens."""
    problems = problems or Problems(max_invalid_fraction=1)
    files = recognise_proteins(files)
    counters: defaultdict[str, _FieldCounter] = defaultdict(_FieldCounter)
    examples_by_file: Counter[str] = Counter()
    lengths: list[dict[str, int]] = []  # field → length, for the first MAX_PADDING_SAMPLE examples
    previews: list[ExamplePreview] = []
    records = files.records(problems, progress)
    counted = islice(records, max_examples)
    while batch := list(islice(counted, RECORDS_PER_BATCH)):
        examples_by_file.update(record.location.file for record in batch)
        batch_lengths = _count_batch(batch, counters, tokenizer)
        lengths += batch_lengths[: MAX_PADDING_SAMPLE - len(lengths)]
        previews += [_preview(record, tokenizer) for record in batch[: num_previews - len(previews)]]
    complete = next(records, None) is None
    fields = tuple(counter.finish(name, is_protein=name in files.text_fields) for name, counter in counters.items())
    file_stats = tuple(_describe_each_file(files, examples_by_file))
    texts = _text_fields(fields)
    is_aligned = any(file.format == "aligned" for file in file_stats)
    is_pair = len(texts) == 2 and (set(texts) == PAIR_FIELDS or is_aligned)
    return DatasetStats(
        files=file_stats,
        examples=examples_by_file.total(),
        complete=complete,
        fields=fields,
        padding=_estimate_padding(lengths, texts, is_pair, max_length, batch_size) if texts else None,
        previews=tuple(previews),
        problems=problems.summary(),
    )


def recognise_proteins(files: DataFiles) -> DataFiles:
    """The files, with the fields that have proteins, by the first records."""
    first = list(islice(files.records(Problems(max_invalid_fraction=1)), MAX_RECORDS_SEARCHED))
    values: defaultdict[str, list[str]] = defaultdict(list)
    for record in first:
        for name, value in record.fields.items():
            if isinstance(value, str):
                values[name].append(value)
    found = [
        name for name, texts in values.items() if look_like_proteins(texts, are_named=name.lower() in COLUMN_NAMES)
    ]
    return replace(files, modality="protein", text_fields=tuple(found)) if found else files


def _text_fields(fields: Sequence[FieldStats]) -> tuple[str, ...]:
    """The fields that a model would read: texts (except `id`), or lists of words if there are no texts."""
    texts = [field.name for field in fields if field.value_type in ("text", "protein") and field.name.lower() != "id"]
    return tuple(texts or [field.name for field in fields if field.value_type == "texts"])


class _FieldCounter:
    """Collects the statistics of one field while the records are read."""

    def __init__(self) -> None:
        self.value_types: Counter[str] = Counter()
        self.characters: Counter[int] = Counter()
        self.tokens: Counter[int] = Counter()
        self.values: Counter[str] | None = Counter()  # None after too many or too long values were found

    def add(self, value: Any, text: str | None) -> None:
        value_type = _value_type(value)
        self.value_types[value_type] += 1
        if text is not None:
            self.characters[len(text)] += 1
        if self.values is not None and value_type in ("text", "texts"):
            num_known = len(self.values)
            self.values.update([value] if value_type == "text" else value)
            is_new = len(self.values) > num_known
            if is_new and (
                len(self.values) > MAX_LABEL_VALUES or len(max(self.values, key=len)) > MAX_LABEL_CHARACTERS
            ):
                self.values = None

    def finish(self, name: str, is_protein: bool) -> FieldStats:
        value_type = self.value_types.most_common(1)[0][0]
        if self.values and self.values.total() >= 5 * len(self.values):
            value_type = {"text": "label", "texts": "tags"}.get(value_type, value_type)
        value_type = "protein" if is_protein else value_type
        values = dict(self.values.most_common()) if value_type in ("label", "tags") and self.values else {}
        characters, tokens = length_stats(self.characters), length_stats(self.tokens)
        return FieldStats(name, value_type, self.value_types.total(), characters, tokens, values)


def _count_batch(
    records: list[Record], counters: defaultdict[str, _FieldCounter], tokenizer: Tokenizer | None
) -> list[dict[str, int]]:
    """Add the records to `counters`, and return the length of each text field of each record."""
    lengths: list[dict[str, int]] = [{} for _ in records]
    texts: list[tuple[int, str, str]] = []  # (record, field, text)
    for index, record in enumerate(records):
        for name, value in record.fields.items():
            text = text_content(value)
            counters[name].add(value, text)
            if text is not None:
                lengths[index][name] = len(text)
                texts.append((index, name, text))
    if tokenizer is not None:
        encoded = tokenizer.encode_batch([text for _, _, text in texts])
        for (index, name, _), ids in zip(texts, encoded, strict=True):
            lengths[index][name] = len(ids)
            counters[name].tokens[len(ids)] += 1
    return lengths


def text_content(value: Any) -> str | None:
    """The text of a field: a text, words joined by spaces, or the turns of a chat; None if the value has no text.

    >>> text_content(["a", "b"]), text_content([{"role": "user", "content": "hi"}]), text_content(3)
    ('a b', 'user\\nhi', None)
    """
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value:
        if all(isinstance(item, str) for item in value):
            return " ".join(value)
        if all(isinstance(item, dict) for item in value):
            return "\n".join(inner for item in value for inner in item.values() if isinstance(inner, str))
    return None


def _value_type(value: Any) -> str:
    if isinstance(value, str):
        return "text"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, list):
        return "texts" if value and all(isinstance(item, str) for item in value) else "list"
    return "other"


def length_stats(counts_by_length: Counter[int], max_bins: int = 12) -> LengthStats | None:
    """Exact statistics from the number of examples of each length.

    >>> stats = length_stats(Counter({2: 1, 4: 2, 10: 1}))
    >>> stats.total, stats.median, stats.mean, stats.max
    (20, 4, 5.0, 10)
    """
    if not counts_by_length:
        return None
    lengths = np.array(sorted(counts_by_length), np.int64)
    counts = np.array([counts_by_length[length] for length in lengths.tolist()], np.int64)
    cumulative = np.cumsum(counts)

    def quantile(fraction: float) -> int:
        return int(lengths[np.searchsorted(cumulative, fraction * cumulative[-1])])

    total = int((lengths * counts).sum())
    return LengthStats(
        total=total,
        min=int(lengths[0]),
        median=quantile(0.5),
        mean=total / int(cumulative[-1]),
        p95=quantile(0.95),
        p99=quantile(0.99),
        max=int(lengths[-1]),
        bins=_bins(lengths, counts, quantile(0.99), max_bins),
    )


def _bins(lengths: np.ndarray, counts: np.ndarray, p99: int, max_bins: int) -> tuple[tuple[int, int, int], ...]:
    """Bins of a round width up to the 99th percentile; the last one includes all longer lengths."""
    start = int(lengths[0])
    round_widths = (digit * 10**power for power in range(12) for digit in (1, 2, 5))
    width = next(width for width in round_widths if (p99 - start // width * width) // width < max_bins)
    start = start // width * width
    bin_of_length = np.minimum((lengths - start) // width, (p99 - start) // width)  # (distinct lengths,)
    bin_counts = np.bincount(bin_of_length, counts).astype(np.int64).tolist()
    ends = [start + width * (number + 1) - 1 for number in range(len(bin_counts))]
    ends[-1] = max(ends[-1], int(lengths[-1]))
    return tuple((start + width * number, ends[number], count) for number, count in enumerate(bin_counts))


def _estimate_padding(
    example_lengths: list[dict[str, int]], texts: tuple[str, ...], is_pair: bool, max_length: int, batch_size: int
) -> PaddingEstimate:
    """Estimate the padding. Both texts of a pair are packed together; the texts of other examples are concatenated."""
    lengths = np.array([[counts.get(name, 0) for name in texts] for counts in example_lengths], np.int64)
    lengths = lengths.reshape(-1, len(texts))
    max_lengths: tuple[int, ...] = (max_length,)
    if is_pair:
        totals = np.maximum(lengths.sum(axis=0), 1).tolist()
        max_lengths = tuple(min(max_length, -(-max_length * total // max(totals) // 8) * 8) for total in totals)
        too_long = (lengths > np.asarray(max_lengths)).any(axis=1)
        lengths = lengths[~too_long]
    else:  # as for a language model: full sequences, then the remainder of each document
        lengths = lengths.sum(axis=1, keepdims=True)
        too_long = (lengths > max_length).any(axis=1)
        full = np.full((int((lengths // max_length).sum()), 1), max_length, np.int64)
        lengths = np.concatenate([full, lengths % max_length])
    total = max(int(lengths.sum()), 1)
    first = np.arange(0, len(lengths), batch_size)
    widths = np.maximum.reduceat(lengths, first, axis=0) if len(lengths) else lengths  # (batches, sides)
    heights = np.diff(np.append(first, len(lengths)))[:, None]
    _, group_starts, group_widths = group_by_length(lengths, batch_size * sum(max_lengths))
    grouped = int((np.diff(group_starts)[:, None] * group_widths).sum())
    packed = pack(lengths, max_lengths, max_documents=max_length) if lengths.any() else None
    return PaddingEstimate(
        fields=texts,
        sequence_lengths=max_lengths,
        batch_size=batch_size,
        unsorted=1 - total / max(int((widths * heights).sum()), total),
        by_length=1 - total / max(grouped, total),
        packed=packed.padding_fraction(lengths, max_lengths) if packed else 0.0,
        too_long=int(too_long.sum()),
        examples=len(example_lengths),
    )


def _describe_each_file(files: DataFiles, examples_by_file: Counter[str]) -> Iterator[FileStats]:
    for group in files.find_groups(Problems(max_invalid_fraction=1)):
        size = sum(path.stat().st_size for path in group.paths if path.is_file())
        paths = tuple(map(str, group.paths))
        yield FileStats(paths, group.format, size, examples_by_file[paths[0]])


def _preview(record: Record, tokenizer: Tokenizer | None) -> ExamplePreview:
    shown, tokens = {}, {}
    for name, value in record.fields.items():
        text = text_content(value)
        shown[name] = (str(value) if text is None else text)[:PREVIEW_CHARACTERS]
        if text is not None and tokenizer is not None:
            spans = tokenizer.encode_with_offsets(shown[name])[1]
            before = [(-1, -1), *spans]  # if several tokens share a character, only the first shows it
            tokens[name] = [
                "" if span == last else shown[name][slice(*span)] for span, last in zip(spans, before, strict=False)
            ]
    return ExamplePreview(str(record.location), shown, tokens)
