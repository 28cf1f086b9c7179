"""Samples → the bytes of sound files: WAV and raw samples with the standard library, other formats with soundfile."""

import io
import wave

import numpy as np

from qkv.errors import UsageError, suggest_name
from qkv.sounds.files import import_soundfile, to_int16

FORMATS = {"flac": ("FLAC", "PCM_16"), "ogg": ("OGG", "VORBIS"), "opus": ("OGG", "OPUS")}
"""The formats of soundfile by the ending of a file."""
ENDINGS = ("wav", *FORMATS, "pcm")
OPUS_RATES = (8_000, 12_000, 16_000, 24_000, 48_000)


def encode_sound(samples: np.ndarray, rate: int, format: str) -> bytes:
    """Samples between −1 and 1 as a file: wav, flac, ogg (Vorbis), opus (in Ogg), or pcm (16 bits, without a header).

    >>> len(encode_sound(np.zeros(160, np.float32), 16_000, "pcm"))
    320
    """
    if format not in ENDINGS:
        raise UsageError(f"{format!r} is not a format that qkv writes; {suggest_name(format, ENDINGS)}")
    integers, buffer = to_int16(samples), io.BytesIO()
    if format == "pcm":
        return integers.astype("<i2").tobytes()
    if format == "wav":
        with wave.open(buffer, "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(rate)
            file.writeframes(integers.astype("<i2").tobytes())
        return buffer.getvalue()
    if format == "opus" and rate not in OPUS_RATES:
        raise UsageError(f"Opus has no rate of {rate:,} Hz; choose another format, such as flac")
    name, subtype = FORMATS[format]
    import_soundfile().write(buffer, integers, rate, subtype, format=name)
    return buffer.getvalue()
