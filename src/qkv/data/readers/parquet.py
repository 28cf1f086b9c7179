"""Parquet: each row is a record; a batch of rows is read at a time."""

from collections.abc import Iterator
from typing import Any

from qkv.data.problems import InvalidRecord
from qkv.data.readers.columns import MISSING, get_nested, nested_names, select_records, unknown_column_error
from qkv.data.readers.decompress import open_data_file
from qkv.data.readers.find_files import FileGroup
from qkv.data.readers.options import ReadContext
from qkv.data.records import FileLocation, Record
from qkv.errors import QkvError

ROWS_PER_BATCH = 1024


def read_parquet(group: FileGroup, context: ReadContext) -> Iterator[Record]:
    """The rows of a Parquet file as records; only the chosen columns are read. The location counts rows from 1."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise QkvError('reading Parquet needs the pyarrow package: pip install "qkv[parquet]"') from None
    path, problems = group.paths[0], context.problems
    file = str(path)
    seen_before = problems.num_seen
    with open_data_file(path) as raw:
        try:
            table = pyarrow.parquet.ParquetFile(raw)
            if table.metadata.num_rows == 0:
                problems.note("empty file", FileLocation(file), "the file has no rows")
            columns = _columns_to_read(context.options.columns, table.schema_arrow, file)
            batches = table.iter_batches(batch_size=ROWS_PER_BATCH, columns=columns)
            yield from select_records((row for batch in batches for row in _row_dicts(batch)), file, context)
        except (pyarrow.ArrowException, OSError) as error:
            reason = str(error).partition("\n")[0]
            location = FileLocation(file, problems.num_seen - seen_before)
            problems.broken_file("damaged Parquet", location, f"damaged, or not a Parquet file: {reason}")
    if context.on_bytes:
        context.on_bytes(path.stat().st_size)


def _columns_to_read(columns: dict[str, str | int] | None, schema: Any, file: str) -> list[str] | None:
    """The top-level columns to read for a choice; a name that does not exist is an error."""
    if columns is None:
        return None
    shape = {field.name: _struct_fields(field.type) for field in schema}
    top_level = []
    for column in map(str, columns.values()):
        if get_nested(shape, column, MISSING) is MISSING:
            raise unknown_column_error(column, nested_names(shape), file)
        top_level.append(column if column in shape else column.partition(".")[0])
    return list(dict.fromkeys(top_level))


def _struct_fields(arrow_type: Any) -> dict[str, Any] | None:
    """The fields of a struct column as nested dictionaries, so that dotted names work as they do for JSON."""
    if not str(arrow_type).startswith("struct<"):
        return None
    return {inner.name: _struct_fields(inner.type) for inner in arrow_type}


def _row_dicts(batch: Any) -> Iterator[dict[str, Any] | InvalidRecord]:
    try:
        yield from batch.to_pylist()
    except UnicodeDecodeError:  # a text is not valid UTF-8: convert row by row to find it
        for index in range(batch.num_rows):
            try:
                yield batch.slice(index, 1).to_pylist()[0]
            except UnicodeDecodeError as error:
                yield InvalidRecord(f"a text that is not UTF-8 ({error.reason})", "invalid UTF-8")
