"""A validation split for data without a validation file: a fraction of the records, the same on every machine.

`split_by="content"` (the default) assigns each record to a side by a keyed hash of the record. So a record stays on its
side when other lines are appended, moved or removed, and identical records are always on the same side. The fraction
is met on average, not exactly. With `group_by` only the named fields are hashed, so records with equal values in these
fields stay together (all translations of a sentence, all questions about a context).

`split_by="tail"` takes the last fraction of the text for validation, as is usual for a language model of one long text.
A split by content would leave gaps in the training text. The border moves when text is appended.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any, Literal

from qkv.data.records import Record
from qkv.errors import QkvError, UsageError

SplitName = Literal["train", "validation"]  # the two sides of a `ValidationSplit`


@dataclass(frozen=True)
class ValidationSplit:
    """The fraction of records that goes to validation, and how they are chosen."""

    fraction: float
    seed: int = 0
    split_by: Literal["content", "tail"] = "content"
    group_by: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.fraction < 1:
            raise UsageError(
                f"the validation fraction is {self.fraction}; it must be above 0 and below 1, for example 0.05"
            )
        if self.split_by not in ("content", "tail"):
            raise UsageError(f"unknown split_by = {self.split_by!r}; choose 'content' or 'tail'")
        if self.group_by and self.split_by == "tail":
            raise UsageError(
                f"group_by = {list(self.group_by)} does not work with split_by = 'tail', which cuts at a position in "
                "the text; set split_by = 'content', or leave out group_by"
            )

    def to_dict(self) -> dict[str, Any]:
        """All settings of the split, for the key of a cache."""
        return asdict(self)

    def records(self, read_records: Callable[[], Iterable[Record]], split_name: SplitName) -> Iterator[Record]:
        """Yield the records of one side. `read_records` reads all records; a split by tail calls it twice."""
        skipped: Counter[int] = Counter()
        if self.split_by == "content":
            split = self._by_content(read_records(), split_name, skipped)
        else:
            split = self._by_tail(read_records, split_name)
        record = None
        for record in split:
            yield record
        if record is None:
            advice = ["name a validation file with data.valid"]
            if len(skipped) != 1:  # a single record, or copies of it, cannot be on both sides
                advice.insert(0, f"set a {'larger' if split_name == 'validation' else 'smaller'} fraction")
            if skipped.total() == 1:
                advice.append('split one long text with data.valid_split_by = "tail"')
            raise QkvError(
                f"a validation fraction of {self.fraction} leaves no records for {split_name}: "
                f"{self._describe_shortage(skipped)}; {', or '.join(advice)}"
            )

    def assign(self, record: Record) -> SplitName:
        """Return the side of a record. It depends only on the content of the record.

        >>> from qkv.data.records import FileLocation
        >>> same = [Record({"text": "twice"}, FileLocation("a.txt", line)) for line in (1, 9)]
        >>> ValidationSplit(0.5).assign(same[0]) == ValidationSplit(0.5).assign(same[1])
        True
        """
        return self._side(self._hash(record))

    def _side(self, number: int) -> SplitName:
        return "validation" if number < self.fraction * 2**64 else "train"

    def _hash(self, record: Record) -> int:
        fields = record.fields
        if self.group_by:
            missing = [name for name in self.group_by if name not in fields]
            if missing:
                raise UsageError(
                    f"{record.location}: the record has no field {missing[0]!r}, which group_by names; set group_by "
                    f"to one of its fields: {', '.join(fields)}"
                )
            fields = {name: fields[name] for name in self.group_by}
        digest = blake2b(digest_size=8, key=self.seed.to_bytes(16, "little", signed=True), person=b"qkv split")
        for name in sorted(fields):
            value = fields[name]
            is_text = isinstance(value, str)
            text = value if is_text else json.dumps(value, sort_keys=True, default=str)
            data = text.encode("utf-8", "surrogatepass")
            digest.update(f"{'t' if is_text else 'j'}{name}\0{len(data)}\0".encode() + data)
        return int.from_bytes(digest.digest(), "big")

    def _by_content(self, records: Iterable[Record], split_name: SplitName, skipped: Counter[int]) -> Iterator[Record]:
        """The records of one side of the split.

        For the error message, `skipped` counts the hashes of the records before the first record of this side.
        """
        is_empty = True
        for record in records:
            number = self._hash(record)
            if self._side(number) == split_name:
                is_empty = False
                yield record
            elif is_empty:
                skipped[number] += 1

    def _describe_shortage(self, skipped: Counter[int]) -> str:
        if len(skipped) > skipped.total() / 2 or skipped.total() == 1:
            return "there are too few records"
        fields = f" (by {', '.join(self.group_by)})" if self.group_by else ""
        different = "they are all equal" if len(skipped) == 1 else f"only {len(skipped):,} of them are different"
        return (
            f"there are {skipped.total():,} records, but {different}{fields}, and equal records stay on the same side "
            "of the split"
        )

    def _by_tail(self, read_records: Callable[[], Iterable[Record]], split_name: SplitName) -> Iterator[Record]:
        """Split after ⌊number of characters · (1 − fraction)⌋ characters. A plain text that spans the border is cut."""
        total = sum(_num_characters(record) for record in read_records())
        border = int(total * (1 - self.fraction))
        start = 0
        for record in read_records():
            size = _num_characters(record)
            before_border = max(0, min(size, border - start))
            start += size
            name, text = next(iter(record.fields.items()))
            if 0 < before_border < size and len(record.fields) == 1 and isinstance(text, str):
                kept = text[:before_border] if split_name == "train" else text[before_border:]
                yield Record({name: kept}, record.location)
            elif (before_border > 0) == (split_name == "train"):
                yield record


def _num_characters(record: Record) -> int:
    """The number of characters in the texts of a record; 1 for a record without text."""
    return sum(len(value) for value in record.fields.values() if isinstance(value, str)) or 1
