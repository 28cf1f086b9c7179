"""What these tests share: an encoder that needs no tokenizer, and helpers that write and read files."""

from pathlib import Path

from qkv.data.problems import InvalidRecord, Problems
from qkv.data.readers import read
from qkv.data.records import Record


class ByteEncode:
    """The UTF-8 bytes of a text are its ids; a text that starts with `bad` cannot be encoded."""

    fields: tuple[str, ...] = ("ids",)

    def __init__(self, shift: int = 0, field: str = "text"):
        self.shift = shift
        self.field = field
        self.fingerprint = f"bytes {shift} {field}"

    def __call__(self, records: list[Record]) -> list[dict[str, list[int]] | InvalidRecord]:
        return [self.one(record.fields[self.field]) for record in records]

    def one(self, text: str) -> dict[str, list[int]] | InvalidRecord:
        if text.startswith("bad"):
            return InvalidRecord("the text is bad")
        return {"ids": [byte + self.shift for byte in text.encode()]}


def write(folder: Path, name: str, data: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def fields_of(*arguments, **options) -> list[dict]:
    """The fields of all records; invalid records are accepted."""
    options.setdefault("problems", Problems(max_invalid_fraction=1))
    return [record.fields for record in read(*arguments, **options)]


def counts(problems: Problems) -> dict[str, int]:
    """The number of problems in each category."""
    return {kind.category: kind.count for kind in problems.summary().categories}
