"""The sections of a recipe for a model that speaks: how long the clips are, and a model that suits them."""

from math import ceil

from qkv.sounds.config import FRAMES_PER_POSITION, HOP_SECONDS
from qkv.tasks.starters.starter import RecipeLine

POSITION = FRAMES_PER_POSITION * HOP_SECONDS  # seconds
MARGIN = 1.5  # the longest of all clips, as a multiple of the longest of the first clips
JOINED_SECONDS = 5.0  # short clips are joined up to this time
BATCH_SECONDS = 80
MINUTES = 10.0


def speech_length(longest: float) -> int:
    """The positions of a sequence, for clips of which the longest of the first has these seconds."""
    return 10 * ceil((max(MARGIN * longest, JOINED_SECONDS) / POSITION + 1) / 10)


def speech_data_lines(longest: float) -> list[RecipeLine]:
    """The keys of [data] after the files."""
    length = speech_length(longest)
    shown = f"positions of speech, each {1000 * POSITION:.0f} ms: {length * POSITION:.1f} seconds"
    return [
        ("max_length", length, shown),
        ("too_long", "skip", "longer clips are counted and left out"),
        ("layout", "padded", "batches of clips of equal length"),
    ]


def speech_tokenizer_lines() -> list[RecipeLine]:
    """The keys of [tokenizer]."""
    return [
        ("kind", "char", "each character has a duration"),
        ("lowercase", True, "upper and lower case are the same"),
    ]


def speech_model_lines() -> list[RecipeLine]:
    """The keys of [model]."""
    return [
        ("width", 192, "size of the hidden states"),
        ("layers", 4, "blocks"),
        ("audio", {"rate": 16_000, "mels": 80}, "samples per second, and bands of the spectrogram"),
        ("dropout", 0.1, "more if there is little data"),
    ]


def speech_train_lines(longest: float, minutes: float) -> list[RecipeLine]:
    """The keys of [train]."""
    tokens = max(round(BATCH_SECONDS / POSITION), 4 * speech_length(longest))
    return [
        ("minutes", float(minutes or MINUTES), "training time (or steps = …, or epochs = …)"),
        ("batch_tokens", tokens, "positions and characters per step; lower it if memory runs out"),
        ("optimizer", "muon", "often needs fewer steps than adamw for a small model"),
        ("lr", 3e-3, "peak learning rate; try a third and three times as much"),
        ("eval_examples", 100, "validation clips that are spoken in an evaluation"),
        ("final", "best", "keep the weights with the best validation result (or last)"),
    ]
