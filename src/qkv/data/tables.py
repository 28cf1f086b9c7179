"""Tables in memory as data files: pandas and Polars frames, Arrow tables, datasets (streamed, too), lists of records.

    qkv.train("mine.toml", **{"data.train": frame})
    m.evaluate(frame)

The rows are written once to a JSONL file, whose name is a hash of its content. So a run can be resumed when the table
is gone, and the same table gives the same file.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from qkv.errors import QkvError, UsageError
from qkv.files import report_write_errors

COLUMN_METHODS = ("tolist", "to_list", "to_pylist")
"""How an array, or a column of pandas, Polars or Arrow, becomes a list."""


def column_values(values: Any) -> Any:
    """An array or a column of a table as a list; anything else as it is.

    >>> import numpy as np
    >>> column_values(np.array(["a", "b"])), column_values("a")
    (['a', 'b'], 'a')
    """
    method = next((name for name in COLUMN_METHODS if hasattr(values, name)), None)
    return values if method is None else getattr(values, method)()


def is_table(value: Any) -> bool:
    """Whether a value is a table in memory, and not the names of files.

    >>> is_table([{"text": "a"}]), is_table(["a.tsv", "b.tsv"]), is_table({"source": "a.en"})
    (True, False, False)
    """
    if isinstance(value, str | os.PathLike | Mapping):
        return False
    if isinstance(value, Sequence) and all(isinstance(one, str | os.PathLike) for one in value):
        return False
    return isinstance(value, Iterable) or hasattr(value, "collect") or hasattr(value, "to_batches")


def table_rows(table: Any) -> Iterator[Mapping[str, Any]]:
    """The rows of a table, without holding all of them."""
    if hasattr(table, "collect"):  # a lazy frame of Polars
        table = table.collect()
    if hasattr(table, "iter_rows"):  # a frame of Polars
        yield from table.iter_rows(named=True)
    elif hasattr(table, "itertuples"):  # a frame of pandas
        names = [str(name) for name in table.columns]
        for row in table.itertuples(index=False, name=None):
            yield dict(zip(names, row, strict=True))
    elif hasattr(table, "to_batches"):  # a table of Arrow
        yield from chain.from_iterable(batch.to_pylist() for batch in table.to_batches())
    else:  # a dataset, a reader of record batches, records
        for row in table:
            yield from row.to_pylist() if hasattr(row, "to_pylist") else [row]


def save_table(table: Any, folder: Path) -> Path:
    """Write the rows to a JSONL file in a folder, and return its path."""
    digest, temporary = hashlib.sha256(), folder / f".{os.getpid()}.partial"
    count = 0
    with report_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                for count, row in enumerate(table_rows(table), start=1):
                    line = encode_row(row, count)
                    digest.update(line)
                    file.write(line)
            if not count:
                raise QkvError("the table has no rows; give one with records")
            path = folder / f"{digest.hexdigest()[:16]}.jsonl"
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    return path


def encode_row(row: Any, number: int) -> bytes:
    """A row as a line of JSON. Missing values are left out."""
    if not isinstance(row, Mapping):
        raise UsageError(f"row {number} is {type(row).__name__}, not a record; give dictionaries of field and value")
    values = {str(name): plain_value(value, str(name), number) for name, value in row.items()}
    return json.dumps({name: value for name, value in values.items() if value is not None}).encode() + b"\n"


def plain_value(value: Any, name: str, number: int) -> Any:
    """A value of a cell as JSON has it."""
    if isinstance(value, Mapping):
        return {str(key): plain_value(item, name, number) for key, item in value.items()}
    value = column_values(value)
    if isinstance(value, list | tuple):
        return [plain_value(item, name, number) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes | bytearray | memoryview):
        raise UsageError(f"row {number}: {name} has bytes, which a table in memory cannot hold; write a Parquet file")
    if value is None or isinstance(value, str | int | bool):
        return value
    text = str(value)  # a date, a decimal number, a category
    return None if text in ("NaT", "<NA>") else text
