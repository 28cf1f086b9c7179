"""Arrays in JSON: numbers in C order, little-endian, raw deflate, base64. `static/unpack.js` reads them.

Exact arrays keep their dtype. Arrays for pictures are quantized to 8 bits: weights between 0 and 1, and numbers of
either sign. Both are on a square-root scale, so that small numbers stay visible beside a few large ones.
"""

import base64
import zlib
from typing import Any, Literal, TypedDict

import numpy as np

WEIGHT_ERROR = 1 / 255 + 1 / (4 * 255**2)
"""The largest difference between a weight in 0 … 1 and its value after `pack_weights`: at weights near 1."""

SIGNED_ERROR = 1 / 127 + 1 / (4 * 127**2)
"""The largest error of `pack_signed`, for numbers of the largest magnitude, as a fraction of it."""

Scale = Literal["none", "sqrt", "signed"]
DTYPES: dict[str, np.dtype[Any]] = {"u8": np.dtype("u1"), "i32": np.dtype("<i4"), "f32": np.dtype("<f4")}


class Packed(TypedDict):
    """A packed array.

    Byte b stands for size · (b / 255)² on the scale "sqrt", and for size · c |c| / 127², c = b − 128, on "signed".
    """

    dtype: str
    shape: list[int]
    scale: Scale
    size: float
    data: str


def pack(values: Any) -> Packed:
    """Pack an array without loss: as bytes (uint8), int32 or float32."""
    array = np.asarray(values)
    if array.dtype == np.uint8:
        dtype = "u8"
    else:
        dtype = "i32" if np.issubdtype(array.dtype, np.integer) else "f32"
    return _pack(array.astype(DTYPES[dtype]), dtype, "none", 1.0)


def pack_weights(values: Any) -> Packed:
    """Quantize weights between 0 and 1. The error is at most √weight / 255 + 1 / (4 · 255²)."""
    array = np.asarray(values, np.float64)
    return _pack(np.rint(np.sqrt(array.clip(0, 1)) * 255).astype(np.uint8), "u8", "sqrt", 1.0)


def pack_signed(values: Any) -> Packed:
    """Quantize numbers of either sign. The error is at most SIGNED_ERROR · the largest magnitude."""
    array = np.nan_to_num(np.asarray(values, np.float64), posinf=0.0, neginf=0.0)
    size = float(np.abs(array).max(initial=0.0)) or 1.0
    steps = np.rint(np.sign(array) * np.sqrt(np.abs(array) / size) * 127)
    return _pack((steps + 128).astype(np.uint8), "u8", "signed", size)


def unpack(packed: Packed) -> Any:
    """The numbers that a packed array stands for."""
    raw = zlib.decompress(base64.b64decode(packed["data"]), wbits=-15)
    stored = np.frombuffer(raw, DTYPES[packed["dtype"]]).reshape(packed["shape"])
    if packed["scale"] == "sqrt":
        return packed["size"] * (stored / 255.0) ** 2
    if packed["scale"] == "signed":
        steps = stored.astype(np.float64) - 128
        return packed["size"] * steps * np.abs(steps) / 127**2
    return stored


def _pack(array: np.ndarray, dtype: str, scale: Scale, size: float) -> Packed:
    compressor = zlib.compressobj(9, wbits=-15)
    data = compressor.compress(np.ascontiguousarray(array).tobytes()) + compressor.flush()
    return Packed(dtype=dtype, shape=list(array.shape), scale=scale, size=size, data=base64.b64encode(data).decode())
