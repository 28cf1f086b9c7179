"""Image files for tests, good and bad, made with Pillow."""

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest

pytest.importorskip("PIL", reason="Pillow is not installed")
from PIL import Image


def picture(height: int = 8, width: int = 8, seed: int = 0) -> np.ndarray:
    """Random pixels, (height, width, 3)."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def encode(pixels: np.ndarray, format: str = "PNG", mode: str = "", **options: Any) -> bytes:
    """Pixels as the bytes of a file."""
    image = Image.fromarray(pixels)
    buffer = io.BytesIO()
    (image.convert(mode) if mode else image).save(buffer, format, **options)
    return buffer.getvalue()


def colour_file(colour: tuple[int, int, int], seed: int = 0, size: int = 8) -> bytes:
    """A PNG of nearly one colour."""
    noise = np.random.default_rng(seed).integers(-20, 20, (size, size, 3))
    return encode((np.array(colour) + noise).clip(0, 255).astype(np.uint8))


def claim_size(width: int, height: int) -> bytes:
    """A PNG whose header claims a size, with hardly any data."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def animation() -> bytes:
    """A GIF of two frames: red, then blue."""
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    buffer = io.BytesIO()
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
    return buffer.getvalue()
