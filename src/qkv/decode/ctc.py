"""Transcripts from the output of a CTC head: the best path, a prefix beam search, and the alignment of tokens.

T frames, V outputs (the last one is the blank), L tokens of a transcript
"""

from typing import NamedTuple

import numpy as np

MIN_LOG_PROB = -9.0  # less likely outputs of a frame do not extend a prefix
NEVER = -np.inf


class CTCHypothesis(NamedTuple):
    """A transcript, and its log-probability: the sum over the alignments that the search has found."""

    ids: tuple[int, ...]
    score: float


def best_path(log_probs: np.ndarray) -> CTCHypothesis:
    """The most likely output of each frame (T, V), without blanks and repetitions.

    >>> best_path(np.log([[0.8, 0.1, 0.1], [0.7, 0.1, 0.2], [0.1, 0.1, 0.8], [0.6, 0.3, 0.1]])).ids
    (0, 0)
    """
    blank, chosen = log_probs.shape[1] - 1, log_probs.argmax(1)
    is_new = np.append(True, chosen[1:] != chosen[:-1])[: len(chosen)]
    return CTCHypothesis(tuple(chosen[is_new & (chosen != blank)].tolist()), float(log_probs.max(1).sum()))


def search_prefixes(log_probs: np.ndarray, beam: int) -> list[CTCHypothesis]:
    """The most likely transcripts of frames (T, V), the best first, by a prefix beam search (Hannun et al. 2014).

    A prefix has two log-probabilities: of the alignments that end in the blank, and of the others.
    """
    blank = log_probs.shape[1] - 1
    prefixes: dict[tuple[int, ...], tuple[float, float]] = {(): (0.0, NEVER)}
    for frame in log_probs.astype(np.float64):
        best = np.argpartition(-frame, min(beam, blank))[: beam + 1]
        tokens = [int(token) for token in best if token != blank and frame[token] > MIN_LOG_PROB]
        found: dict[tuple[int, ...], tuple[float, float]] = {}

        def add(prefix: tuple[int, ...], in_blank: float, in_token: float, found: dict = found) -> None:  # type: ignore[type-arg]
            before = found.get(prefix, (NEVER, NEVER))
            found[prefix] = (np.logaddexp(before[0], in_blank), np.logaddexp(before[1], in_token))

        for prefix, (in_blank, in_token) in prefixes.items():
            total = np.logaddexp(in_blank, in_token)
            add(prefix, total + frame[blank], in_token + frame[prefix[-1]] if prefix else NEVER)
            for token in tokens:  # a repeated token is a new one only after a blank
                add((*prefix, token), NEVER, frame[token] + (in_blank if prefix[-1:] == (token,) else total))
        possible = [prefix for prefix, both in found.items() if max(both) > NEVER]
        order = sorted(possible, key=lambda prefix: -np.logaddexp(*found[prefix]))
        prefixes = {prefix: found[prefix] for prefix in order[:beam]}
    return [CTCHypothesis(prefix, float(np.logaddexp(*both))) for prefix, both in prefixes.items()]


def align(log_probs: np.ndarray, ids: tuple[int, ...]) -> list[tuple[int, int]]:
    """The first frame and the last frame + 1 of each token, in the most likely alignment (Viterbi) of a transcript.

    Frames (T, V) that cannot hold all tokens raise a `ValueError`.

    >>> align(np.log([[0.8, 0.1, 0.1], [0.7, 0.1, 0.2], [0.1, 0.1, 0.8], [0.6, 0.3, 0.1]]), (0, 0))
    [(0, 2), (3, 4)]
    """
    if not ids:
        return []
    states = np.full(2 * len(ids) + 1, log_probs.shape[1] - 1)  # blank, token, blank, token, …, blank
    states[1::2] = ids
    can_skip = np.zeros(len(states), bool)  # the blank between two different tokens
    can_skip[3::2] = states[3::2] != states[1:-2:2]
    scores = np.full(len(states), NEVER)
    scores[:2] = log_probs[0, states[:2]]
    steps = np.zeros((len(log_probs), len(states)), np.int8)  # how many states back the best alignment came from
    for time in range(1, len(log_probs)):
        choices = np.full((3, len(states)), NEVER)
        choices[0], choices[1, 1:], choices[2, 2:] = scores, scores[:-1], scores[:-2]
        choices[2, ~can_skip] = NEVER
        steps[time] = choices.argmax(0)
        scores = choices.max(0) + log_probs[time, states]
    state = len(states) - (1 if scores[-1] >= scores[-2] else 2)
    if scores[state] == NEVER:
        raise ValueError(f"{len(log_probs)} frames cannot hold {len(ids)} tokens")
    spans = [(0, 0)] * len(ids)
    for time in range(len(log_probs) - 1, -1, -1):
        if state % 2:
            _, end = spans[state // 2]
            spans[state // 2] = (time, end or time + 1)
        state -= int(steps[time, state])
    return spans
