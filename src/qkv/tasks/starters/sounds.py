"""The sections of a recipe for records with sounds: how long they are, and a model that suits them."""

from collections.abc import Sequence
from math import ceil
from typing import Any

from qkv.data.records import Record
from qkv.sounds.config import LogMelConfig
from qkv.sounds.files import BadSound, read_samples
from qkv.tasks.starters.starter import RecipeLine, Starter

EXAMPLE_SECONDS = 5.0  # of a sound, if there is no file
MARGIN = 1.5  # the longest of all sounds, as a multiple of the longest of the first sounds
BATCH_SOUNDS = 32
MINUTES = 10.0
CONFIG = LogMelConfig(stride=4)


def find_longest(records: Sequence[Record]) -> float:
    """The seconds of the longest of some sounds that can be decoded."""
    seconds = [0.0]
    for record in records:
        value = record.fields.get("audio")
        try:
            seconds.append(len(read_samples(value, CONFIG.rate)) / CONFIG.rate if isinstance(value, bytes) else 0)
        except BadSound:
            continue
    return max(seconds) or EXAMPLE_SECONDS


def sound_length(longest: float) -> int:
    """The vectors of a sequence, for sounds of which the longest of the first has these seconds."""
    return 10 * ceil((MARGIN * longest / CONFIG.seconds + 2) / 10)


def sound_data_lines(longest: float) -> list[RecipeLine]:
    """The keys of [data] after the files."""
    length = sound_length(longest)
    shown = f"vectors of a sound, each {1000 * CONFIG.seconds:.0f} ms: {length * CONFIG.seconds:.1f} seconds"
    return [
        ("max_length", length, shown),
        ("too_long", "skip", "longer sounds are counted and left out"),
        ("augment", ["speed", "noise", "mask"], "changes of training sounds"),
        ("layout", "padded", "batches of records of equal length"),
    ]


def sound_model_lines(starter: Starter) -> list[RecipeLine]:
    """The keys of [model]."""
    audio = {"rate": CONFIG.rate, "mels": CONFIG.mels, "stride": CONFIG.stride}
    lines: list[RecipeLine] = [
        ("width", 128, "size of the hidden states"),
        ("layers", 4, "blocks"),
        ("audio", audio, "samples per second, bands of the spectrogram, and 10-ms frames of a vector"),
        ("dropout", 0.1, "more if there is little data"),
    ]
    if starter.reads_sounds:
        return lines
    return [*lines, ("head", {"pool": "mean", "dense": "none", "dropout": 0.0}, "the mean of all vectors")]


def sound_train_lines(longest: float, minutes: float) -> list[RecipeLine]:
    """The keys of [train]."""
    budget: Any = float(minutes or MINUTES)
    tokens = BATCH_SOUNDS * sound_length(longest)
    return [
        ("minutes", budget, "training time (or steps = …, or epochs = …)"),
        ("batch_tokens", tokens, f"at least {BATCH_SOUNDS} sounds per step; lower it if memory runs out"),
        ("optimizer", "muon", "often needs fewer steps than adamw for a small model"),
        ("lr", 3e-3, "peak learning rate; try a third and three times as much"),
        ("final", "best", "keep the weights with the best validation result (or last)"),
    ]
