"""Sounds as a modality: the files of records become frames of a log-mel spectrogram.

The token cache has 16-bit samples at the rate of the model, so a file is decoded and resampled once. A file that cannot
be decoded is counted and named, like an invalid line.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from qkv.data.cache.writer import FieldStorage
from qkv.data.modalities import Modality, must_be
from qkv.data.payloads import PayloadFormat
from qkv.data.problems import InvalidRecord
from qkv.data.ragged import IntArray
from qkv.sounds.config import LogMelConfig
from qkv.sounds.files import FULL_SCALE, BadSound, Samples, is_sound, read_samples, to_int16

VERSION = 1  # increase it if other files are accepted, or if they are decoded in another way


class SoundFormat(PayloadFormat):
    """Files of sounds → frames of a log-mel spectrogram."""

    storage = FieldStorage("int16")
    front_end: LogMelConfig

    def __init__(self, front_end: LogMelConfig, augment: Sequence[str] = ()) -> None:
        super().__init__(front_end)
        self.augment = tuple(augment)
        self.fingerprint = f"sound {VERSION} {front_end.rate}"

    def configure(self, settings: Mapping[str, Any], augment: Sequence[str] = ()) -> "SoundFormat":
        given = {one.name: getattr(self.front_end, one.name) for one in fields(self.front_end)} | {"features": 0}
        if augment:
            from qkv.sounds.augment import check_names

            check_names(augment)
        return SoundFormat(LogMelConfig(**{**given, **settings}), augment)

    def for_evaluation(self) -> "SoundFormat":
        return SoundFormat(self.front_end)

    def plan_sizes(self, sizes: IntArray) -> IntArray:
        if not self.augment:
            return sizes
        from qkv.sounds.augment import plan_frames

        return np.stack([plan_frames(sizes[:, 0], self.augment), sizes[:, 1]], axis=1)

    def store(self, value: Any) -> tuple[np.ndarray, tuple[int, int]]:
        if not isinstance(value, bytes):
            raise InvalidRecord(f"the sound {must_be('the bytes of a file', value)}", "wrong type")
        return self.read(value)

    def load(self, value: Any) -> tuple[np.ndarray, tuple[int, int]]:
        if isinstance(value, np.ndarray):
            value = Samples(value, self.front_end.rate)
        try:
            stored, size = self.read(value)
        except OSError as error:
            raise InvalidRecord(f"the file {str(value)!r} cannot be read: {error.strerror or error}") from None
        return self.for_evaluation().decode(stored, size, 0), size

    def read(self, value: Any) -> tuple[np.ndarray, tuple[int, int]]:
        """The 16-bit samples of a sound, and the size of its spectrogram."""
        try:
            samples = to_int16(read_samples(value, self.front_end.rate))
        except BadSound as bad:
            raise InvalidRecord(bad.reason, bad.category) from None
        return samples, (self.front_end.count_frames(len(samples)), 1)

    def decode(self, stored: np.ndarray, size: tuple[int, int], key: int) -> np.ndarray:
        return self.decode_all(stored, np.array([0, len(stored)]), np.array([size]), np.array([key], np.uint64))

    def decode_all(self, stored: np.ndarray, offsets: IntArray, sizes: IntArray, keys: np.ndarray) -> np.ndarray:
        from qkv.sounds.mel import log_mel

        sounds = [stored[start:end].astype(np.float32) / FULL_SCALE for start, end in pairwise(offsets)]
        counts = sizes[:, 0].tolist()
        if not self.augment:
            return log_mel(sounds, self.front_end, counts).numpy()
        from qkv.sounds.augment import change_samples, mask_frames

        sounds = [change_samples(one, self.augment, int(key)) for one, key in zip(sounds, keys, strict=True)]
        frames = log_mel(sounds, self.front_end, counts)
        if "mask" in self.augment and len(keys):
            parts = zip(frames.split(counts), keys, strict=True)
            frames = torch.cat([mask_frames(one, int(key)) for one, key in parts])
        return frames.numpy()


def check_sound(value: Any) -> str:
    """Check a sound: the bytes of a file, a path, or an array of samples."""
    return "" if is_sound(value) else must_be("a sound", value)


def show_sound(value: Any) -> str:
    """Describe a sound in a few words."""
    if isinstance(value, bytes):
        return f"a sound file of {len(value):,} bytes"
    return f"a sound of {len(value):,} samples" if isinstance(value, np.ndarray) else str(value)


AUDIO = Modality(check_sound, show_sound, SoundFormat(LogMelConfig()))
