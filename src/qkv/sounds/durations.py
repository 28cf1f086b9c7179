"""How long each token of an utterance is spoken: the silences around it, and an alignment of its tokens.

T positions, L tokens, F mel bands
"""

import numpy as np

SILENCE = 1.0  # frames are in powers of ten divided by 4: 40 dB below the loudest frame of a sound is silence


def find_silences(frames: np.ndarray, frames_per_position: int) -> tuple[int, int]:
    """The positions of silence before and after an utterance, from its log-mel frames (n, F)."""
    loudness = frames.max(1)
    is_loud = np.flatnonzero(loudness > loudness.max() - SILENCE)
    first, last = int(is_loud[0]), int(is_loud[-1])
    return first // frames_per_position, (len(frames) - 1 - last) // frames_per_position


def align_tokens(scores: np.ndarray) -> np.ndarray:
    """The positions of each token, at least 1, in the best monotonic alignment of scores (T, L) with T ≥ L.

    >>> align_tokens(np.log([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]]))
    array([2, 1])
    """
    count, length = scores.shape
    best = np.full(length, -np.inf)
    best[0] = scores[0, 0]
    is_next = np.zeros((count, length), bool)  # whether the best path to a token comes from the token before it
    for time in range(1, count):
        before = np.concatenate([[-np.inf], best[:-1]])
        is_next[time] = before > best
        best = np.maximum(best, before) + scores[time]
    durations, token = np.zeros(length, np.int64), length - 1
    for time in range(count - 1, -1, -1):
        durations[token] += 1
        token -= int(is_next[time, token])
    return durations
