"""Write a token cache: records are encoded in batches and appended to flat files.

Only a few batches are in memory, so data of any size needs little memory. Batches are encoded in threads, because the
`tokenizers` library releases Python's global lock; meanwhile the calling thread reads the next batch and writes the
previous one.
"""

import os
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from qkv.data.cache.folder import DISK_DTYPES, field_file, location_file
from qkv.data.problems import InvalidRecord, Problems
from qkv.data.records import Record
from qkv.errors import QkvError
from qkv.progress import OnProgress

FieldValues = Sequence[int] | np.ndarray | int | float
EncodedRecord = Mapping[str, FieldValues] | InvalidRecord

BATCH_RECORDS = 4096  # the maximum number of records in a batch
BATCH_CHARACTERS = 2**20  # a batch ends once it has this number of characters, or bytes of files


@dataclass(frozen=True)
class FieldStorage:
    """How a field that is not tokens is stored: bytes of files ("uint8"), or arrays with rows of a fixed shape."""

    dtype: Literal["uint8", "int16", "float16"]
    row_shape: tuple[int, ...] = ()


class RecordEncoder(Protocol):
    """A callable that turns a batch of records into integers. It returns one result for each record, in order.

    A result maps each of `fields` to a list of integers (the fastest), an array or one number. For a record that cannot
    be encoded, the result is an `InvalidRecord`. Several threads call the encoder concurrently.

    An encoder of payloads also has the attribute `storage`, a mapping of fields to `FieldStorage`. The results for
    these fields are arrays of this type.
    """

    fields: tuple[str, ...]  # the names of the encoded fields
    fingerprint: str  # a hash of everything that the results depend on, except the records

    def __call__(self, records: list[Record]) -> Sequence[EncodedRecord]: ...


def write_token_cache(
    folder: Path,
    records: Iterable[Record],
    encode: RecordEncoder,
    problems: Problems,
    workers: int = 2,
    progress: OnProgress | None = None,
) -> dict[str, Any]:
    """Encode all records into `folder`, and return the entries of `meta.json` that describe the files.

    Readers of files count the records in `problems.num_seen`. Records from other sources are counted here.
    """
    storage = getattr(encode, "storage", {})
    writers = {name: make_writer(folder, name, storage.get(name)) for name in encode.fields}
    locations = _LocationWriter(folder)
    num_records = 0
    try:
        for batch, results in encode_in_threads(records, encode, workers):
            num_records += len(batch)
            problems.num_seen = max(problems.num_seen, num_records)
            examples, kept_records = _drop_invalid(batch, results, problems)
            locations.add(kept_records)
            for name, writer in writers.items():
                writer.add([example[name] for example in examples])
            if progress:
                progress(locations.count, 0)
        fields = {name: writer.finish() for name, writer in writers.items()}
        return {"examples": locations.count, "fields": fields, "location": locations.finish()}
    finally:
        locations.close()
        for writer in writers.values():
            writer.close()


def _drop_invalid(
    batch: list[Record], results: Sequence[EncodedRecord], problems: Problems
) -> tuple[list[Mapping[str, FieldValues]], list[Record]]:
    """Report invalid records, and return the other results with their records."""
    if len(results) != len(batch):
        raise RuntimeError(
            f"the encoder returned {len(results)} results for {len(batch)} records; it must return one result for each"
        )
    kept = [result for result in results if not isinstance(result, InvalidRecord)]
    if len(kept) == len(batch):
        return kept, batch
    kept_records = []
    for record, result in zip(batch, results, strict=True):
        if isinstance(result, InvalidRecord):
            problems.leave_out(result, record.location)
        else:
            kept_records.append(record)
    return kept, kept_records


def encode_in_threads(
    records: Iterable[Record], encode: RecordEncoder, workers: int
) -> Iterator[tuple[list[Record], Sequence[EncodedRecord]]]:
    """Yield (batch, results) in order. Up to `workers` batches are encoded while the next one is read."""
    in_flight: deque[tuple[list[Record], Future[Sequence[EncodedRecord]]]] = deque()
    pool = ThreadPoolExecutor(max(1, workers), thread_name_prefix="encode")
    try:
        for batch in batch_records(records):
            in_flight.append((batch, pool.submit(encode, batch)))
            if len(in_flight) > workers:
                done, results = in_flight.popleft()
                yield done, results.result()
        for done, results in in_flight:
            yield done, results.result()
    finally:
        pool.shutdown(cancel_futures=True)


def batch_records(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Yield lists of at most `BATCH_RECORDS` records; lists of long records are shorter."""
    batch: list[Record] = []
    size = 0
    for record in records:
        batch.append(record)
        for value in record.fields.values():
            # faster than `isinstance`, which would take half the time of this loop
            size += len(value) if value.__class__ in (str, bytes) else 16
        if size >= BATCH_CHARACTERS or len(batch) == BATCH_RECORDS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class _ArrayWriter:
    """Appends numbers to several files, one for each part of a field or of the locations."""

    def __init__(self, paths: dict[str, Path]):
        self.paths = paths
        self.files = {part: path.open("wb", buffering=2**18) for part, path in paths.items()}

    def write(self, part: str, numbers: np.ndarray, dtype: str) -> None:
        self.files[part].write(numbers.astype(DISK_DTYPES[dtype]).tobytes())

    def flush(self) -> None:
        """Flush all files to disk, and close them."""
        for file in self.files.values():
            file.flush()
            os.fsync(file.fileno())
        self.close()

    def close(self) -> None:
        for file in self.files.values():
            file.close()


class _FieldWriter(_ArrayWriter):
    """Writes the tokens, offsets and lengths of one field. Tokens are uint16 until one does not fit, then int32."""

    def __init__(self, folder: Path, name: str):
        super().__init__({part: field_file(folder, name, part) for part in ("tokens", "offsets", "lengths")})
        self.name = name
        self.num_tokens = 0
        self.dtype = ""
        self.write("offsets", np.zeros(1), "int64")

    def add(self, values: list[FieldValues]) -> None:
        """Append the values of one batch: one value for each example."""
        if not values:
            return
        flat, lengths = flatten(values, self.name)
        if flat.size:
            dtype = _smallest_dtype(flat, self.name)
            if not self.dtype:
                self.dtype = dtype
            elif dtype != self.dtype and "float32" in (dtype, self.dtype):
                raise QkvError(
                    f"the encoded field {self.name!r} has integers in some records and fractions in others; the "
                    "encoder must return the same type for all records"
                )
            elif self.dtype == "uint16" and dtype == "int32":
                self._widen()
            self.write("tokens", flat, self.dtype)
        ends = self.num_tokens + np.cumsum(lengths)
        self.write("offsets", ends, "int64")
        self.write("lengths", lengths, "int32")
        self.num_tokens = int(ends[-1])

    def _widen(self) -> None:
        """Convert the tokens written so far from uint16 to int32."""
        self.dtype = "int32"
        self.files["tokens"].close()
        path = self.paths["tokens"]
        narrow = path.replace(path.with_suffix(".narrow"))
        self.files["tokens"] = path.open("wb", buffering=2**18)
        with narrow.open("rb") as source:
            while block := source.read(2**20):
                self.write("tokens", np.frombuffer(block, DISK_DTYPES["uint16"]), "int32")
        narrow.unlink()

    def finish(self) -> dict[str, Any]:
        """Flush the files, and return the field's entry in `meta.json`."""
        self.flush()
        return {"dtype": self.dtype or "uint16", "tokens": self.num_tokens}


class _RowWriter(_ArrayWriter):
    """Writes the rows, offsets and lengths of a field with its own storage."""

    def __init__(self, folder: Path, name: str, storage: FieldStorage):
        super().__init__({part: field_file(folder, name, part) for part in ("tokens", "offsets", "lengths")})
        self.name, self.storage = name, storage
        self.num_rows = 0
        self.write("offsets", np.zeros(1), "int64")

    def add(self, values: list[Any]) -> None:
        """Append the values of one batch: one array for each example."""
        for value in values:
            if value.dtype != self.storage.dtype or value.shape[1:] != self.storage.row_shape:
                raise QkvError(
                    f"the encoded field {self.name!r} has an array of {value.dtype} with rows of shape "
                    f"{value.shape[1:]}; the encoder must return {self.storage.dtype} and {self.storage.row_shape}"
                )
            self.write("tokens", value, self.storage.dtype)
        lengths = np.fromiter(map(len, values), np.int64, len(values))
        ends = self.num_rows + np.cumsum(lengths)
        self.write("offsets", ends, "int64")
        self.write("lengths", lengths, "int32")
        self.num_rows += int(lengths.sum())

    def finish(self) -> dict[str, Any]:
        """Flush the files, and return the field's entry in `meta.json`."""
        self.flush()
        return {"dtype": self.storage.dtype, "tokens": self.num_rows, "row_shape": list(self.storage.row_shape)}


def make_writer(folder: Path, name: str, storage: FieldStorage | None) -> _FieldWriter | _RowWriter:
    """The writer of a field: of tokens, or of arrays with a storage of their own."""
    return _FieldWriter(folder, name) if storage is None else _RowWriter(folder, name, storage)


class _LocationWriter(_ArrayWriter):
    """Writes the file and line of each example, for messages."""

    def __init__(self, folder: Path):
        super().__init__({part: location_file(folder, part) for part in ("files", "lines")})
        self.count = 0
        self.file_numbers: dict[str, int] = {}  # file → its number, in order of appearance

    def add(self, records: list[Record]) -> None:
        self.count += len(records)
        numbers = [self.file_numbers.setdefault(record.location.file, len(self.file_numbers)) for record in records]
        self.write("files", np.array(numbers), "int32")
        self.write("lines", np.array([record.location.line for record in records]), "int64")

    def finish(self) -> dict[str, Any]:
        """Flush the files, and return the entry `location` of `meta.json`."""
        self.flush()
        return {"names": list(self.file_numbers)}


def flatten(values: list[FieldValues], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Concatenate the values of many examples: (flat array, lengths as int64).

    >>> flat, lengths = flatten([[1, 2], [], [3]], "ids")
    >>> flat.tolist(), lengths.tolist()
    ([1, 2, 3], [2, 0, 1])
    """
    types = set(map(type, values))
    if types == {list}:
        joined = array("i")  # raises for values that are not integers, or do not fit in int32
        try:
            for value in values:
                joined.fromlist(value)  # type: ignore[arg-type]
        except (TypeError, OverflowError) as error:
            raise QkvError(
                f"the encoded field {name!r} must be a list of 32-bit integers; the encoder returned another value: "
                f"{error}"
            ) from None
        lengths = np.fromiter(map(len, values), np.int64, len(values))  # type: ignore[arg-type]
        return np.frombuffer(joined, np.int32) if joined else np.zeros(0, np.int32), lengths
    if types <= {int, float}:
        return np.array(values), np.ones(len(values), np.int64)
    arrays = [np.asarray(value).reshape(-1) for value in values]
    lengths = np.fromiter((one.size for one in arrays), np.int64, len(arrays))
    nonempty = [one for one in arrays if one.size]  # numpy makes empty lists float64, which would convert all integers
    return np.concatenate(nonempty) if nonempty else np.zeros(0, np.int32), lengths


def _smallest_dtype(flat: np.ndarray, name: str) -> str:
    """The smallest dtype on disk for these numbers."""
    if flat.dtype.kind == "f":
        return "float32"
    if flat.dtype.kind not in "iub":
        raise QkvError(f"the encoded field {name!r} has dtype {flat.dtype}; the encoder must return integers or floats")
    low, high = int(flat.min()), int(flat.max())
    if low >= 0 and high < 2**16:
        return "uint16"
    if low >= -(2**31) and high < 2**31:
        return "int32"
    raise QkvError(
        f"the encoded field {name!r} has the value {high if high >= 2**31 else low}, which does not fit in 32 bits; "
        "the encoder must return smaller numbers"
    )
