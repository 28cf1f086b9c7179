"""The header of a GGUF file: its metadata, and the type, shape and place of each tensor.

A file is: the magic bytes, the version, the number of tensors, the number of metadata entries; the entries (key, type,
value); the tensors (name, dimensions, type, offset); and the data of the tensors. All numbers are little-endian. Every
length is checked against the size of the file before anything is read, so a damaged file cannot ask for much memory.
"""

import mmap
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qkv.errors import QkvError, shorten
from qkv.files import MAX_FILE_BYTES, open_file

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_HEADER_BYTES = MAX_FILE_BYTES
MAX_DIMENSIONS = 4
STRING, ARRAY = 8, 9
SCALAR_FORMATS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
"""The number of a value's type → its NumPy dtype."""


class GgufTensor(NamedTuple):
    """A tensor of the file."""

    type_number: int  # of ggml, such as 2 for Q4_0
    shape: tuple[int, ...]  # in the order of PyTorch: the last dimension is contiguous
    offset: int  # of its first byte, from the start of the tensor data


class MalformedHeaderError(Exception):
    """The bytes are not the header of a GGUF file."""


class GgufFile:
    """A GGUF file. Its bytes are memory-mapped, and only the header is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, GgufTensor] = {}
        with open_file(path) as file:
            try:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except (ValueError, OSError) as error:  # an empty file
                raise QkvError(f"{path}: cannot be read ({error}); fetch or copy the file again") from None
        self._position = 0
        try:
            self._read_header()
        except (MalformedHeaderError, UnicodeDecodeError) as error:
            raise QkvError(
                f"{path}: not a usable GGUF file ({error}); it may be truncated or damaged: fetch or copy it again"
            ) from None

    def tensor_bytes(self, name: str, num_bytes: int) -> np.ndarray:
        """The stored bytes of a tensor, as an array that is backed by the file."""
        start = self._data_start + self.tensors[name].offset
        if start + num_bytes > len(self._data):
            raise QkvError(
                f"{self.path}: the file has {len(self._data):,} bytes, but the tensor {shorten(name)!r} needs bytes up "
                f"to {start + num_bytes:,}; it is truncated or damaged: fetch or copy it again"
            )
        return np.frombuffer(self._data, np.uint8, num_bytes, start)

    @property
    def num_data_bytes(self) -> int:
        """The number of bytes after the header."""
        return max(0, len(self._data) - self._data_start)

    def _read_header(self) -> None:
        if self._take(4) != MAGIC:
            raise MalformedHeaderError("its first bytes are not GGUF")
        version = self._number("<I")
        if version not in VERSIONS:
            raise MalformedHeaderError(f"version {version}; known: {', '.join(map(str, VERSIONS))}, little-endian")
        num_tensors, num_entries = self._number("<Q"), self._number("<Q")
        for _ in range(num_entries):  # each reads at least a few bytes, so a false number runs into the end of the file
            key = self._string()
            if key in self.metadata:
                raise MalformedHeaderError(f"the key {shorten(key)!r} occurs twice")
            self.metadata[key] = self._value(self._number("<I"))
        for _ in range(num_tensors):
            self._read_tensor()
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or isinstance(alignment, bool) or not 0 < alignment <= 2**20:
            raise MalformedHeaderError(f"general.alignment = {shorten(repr(alignment))}")
        self._data_start = -(-self._position // alignment) * alignment

    def _read_tensor(self) -> None:
        name = self._string()
        if name in self.tensors:
            raise MalformedHeaderError(f"the tensor {shorten(name)!r} occurs twice")
        num_dimensions = self._number("<I")
        if not 1 <= num_dimensions <= MAX_DIMENSIONS:
            raise MalformedHeaderError(f"the tensor {shorten(name)!r} has {num_dimensions} dimensions")
        shape = tuple(self._number("<Q") for _ in range(num_dimensions))
        if min(shape) < 1 or max(shape) >= 2**40:
            raise MalformedHeaderError(f"the tensor {shorten(name)!r} has the shape {shape}")
        self.tensors[name] = GgufTensor(self._number("<I"), shape[::-1], self._number("<Q"))

    def _value(self, value_type: int) -> Any:
        if value_type == STRING:
            return self._string()
        if value_type in SCALAR_FORMATS:
            return self._scalars(value_type, 1)[0]
        if value_type != ARRAY:
            raise MalformedHeaderError(f"a value of the unknown type {value_type}")
        element_type, length = self._number("<I"), self._number("<Q")
        if element_type == STRING:
            return [self._string() for _ in range(length)]
        if element_type not in SCALAR_FORMATS:
            raise MalformedHeaderError(f"an array of the type {element_type}")
        return self._scalars(element_type, length)

    def _scalars(self, value_type: int, count: int) -> list[Any]:
        dtype = np.dtype(SCALAR_FORMATS[value_type])
        values: list[Any] = np.frombuffer(self._take(dtype.itemsize * count), dtype).tolist()
        return values

    def _string(self) -> str:
        return self._take(self._number("<Q")).decode("utf-8")

    def _number(self, number_format: str) -> int:
        (number,) = struct.unpack(number_format, self._take(struct.calcsize(number_format)))
        return int(number)

    def _take(self, num_bytes: int) -> bytes:
        end = self._position + num_bytes
        if end > min(len(self._data), MAX_HEADER_BYTES):
            raise MalformedHeaderError(
                f"its header needs bytes up to {end:,}, but the file has {len(self._data):,}, and a header at most "
                f"{MAX_HEADER_BYTES:,}"
            )
        taken = self._data[self._position : end]
        self._position = end
        return taken
