"""A small formant synthesiser: English digits from a table of phones, in voices that follow from a seed.

A voiced phone is a sum of the harmonics of the voice, each as strong as the resonances (formants) near it. A voiceless
phone is noise in a band. It is a stand-in for recordings in examples and tests: it does not sound like a person.

n samples, K harmonics
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

RATE = 16_000
STEP = 16  # samples, or 1 ms, in which the formants do not move
BANDWIDTHS = (80.0, 100.0, 140.0)  # of the formants, in hertz
VOWELS = {  # the formants in hertz, of a man; Peterson and Barney (1952), rounded
    "iy": (270, 2290, 3010),
    "ih": (390, 1990, 2550),
    "eh": (530, 1840, 2480),
    "aa": (730, 1090, 2440),
    "ah": (640, 1190, 2390),
    "ao": (570, 840, 2410),
    "uw": (300, 870, 2240),
    "uh": (440, 1020, 2240),
    "r": (420, 1250, 1600),
    "w": (300, 610, 2200),
    "n": (250, 1300, 2300),
    "v": (260, 1100, 2200),
}
QUIET = {"n": 0.35, "v": 0.25, "w": 0.6, "r": 0.7}  # the loudness of a voiced phone, if it is not 1
NOISES = {  # a band in hertz, and the loudness
    "s": (4_500, 7_800, 0.25),
    "f": (1_500, 7_500, 0.08),
    "th": (3_000, 7_800, 0.05),
    "z": (4_000, 7_500, 0.15),
    "t": (3_000, 6_500, 0.35),
    "k": (1_500, 3_500, 0.35),
}
STOPS = {"t", "k"}  # silence, then a short burst
DIGITS = {
    "zero": "z:80 ih:70 r:70 ao:60 uh:110",
    "one": "w:80 ah:130 n:120",
    "two": "t:80 uw:200",
    "three": "th:80 r:70 iy:190",
    "four": "f:90 ao:180 r:90",
    "five": "f:90 aa:130 ih:90 v:80",
    "six": "s:110 ih:90 k:90 s:120",
    "seven": "s:110 eh:90 v:60 ah:70 n:110",
    "eight": "eh:90 iy:90 t:110",
    "nine": "n:80 aa:130 ih:80 n:100",
}
"""The phones of each digit, and their durations in milliseconds."""


class Voice(NamedTuple):
    """A speaker: the pitch in hertz, the scale of the formants, and the speed."""

    pitch: float
    scale: float
    speed: float


def make_voice(rng: np.random.Generator) -> Voice:
    """A random voice: low voices have low formants, mostly."""
    size = rng.uniform()
    return Voice(90 + 140 * size + rng.normal(0, 8), 0.92 + 0.28 * size + rng.normal(0, 0.02), rng.uniform(0.8, 1.25))


def say_digits(words: Sequence[str], voice: Voice, rng: np.random.Generator) -> np.ndarray:
    """Digits with pauses between them, and a little noise, as samples (n,) between −1 and 1."""
    parts = [silence(rng.uniform(0.05, 0.15))]
    for word in words:
        parts += [say_word(word, voice, rng), silence(rng.uniform(0.04, 0.15))]
    sound = np.concatenate(parts)
    sound *= rng.uniform(0.2, 0.8) / max(1e-9, float(np.abs(sound).max()))
    return (sound + rng.uniform(0.0005, 0.005) * rng.standard_normal(len(sound))).clip(-1, 1).astype(np.float32)


def silence(seconds: float) -> np.ndarray:
    """Zeros."""
    return np.zeros(round(seconds * RATE))


def say_word(word: str, voice: Voice, rng: np.random.Generator) -> np.ndarray:
    """A digit; its pitch falls, and its phones move smoothly into each other."""
    phones = [
        (name, int(milliseconds)) for name, _, milliseconds in (one.partition(":") for one in DIGITS[word].split())
    ]
    stretch = RATE / 1000 / voice.speed
    counts = [round(stretch * milliseconds * rng.uniform(0.85, 1.15)) for _, milliseconds in phones]
    total = sum(counts)
    formants, loudness, noise = np.zeros((total, 3)), np.zeros(total), np.zeros(total)
    last = next((VOWELS[name] for name, _ in phones if name in VOWELS), VOWELS["ah"])
    start = 0
    for (name, _), count in zip(phones, counts, strict=True):
        inside = slice(start, start + count)
        last = VOWELS.get(name, last)
        formants[inside] = np.array(last) * voice.scale * rng.normal(1, 0.02, 3)
        if name in VOWELS:
            loudness[inside] = QUIET.get(name, 1.0)
        else:
            noise[inside] = make_noise(name, count, rng)
        start += count
    formants, loudness = smooth(formants), smooth(loudness[:, None])[:, 0]
    pitch = voice.pitch * np.linspace(1.08, 0.88, total) * (1 + 0.01 * np.sin(np.arange(total) * 2 * np.pi * 5 / RATE))
    sound: np.ndarray = loudness * add_harmonics(pitch, formants) + noise
    return sound


def add_harmonics(pitch: np.ndarray, formants: np.ndarray) -> np.ndarray:
    """The sum of the harmonics of a pitch (n,), as strong as the formants (n, 3) say every `STEP` samples."""
    first = np.exp(2j * np.pi * np.cumsum(pitch) / RATE)
    harmonic, sound = np.ones_like(first), np.zeros(len(pitch))
    slow_pitch, slow_formants = pitch[::STEP, None], formants[::STEP]
    for number in range(1, int(0.47 * RATE / pitch.max())):  # K harmonics
        harmonic *= first
        gains = 1 / (1 + ((number * slow_pitch - slow_formants) / np.array(BANDWIDTHS)) ** 2)
        loudness = (gains @ np.array([1.0, 0.5, 0.25]) + 0.003) / number**0.4
        sound += np.repeat(loudness, STEP)[: len(pitch)] * harmonic.imag
    return sound


def make_noise(name: str, count: int, rng: np.random.Generator) -> np.ndarray:
    """The noise of a voiceless phone, (count,)."""
    low, high, loudness = NOISES[name]
    spectrum = np.fft.rfft(rng.standard_normal(count))
    hertz = np.fft.rfftfreq(count, 1 / RATE)
    noise = np.fft.irfft(spectrum * ((hertz > low) & (hertz < high)), count)
    noise *= loudness / max(1e-9, float(noise.std())) * np.hanning(count) ** 0.3
    if name in STOPS:
        noise[: count // 2] = 0
        noise[count // 2 :] *= np.linspace(1, 0, count - count // 2)
    return noise


def smooth(values: np.ndarray, milliseconds: float = 30.0) -> np.ndarray:
    """The moving average of each column of (n, k)."""
    width = round(milliseconds * RATE / 1000)
    padded = np.pad(values, ((width // 2, width - width // 2), (0, 0)), mode="edge")
    sums = np.cumsum(padded, axis=0)
    means: np.ndarray = (sums[width:] - sums[:-width]) / width
    return means
