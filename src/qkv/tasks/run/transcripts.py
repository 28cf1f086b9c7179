"""Transcribe sounds with a CTC head: windows of sounds become log-probabilities, tokens, and words with their times.

T vectors of a window, V outputs of the head
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from qkv.blocks import Inputs
from qkv.data.sounds import SoundFormat
from qkv.decode.ctc import CTCHypothesis, align, best_path, search_prefixes
from qkv.errors import UsageError
from qkv.models.runtime import eval_mode
from qkv.sounds.files import BadSound, Samples
from qkv.sounds.windows import SoundWindow, split_sound
from qkv.tasks.run.example_batches import at_least_float32
from qkv.tasks.run.payloads import find_format, join_parts, make_item
from qkv.tasks.text_model import TextModel
from qkv.text import Tokenizer

WINDOW_SECONDS = 20.0  # of a long sound, if the model was trained on sounds of this length


class TimedWord(NamedTuple):
    """A word, and where it starts and ends, in seconds."""

    word: str
    start: float
    end: float


class TranscribedSound(NamedTuple):
    """The text of a sound, its words, and its duration in seconds."""

    text: str
    words: list[TimedWord]
    seconds: float


def transcribe_sounds(
    model: TextModel, values: Sequence[Any], beam: int, rate: int | None = None, language: str = ""
) -> list[TranscribedSound]:
    """The transcripts of sounds of any length: paths, the bytes of files, or samples at `rate`.

    An encoder-decoder gives no times of words.
    """
    format = find_format(model.config)
    assert isinstance(format, SoundFormat)
    texts: list[list[str]] = [[] for _ in values]
    words: list[list[TimedWord]] = [[] for _ in values]
    seconds = [0.0] * len(values)
    is_ctc, encoder = model.config.head.kind == "ctc", model.config.encoder
    assert encoder is not None
    longest = encoder.max_positions * format.front_end.seconds
    windows = find_windows(format, values, min(WINDOW_SECONDS, longest) if is_ctc else longest, rate)
    while chunk := list(islice(windows, model.batch_size)):
        if not is_ctc:
            from qkv.tasks.run.spoken_text import generate_texts

            found_texts = generate_texts(model, format, [window for _, window in chunk], beam, language)
            for (owner, window), text in zip(chunk, found_texts, strict=True):
                texts[owner].append(text)
                seconds[owner] = (window.start + len(window.samples)) / format.front_end.rate
            continue
        log_probs = compute_log_probs(model, format, [window for _, window in chunk])
        for (owner, window), one in zip(chunk, log_probs, strict=True):
            start = window.start / format.front_end.rate
            found = search_prefixes(one, beam)[0] if beam > 1 else best_path(one)
            texts[owner].append(model.tokenizer.target.decode(found.ids).strip())
            words[owner] += time_words(model.tokenizer.target, found, one, format.front_end.seconds, start)
            seconds[owner] = start + len(window.samples) / format.front_end.rate
            if model.progress is not None:
                model.progress(owner + 1, len(values))
    whole = [" ".join(filter(None, parts)) for parts in texts]
    return [TranscribedSound(*one) for one in zip(whole, words, seconds, strict=True)]


def find_windows(
    format: SoundFormat, values: Iterable[Any], max_seconds: float, rate: int | None
) -> Iterator[tuple[int, SoundWindow]]:
    """The windows of all sounds, each with the number of its sound."""
    config = format.front_end
    for number, value in enumerate(values):
        given = Samples(value, rate or config.rate) if isinstance(value, np.ndarray) else value
        try:
            for window in split_sound(given, config.rate, max_seconds):
                yield number, window
        except BadSound as bad:
            raise UsageError(f"audio {number + 1}: {bad.reason}") from None
        except OSError as error:
            reason = f"the file {str(value)!r} cannot be read: {error.strerror or error}"
            raise UsageError(f"audio {number + 1}: {reason}") from None


def compute_log_probs(model: TextModel, format: SoundFormat, windows: Sequence[SoundWindow]) -> list[np.ndarray]:
    """The log-probabilities of each window, (T, V)."""
    items = [make_item(format, window.samples, "the sound") for window in windows]
    prompts = [join_parts([item], model.tokenizer.special_tokens.pad or 0) for item in items]
    inputs = Inputs.from_sequences(prompts, always_document_ids=True, device=model.network.device)
    with eval_mode(model.network):
        x, _ = model.network.hidden(inputs, tap=model.tap)
        logits = at_least_float32(model.network.head.project(x)).log_softmax(-1).cpu().numpy()
    return [row[: item.length] for row, item in zip(logits, items, strict=True)]


def time_words(
    tokenizer: Tokenizer, found: CTCHypothesis, log_probs: np.ndarray, seconds: float, start: float
) -> list[TimedWord]:
    """The words of a transcript. A word starts with its first token, and ends with its last one."""
    text = tokenizer.decode(found.ids)
    if not text.strip():
        return []
    spans = align(log_probs, found.ids)
    ends = [len(tokenizer.decode(found.ids[: count + 1])) for count in range(len(found.ids))]
    starts = [0, *ends[:-1]]
    words = []
    for match in re.finditer(r"\S+", text):
        inside = [i for i, end in enumerate(ends) if starts[i] < match.end() and end > match.start()]
        first, last = spans[inside[0]][0], spans[inside[-1]][1]
        words.append(TimedWord(match[0], round(start + first * seconds, 3), round(start + last * seconds, 3)))
    return words
