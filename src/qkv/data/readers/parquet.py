"""Parquet: one row a record, read a batch of rows at a time."""

from collections.abc import Iterator
from typing import Any

from qkv.data.problems import InvalidRecord
from qkv.data.readers.columns import FieldSelector, get_nested, nested_names, unknown_column_error
from qkv.data.readers.decompress import open_file
from qkv.data.readers.find_files import FileGroup
from qkv.data.readers.jsonl import check_text
from qkv.data.readers.options import ReadContext
from qkv.data.records import FileLocation, Record
from qkv.errors import QkvError

ROWS_PER_BATCH = 1024  # rows held at a time


def read_parquet(group: FileGroup, context: ReadContext) -> Iterator[Record]:
    """Rows of a Parquet file as records; only the chosen columns are read. `where.line` counts rows from 1."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise QkvError('reading Parquet needs the pyarrow package: pip install "qkv[parquet]"') from None
    path, problems = group.paths[0], context.problems
    file = str(path)
    picker = FieldSelector(context.options.columns, file)
    number = 0
    with open_file(path) as raw:
        try:
            table = pyarrow.parquet.ParquetFile(raw)
            if table.metadata.num_rows == 0:
                problems.note("empty file", FileLocation(file), "the file holds no rows")
            wanted = _columns_to_read(context.options.columns, table.schema_arrow, file)
            for batch in table.iter_batches(batch_size=ROWS_PER_BATCH, columns=wanted):
                for row in _row_dicts(batch):
                    number += 1
                    problems.num_seen += 1
                    try:
                        if isinstance(row, InvalidRecord):
                            raise row
                        check_text(row)
                        yield Record(picker.select(row), FileLocation(file, number))
                    except InvalidRecord as bad:
                        problems.skip(bad.category, FileLocation(file, number), bad.reason)
        except (pyarrow.ArrowException, OSError) as error:
            reason = str(error).partition("\n")[0]
            problems.broken_file(
                "damaged Parquet", FileLocation(file, number), f"damaged, or no Parquet file: {reason}"
            )
    if context.on_bytes:
        context.on_bytes(path.stat().st_size)


def _columns_to_read(columns: dict[str, str | int] | None, schema: Any, file: str) -> list[str] | None:
    """The top-level columns to read for a choice; a name that is not there is an error."""
    if columns is None:
        return None
    shape = {field.name: _struct_fields(field.type) for field in schema}
    top = []
    for column in map(str, columns.values()):
        if not get_nested(shape, column, present=True):
            raise unknown_column_error(column, nested_names(shape), file)
        top.append(column if column in shape else column.partition(".")[0])
    return list(dict.fromkeys(top))


def _struct_fields(arrow_type: Any) -> dict[str, Any] | None:
    """The names inside a struct column, so that they can be listed and reached as those of JSON are."""
    return (
        {inner.name: _struct_fields(inner.type) for inner in arrow_type} if "struct<" in str(arrow_type)[:7] else None
    )


def _row_dicts(batch: Any) -> Iterator[dict[str, Any] | InvalidRecord]:
    try:
        yield from batch.to_pylist()
    except UnicodeDecodeError:  # a writer that did not check its text: find the rows
        for place in range(batch.num_rows):
            try:
                yield batch.slice(place, 1).to_pylist()[0]
            except UnicodeDecodeError as error:
                yield InvalidRecord(f"a text that is not UTF-8 ({error.reason})", "invalid UTF-8")
