"""Parquet: one row a record, read a batch of rows at a time."""

from collections.abc import Iterator
from typing import Any

from qkv.data.problems import BadRecord
from qkv.data.readers.columns import Picker, names_of, no_column, reach
from qkv.data.readers.find import Part
from qkv.data.readers.jsonl import check_text
from qkv.data.readers.opening import open_file
from qkv.data.readers.reading import Reading
from qkv.data.records import Record, Where
from qkv.errors import QkvError

ROWS = 1024  # rows held at a time


def read_parquet(part: Part, reading: Reading) -> Iterator[Record]:
    """Rows of a Parquet file as records; only the chosen columns are read. `where.line` counts rows from 1."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise QkvError('reading Parquet needs the pyarrow package: pip install "qkv[parquet]"') from None
    path, problems = part.paths[0], reading.problems
    file = str(path)
    picker = Picker(reading.options.columns, file)
    number = 0
    with open_file(path) as raw:
        try:
            table = pyarrow.parquet.ParquetFile(raw)
            if table.metadata.num_rows == 0:
                problems.note("empty file", Where(file), "the file holds no rows")
            wanted = _wanted(reading.options.columns, table.schema_arrow, file)
            for batch in table.iter_batches(batch_size=ROWS, columns=wanted):
                for row in _rows(batch):
                    number += 1
                    problems.seen += 1
                    try:
                        if isinstance(row, BadRecord):
                            raise row
                        check_text(row)
                        yield Record(picker.pick(row), Where(file, number))
                    except BadRecord as bad:
                        problems.skip(bad.kind, Where(file, number), bad.reason)
        except (pyarrow.ArrowException, OSError) as error:
            reason = str(error).partition("\n")[0]
            problems.broken("damaged Parquet", Where(file, number), f"damaged, or no Parquet file: {reason}")
    if reading.on_bytes:
        reading.on_bytes(path.stat().st_size)


def _wanted(choice: dict[str, str | int] | None, schema: Any, file: str) -> list[str] | None:
    """The top-level columns to read for a choice; a name that is not there is an error."""
    if choice is None:
        return None
    shape = {field.name: _shape(field.type) for field in schema}
    top = []
    for column in map(str, choice.values()):
        if not reach(shape, column, present=True):
            raise no_column(column, names_of(shape), file)
        top.append(column if column in shape else column.partition(".")[0])
    return list(dict.fromkeys(top))


def _shape(kind: Any) -> dict[str, Any] | None:
    """The names inside a struct column, so that they can be listed and reached as those of JSON are."""
    return {inner.name: _shape(inner.type) for inner in kind} if "struct<" in str(kind)[:7] else None


def _rows(batch: Any) -> Iterator[dict[str, Any] | BadRecord]:
    try:
        yield from batch.to_pylist()
    except UnicodeDecodeError:  # a writer that did not check its text: find the rows
        for place in range(batch.num_rows):
            try:
                yield batch.slice(place, 1).to_pylist()[0]
            except UnicodeDecodeError as error:
                yield BadRecord(f"a text that is not UTF-8 ({error.reason})", "invalid UTF-8")
