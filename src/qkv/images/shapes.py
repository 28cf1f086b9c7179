"""Draw coloured shapes with smooth edges, and write pixels as PNG, without any library of images.

The coverage of a pixel follows from the signed distance of its middle to the edge of the shape, in pixels.
"""

import struct
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

Distance = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(x, y) relative to the middle of a shape of radius 1 → the signed distance to its edge, negative inside."""


def box(x: np.ndarray, y: np.ndarray, width: float, height: float) -> np.ndarray:
    """The distance to the edge of a rectangle."""
    dx, dy = np.abs(x) - width, np.abs(y) - height
    outside: np.ndarray = np.hypot(np.maximum(dx, 0), np.maximum(dy, 0)) + np.minimum(np.maximum(dx, dy), 0)
    return outside


def triangle(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The distance to the edges of a triangle with its point at the top; y counts downwards."""
    sides: np.ndarray = np.maximum((2 * np.abs(x) - y - 1) / 5**0.5, y - 0.85)
    return sides


SHAPES: dict[str, Distance] = {
    "circle": lambda x, y: np.hypot(x, y) - 1,
    "square": lambda x, y: box(x, y, 0.85, 0.85),
    "triangle": triangle,
    "cross": lambda x, y: np.minimum(box(x, y, 1.0, 0.36), box(x, y, 0.36, 1.0)),
}


class Shape(NamedTuple):
    """A shape in a picture. Positions and the radius are fractions of the picture's side."""

    name: str
    colour: tuple[int, int, int]
    x: float
    y: float
    radius: float


def draw_shapes(shapes: Sequence[Shape], side: int, background: tuple[int, int, int]) -> np.ndarray:
    """A picture (side, side, 3) in bytes; later shapes cover earlier ones."""
    pixels = np.empty((side, side, 3), np.float32)
    pixels[:] = background
    for shape in shapes:
        radius = shape.radius * side
        rows, columns = (
            slice(max(0, int(middle * side - radius) - 1), min(side, int(middle * side + radius) + 2))
            for middle in (shape.y, shape.x)
        )
        y = (np.arange(rows.start, rows.stop)[:, None] + 0.5 - shape.y * side) / radius
        x = (np.arange(columns.start, columns.stop)[None] + 0.5 - shape.x * side) / radius
        coverage = np.clip(0.5 - SHAPES[shape.name](x, y) * radius, 0, 1)[..., None]
        part = pixels[rows, columns]
        pixels[rows, columns] = part + coverage * (np.array(shape.colour, np.float32) - part)
    return pixels.round().astype(np.uint8)


def write_png(pixels: np.ndarray) -> bytes:
    """Pixels (height, width, 3) in bytes as the bytes of a PNG file."""
    height, width, _ = pixels.shape
    rows = np.zeros((height, 1 + 3 * width), np.uint8)  # each row begins with its filter, 0: none
    rows[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 6)), (b"IEND", b""))
    parts = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)
