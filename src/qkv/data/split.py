"""A validation part when the user has no validation file: a share of the records, the same on every machine.

By `content` (the usual way) a keyed hash of the record itself decides its side. So the split does not depend on
order, line numbers or the number of records; it stays as it is when lines are appended, moved or removed; and two
copies of the same example are never on both sides. The share is reached on average, not exactly. `by` hashes some
fields only: records that agree in them stay together (all translations of one sentence, all questions about one
context).

By `tail` the last share of the text is kept for validation, in one piece, as is usual for language models on one long
text: lines taken out here and there would leave holes in what is read. It moves when text is appended.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any, Literal

from qkv.data.records import Record
from qkv.errors import QkvError, UsageError

SplitName = Literal["train", "validation"]


@dataclass(frozen=True)
class ValidationSplit:
    """Which share goes to validation, and how it is chosen.

    >>> split = ValidationSplit(0.1, seed=7)
    >>> train = split.records(files_again, "train")             # doctest: +SKIP
    """

    fraction: float
    seed: int = 0
    split_by: Literal["content", "tail"] = "content"
    group_by: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.fraction < 1:
            raise UsageError(f"the validation share lies between 0 and 1, not {self.fraction}")
        if self.split_by not in ("content", "tail"):
            raise UsageError(f"a split is by content or tail, not by {self.split_by!r}")
        if self.group_by and self.split_by == "tail":
            raise UsageError("a split by tail goes by place in the file; `by` goes with a split by content")

    def to_dict(self) -> dict[str, Any]:
        """What the split depends on, for a cache's key."""
        return asdict(self)

    def records(self, read_records: Callable[[], Iterable[Record]], split_name: SplitName) -> Iterator[Record]:
        """The records of one side. `again` gives all of them from the start; a split by tail asks twice."""
        chosen = (
            self._by_content(read_records(), split_name)
            if self.split_by == "content"
            else self._by_tail(read_records, split_name)
        )
        empty = True
        for record in chosen:
            empty = False
            yield record
        if empty:
            told = f"a validation share of {self.fraction} leaves no records for {split_name}"
            raise QkvError(f"{told}; change the share, add data, or split one long text by tail")

    def assign(self, record: Record) -> SplitName:
        """The side of a record, by its content alone.

        >>> from qkv.data.records import FileLocation
        >>> same = [Record({"text": "twice"}, FileLocation("a.txt", line)) for line in (1, 9)]
        >>> ValidationSplit(0.5).assign(same[0]) == ValidationSplit(0.5).assign(same[1])
        True
        """
        fields = record.fields
        if self.group_by:
            lacking = [name for name in self.group_by if name not in fields]
            if lacking:
                have = ", ".join(fields)
                raise UsageError(f"{record.location}: the split goes by {lacking[0]!r}, but the record has: {have}")
            fields = {name: fields[name] for name in self.group_by}
        hashed = blake2b(digest_size=8, key=self.seed.to_bytes(16, "little", signed=True), person=b"qkv split")
        for name in sorted(fields):
            value = fields[name]
            kind = "t" if isinstance(value, str) else "j"
            text = value if kind == "t" else json.dumps(value, sort_keys=True, default=str)
            data = text.encode("utf-8", "surrogatepass")
            hashed.update(f"{kind}{name}\0{len(data)}\0".encode() + data)
        return "validation" if int.from_bytes(hashed.digest(), "big") < self.fraction * 2**64 else "train"

    def _by_content(self, records: Iterable[Record], split_name: SplitName) -> Iterator[Record]:
        return (record for record in records if self.assign(record) == split_name)

    def _by_tail(self, read_records: Callable[[], Iterable[Record]], split_name: SplitName) -> Iterator[Record]:
        """The first ⌊characters · (1 − fraction)⌋ train; a plain text that lies across the border is cut there."""
        total = sum(_num_characters(record) for record in read_records())
        border = int(total * (1 - self.fraction))
        start = 0
        for record in read_records():
            size = _num_characters(record)
            here = max(0, min(size, border - start))  # characters of this record that are before the border
            start += size
            text = next(iter(record.fields.values()))
            if 0 < here < size and len(record.fields) == 1 and isinstance(text, str):
                (name,) = record.fields
                cut = text[:here] if split_name == "train" else text[here:]
                yield Record({name: cut}, record.location)
            elif (here > 0) == (split_name == "train"):
                yield record


def _num_characters(record: Record) -> int:
    """Characters of a record, as far as it is text; a record without text counts as one."""
    return sum(len(value) for value in record.fields.values() if isinstance(value, str)) or 1
