"""A validation split for users without a validation file: a fraction of the records, the same on every machine.

By `content` (the default) a keyed hash of the record decides its side. So the split does not depend on the order,
the line numbers or the number of records; it stays the same when lines are appended, moved or removed; and two copies
of one example are never on both sides. The fraction is met on average, not exactly. `group_by` hashes only some
fields: records that agree in them stay together (all translations of a sentence, all questions about a context).

By `tail` the last fraction of the text is the validation part, as is usual for a language model on one long text:
lines taken out here and there would leave gaps in the training text. The border moves when text is appended.
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
    """The fraction of records that goes to validation, and how they are chosen.

    >>> split = ValidationSplit(0.1, seed=7)
    >>> train = split.records(read_records, "train")             # doctest: +SKIP
    """

    fraction: float
    seed: int = 0
    split_by: Literal["content", "tail"] = "content"
    group_by: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.fraction < 1:
            raise UsageError(f"the validation fraction must be between 0 and 1, not {self.fraction}")
        if self.split_by not in ("content", "tail"):
            raise UsageError(f"split_by must be 'content' or 'tail', not {self.split_by!r}")
        if self.group_by and self.split_by == "tail":
            raise UsageError("group_by needs split_by = 'content': a split by tail cuts at a position in the text")

    def to_dict(self) -> dict[str, Any]:
        """Everything the split depends on, for a cache's key."""
        return asdict(self)

    def records(self, read_records: Callable[[], Iterable[Record]], split_name: SplitName) -> Iterator[Record]:
        """The records of one side. `read_records` reads all of them; a split by tail calls it twice."""
        by_content = self.split_by == "content"
        split = self._by_content(read_records(), split_name) if by_content else self._by_tail(read_records, split_name)
        record = None
        for record in split:
            yield record
        if record is None:
            raise QkvError(
                f"a validation fraction of {self.fraction} leaves no records for {split_name}; change the fraction, "
                "add data, or split one long text by tail"
            )

    def assign(self, record: Record) -> SplitName:
        """The side of a record, by its content only.

        >>> from qkv.data.records import FileLocation
        >>> same = [Record({"text": "twice"}, FileLocation("a.txt", line)) for line in (1, 9)]
        >>> ValidationSplit(0.5).assign(same[0]) == ValidationSplit(0.5).assign(same[1])
        True
        """
        fields = record.fields
        if self.group_by:
            missing = [name for name in self.group_by if name not in fields]
            if missing:
                raise UsageError(
                    f"{record.location}: no field {missing[0]!r} to group the split by; the record has: "
                    + ", ".join(fields)
                )
            fields = {name: fields[name] for name in self.group_by}
        digest = blake2b(digest_size=8, key=self.seed.to_bytes(16, "little", signed=True), person=b"qkv split")
        for name in sorted(fields):
            value = fields[name]
            is_text = isinstance(value, str)
            text = value if is_text else json.dumps(value, sort_keys=True, default=str)
            data = text.encode("utf-8", "surrogatepass")
            digest.update(f"{'t' if is_text else 'j'}{name}\0{len(data)}\0".encode() + data)
        return "validation" if int.from_bytes(digest.digest(), "big") < self.fraction * 2**64 else "train"

    def _by_content(self, records: Iterable[Record], split_name: SplitName) -> Iterator[Record]:
        return (record for record in records if self.assign(record) == split_name)

    def _by_tail(self, read_records: Callable[[], Iterable[Record]], split_name: SplitName) -> Iterator[Record]:
        """The first ⌊characters · (1 − fraction)⌋ are for training; a plain text across the border is cut there."""
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
    """The characters of a record's texts; a record without text counts as one."""
    return sum(len(value) for value in record.fields.values() if isinstance(value, str)) or 1
