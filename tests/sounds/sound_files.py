"""Sounds for tests, good and bad, made with soundfile."""

import io
from typing import Any

import numpy as np
import pytest

soundfile = pytest.importorskip("soundfile", reason="soundfile is not installed")
pytest.importorskip("soxr", reason="soxr is not installed")


def tone(hertz: float, seconds: float = 0.3, rate: int = 16_000, seed: int = 0) -> np.ndarray:
    """A sine with a little noise."""
    time = np.arange(round(seconds * rate)) / rate
    noise = np.random.default_rng(seed).normal(size=len(time))
    return (0.4 * np.sin(2 * np.pi * hertz * time) + 0.01 * noise).astype(np.float32)


def encode(samples: np.ndarray, rate: int = 16_000, format: str = "WAV", subtype: str | None = None) -> bytes:
    """Samples as the bytes of a file."""
    buffer = io.BytesIO()
    options: dict[str, Any] = {"format": "OGG" if format == "OPUS" else format}
    soundfile.write(buffer, samples, rate, subtype="OPUS" if format == "OPUS" else subtype, **options)
    return buffer.getvalue()
