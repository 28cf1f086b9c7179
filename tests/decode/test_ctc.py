"""Decoding and alignment of CTC, against sums and maxima over all alignments."""

from itertools import product

import numpy as np
import pytest

from qkv.decode.ctc import align, best_path, search_prefixes


def make_log_probs(frames: int, outputs: int, seed: int) -> np.ndarray:
    logits = np.random.default_rng(seed).normal(size=(frames, outputs))
    return logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)


def transcript_of(path: tuple[int, ...], blank: int) -> tuple[int, ...]:
    merged = [one for i, one in enumerate(path) if i == 0 or path[i - 1] != one]
    return tuple(one for one in merged if one != blank)


@pytest.mark.parametrize("seed", range(4))
def test_a_wide_search_finds_the_most_likely_transcript(seed: int) -> None:
    log_probs = make_log_probs(5, 4, seed)
    sums: dict[tuple[int, ...], float] = {}
    paths: dict[tuple[int, ...], tuple[float, tuple[int, ...]]] = {}
    for path in product(range(4), repeat=5):
        score = float(log_probs[np.arange(5), path].sum())
        text = transcript_of(path, 3)
        sums[text] = np.logaddexp(sums.get(text, -np.inf), score)
        paths[text] = max(paths.get(text, (-np.inf, ())), (score, path))
    found = search_prefixes(log_probs, 1_000)
    assert {one.ids: one.score for one in found} == pytest.approx(sums)
    assert found[0].ids == max(sums, key=lambda ids: sums[ids])
    best_score, path = max(paths.values())
    assert best_path(log_probs).ids == transcript_of(path, 3)
    assert best_path(log_probs).score == pytest.approx(best_score)
    for ids, (_, path) in paths.items():
        spans = align(log_probs, ids)
        assert [path[first] for first, _ in spans] == list(ids)
        for (first, last), one in zip(spans, ids, strict=True):
            assert path[first:last] == (one,) * (last - first)
            assert path[last : last + 1] != (one,)
            assert first == 0 or path[first - 1] != one


def test_a_narrow_search_may_miss_it_but_never_invents_probability() -> None:
    log_probs = make_log_probs(30, 6, 0)
    wide, narrow = search_prefixes(log_probs, 64), search_prefixes(log_probs, 4)
    assert len(narrow) == 4
    assert narrow[0].score <= wide[0].score + 1e-9
    assert wide[0].score >= best_path(log_probs).score


def test_frames_that_cannot_hold_the_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="2 frames cannot hold 2 tokens"):
        align(make_log_probs(2, 4, 0), (1, 1))
    assert align(make_log_probs(2, 4, 0), ()) == []
