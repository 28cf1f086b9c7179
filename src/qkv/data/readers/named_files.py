"""Files that a table names: a path in a field of a record is replaced by the content of the file.

A path is relative to the folder of the table. A field may also have the bytes themselves, as in Parquet, or a data URL.
With `start` and `end` in seconds, only this part of a sound is read.
"""

import binascii
import math
from base64 import b64decode
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from qkv.data.modalities import parse_number
from qkv.data.problems import InvalidRecord, Problems
from qkv.data.records import Record
from qkv.files import to_path
from qkv.images.files import read_file
from qkv.sounds.config import SOUND_FIELD

DATA_URL = "data:"


def read_named_files(records: Iterable[Record], fields: Collection[str], problems: Problems) -> Iterator[Record]:
    """Replace the paths in `fields` of the records by the content of the files. A record whose file cannot be read is
    left out.
    """
    for record in records:
        values = {name: record.fields[name] for name in fields if name in record.fields}
        if has_part(record) or any(not isinstance(value, bytes) for value in values.values()):
            try:
                read = {name: read_value(value, record, name) for name, value in values.items()}
            except InvalidRecord as invalid:
                problems.leave_out(invalid, record.location)
                continue
            record = replace(record, fields={**record.fields, **read})
        yield record


def has_part(record: Record) -> bool:
    """Whether a record has a part of a sound."""
    return SOUND_FIELD in record.fields and any(record.fields.get(name) not in (None, "") for name in ("start", "end"))


def read_part(value: Any, record: Record) -> bytes:
    """The part of a sound from `start` to `end` seconds, as the bytes of a WAV file. Raises `InvalidRecord`."""
    from qkv.sounds.files import BadSound, read_wav_part

    given = {name: record.fields[name] for name in ("start", "end") if record.fields.get(name) not in (None, "")}
    times = {name: parse_number(record, name) for name in given}
    start, end = times.get("start", 0.0), times.get("end", math.inf)
    if not 0 <= start < end:
        raise InvalidRecord(f"the part from {start:g} to {end:g} seconds is empty", "wrong times")
    try:
        return read_wav_part(value if isinstance(value, bytes) else find_named_file(value, record), start, end)
    except BadSound as bad:
        raise InvalidRecord(bad.reason, bad.category) from None


def read_value(value: Any, record: Record, name: str = "") -> Any:
    """The bytes of a value: the value itself, bytes inside it, or the content of the file that it names. Raises
    `InvalidRecord`.
    """
    if isinstance(value, Mapping) and isinstance(value.get("bytes"), bytes):  # an image of the library `datasets`
        value = value["bytes"]
    if isinstance(value, str) and value.startswith(DATA_URL):
        value = read_data_url(value)
    if not isinstance(value, str):
        return read_part(value, record) if name == SOUND_FIELD and has_part(record) else value
    if not value.strip():
        raise InvalidRecord("the path of the file is empty", "no file")
    try:
        if name == SOUND_FIELD and has_part(record):
            return read_part(value, record)
        return read_file(find_named_file(value, record))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidRecord(f"the file {value!r} cannot be read: {reason}", "unreadable file") from None


def read_data_url(url: str) -> bytes:
    """The bytes of a data URL in base64. Raises `InvalidRecord`."""
    header, comma, text = url.partition(",")
    try:
        if not comma or not header.endswith(";base64"):
            raise ValueError("it must be data:TYPE;base64,…")
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRecord(f"not a data URL in base64: {error}", "broken data URL") from None


def find_named_file(name: str, record: Record) -> Path:
    """The path of a file that a record names, relative to the folder of the record's table."""
    return Path(record.location.file).parent / to_path(name)


def hash_named_files(records: Iterable[Record], fields: Collection[str]) -> str:
    """A hash of the names, sizes and modification times of the files that records name; "" if they name none."""
    found, count = blake2b(digest_size=16), 0
    for record in records:
        for value in (record.fields.get(name) for name in fields):
            if isinstance(value, str) and not value.startswith(DATA_URL):
                count += 1
                try:
                    status = find_named_file(value, record).stat()
                    found.update(f"{value} {status.st_size} {status.st_mtime_ns}\n".encode())
                except (OSError, ValueError):
                    found.update(f"{value} is missing\n".encode("utf-8", "surrogatepass"))
    return found.hexdigest() if count else ""
