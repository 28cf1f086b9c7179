"""The data side of the toy front end: files of coloured squares, with a header and a colour for each square.

    b"SQ", height, width, then height · width colours (0 to 7), then their sum modulo 256

Each square is one vector of 3 numbers: red, green and blue. Images are mirrored at random.
"""

from typing import Any

import numpy as np
from squares import SquaresConfig

from qkv.data.cache.writer import FieldStorage
from qkv.data.payloads import PayloadFormat
from qkv.data.problems import InvalidRecord

COLOURS = ("black", "blue", "green", "cyan", "red", "magenta", "yellow", "white")


class SquareFiles(PayloadFormat):
    """`mirrors`: whether an image is mirrored at random. `as_array`: whether the cache holds the vectors, not files."""

    def __init__(self, mirrors: bool = True, as_array: bool = False, merge: int = 1) -> None:
        super().__init__(SquaresConfig(merge=merge))
        self.mirrors, self.as_array = mirrors, as_array
        self.fingerprint = f"squares 1 {as_array}"
        self.storage = FieldStorage("float16", (3,)) if as_array else FieldStorage("uint8")
        self.num_decoded = 0

    def for_evaluation(self) -> "SquareFiles":
        return SquareFiles(mirrors=False, as_array=self.as_array, merge=self.front_end.merge)

    def store(self, value: Any) -> tuple[np.ndarray, tuple[int, int]]:
        if isinstance(value, list):  # in JSON lines
            value = bytes(value)
        if not isinstance(value, bytes) or value[:2] != b"SQ":
            raise InvalidRecord("the image is not a file of squares", "damaged file")
        data = np.frombuffer(value, np.uint8)
        height, width = int(data[2]), int(data[3])
        if len(data) != 5 + height * width or data[4:-1].sum() % 256 != data[-1] or not height * width:
            raise InvalidRecord("the image is damaged", "damaged file")
        return colours_to_vectors(data[4:-1]).astype(np.float16) if self.as_array else data, (height, width)

    def decode(self, stored: np.ndarray, size: tuple[int, int], key: int) -> np.ndarray:
        self.num_decoded += 1
        vectors = stored.astype(np.float32) if self.as_array else colours_to_vectors(stored[4:-1])
        if self.mirrors and key % 2:
            vectors = vectors.reshape(*size, 3)[:, ::-1].reshape(-1, 3)
        return vectors


def colours_to_vectors(colours: np.ndarray) -> np.ndarray:
    """(n,) colours → (n, 3) float32: the bits of each colour."""
    return (colours[:, None] >> np.array([2, 1, 0]) & 1).astype(np.float32)


def make_file(height: int, width: int, seed: int = 0) -> bytes:
    """A file of random colours."""
    colours = np.random.default_rng([seed, height, width]).integers(0, 8, height * width, dtype=np.uint8)
    return b"SQ" + bytes([height, width, *colours, int(colours.sum()) % 256])


def file_colours(file: bytes) -> list[int]:
    """The colours of a file, row by row."""
    return list(file[4:-1])


def describe_colours(file: bytes) -> str:
    """The colours as a text, which a model can learn to write."""
    return " ".join(COLOURS[colour] for colour in file_colours(file))
