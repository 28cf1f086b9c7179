"""Images as a modality: the files of records become patches of pixels.

The token cache has the files as they are. A file that cannot be decoded is counted and named, like an invalid line.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any

import numpy as np

from qkv.data.modalities import Modality, must_be
from qkv.data.payloads import PayloadFormat
from qkv.data.problems import InvalidRecord
from qkv.data.ragged import IntArray
from qkv.images.config import PatchesConfig
from qkv.images.files import BadImage, is_image, load_image, open_image, split_patches

VERSION = 1  # increase it if other files are accepted


class ImageFormat(PayloadFormat):
    """Files of images ↔ patches of pixels, one byte for each number."""

    dtype = "uint8"
    front_end: PatchesConfig

    def __init__(self, front_end: PatchesConfig, augment: Sequence[str] = ()) -> None:
        super().__init__(front_end)
        self.augment = tuple(augment)
        self.fingerprint = f"image {VERSION} {front_end.grid}"

    def configure(self, settings: Mapping[str, Any], augment: Sequence[str] = ()) -> "ImageFormat":
        given = {one.name: getattr(self.front_end, one.name) for one in fields(self.front_end)} | {"features": 0}
        if augment:
            from qkv.images.augment import check_names

            check_names(augment)
        return ImageFormat(PatchesConfig(**{**given, **settings}), augment)

    def for_evaluation(self) -> "ImageFormat":
        return ImageFormat(self.front_end)

    def store(self, value: Any) -> tuple[np.ndarray, tuple[int, int]]:
        if not isinstance(value, bytes):
            raise InvalidRecord(f"the image {must_be('the bytes of a file', value)}", "wrong type")
        try:
            open_image(value)
        except BadImage as bad:
            raise InvalidRecord(bad.reason, bad.category) from None
        return np.frombuffer(value, np.uint8), self.front_end.grid

    def load(self, value: Any) -> tuple[np.ndarray, tuple[int, int]]:
        try:
            pixels = load_image(value, self.front_end)
        except BadImage as bad:
            raise InvalidRecord(bad.reason, bad.category) from None
        except OSError as error:
            raise InvalidRecord(f"the file {str(value)!r} cannot be read: {error.strerror or error}") from None
        return split_patches(pixels, self.front_end.patch), self.front_end.grid

    def decode(self, stored: np.ndarray, size: tuple[int, int], key: int) -> np.ndarray:
        return self.decode_all(stored, np.array([0, len(stored)]), np.array([size]), np.array([key], np.uint64))

    def decode_all(self, stored: np.ndarray, offsets: IntArray, sizes: IntArray, keys: np.ndarray) -> np.ndarray:
        config = self.front_end
        pixels = np.zeros((len(keys), config.size, config.size, 3), np.uint8)
        for number, (start, end) in enumerate(pairwise(offsets)):
            pixels[number] = load_image(stored[start:end].tobytes(), config)
        if self.augment and len(keys):
            from qkv.images.augment import augment

            pixels = augment(pixels, self.augment, keys)
        return split_patches(pixels, config.patch).reshape(-1, self.width)


def check_image(value: Any) -> str:
    """Check an image: the bytes of a file, a path, or a Pillow image."""
    return "" if is_image(value) else must_be("an image", value)


def show_image(value: Any) -> str:
    """Describe an image in a few words."""
    if isinstance(value, bytes):
        return f"an image file of {len(value):,} bytes"
    return f"an image of {' × '.join(map(str, value.size))} pixels" if hasattr(value, "size") else str(value)


IMAGE = Modality(check_image, show_image, ImageFormat(PatchesConfig()))
