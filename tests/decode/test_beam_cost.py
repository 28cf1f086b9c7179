"""What a beam search does not do twice: common beginnings stay in the cache, and sources that are settled leave."""

import pytest
import torch
from decode_models import run_backend, tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.blocks import SelfCache
from qkv.decode import GenerationOptions, generate
from qkv.decode.backend import REFERENCE
from qkv.decode.beam import best_continuations
from qkv.decode.cache_edits import reorder_cache
from qkv.decode.result import GenerationResult
from qkv.decode.runner import ModelRunner
from qkv.decode.sampling import argmax, logsumexp
from qkv.models import Network

SOURCES = [[3, 4, 5, 6], [7], [8, 9, 3], [10, 11]]


def told(results: list[GenerationResult]) -> list[tuple[list[int], float]]:
    return [(one.ids, round(one.score, 10)) for result in results for one in (result, *result.alternatives)]


def test_slots_before_since_stay_and_the_rest_moves() -> None:
    cache = SelfCache(1, 3, 1, 8, 2, dtype=torch.float64)
    cache.keys[0].copy_(torch.arange(3.0)[:, None, None, None].expand(3, 1, 8, 2))
    cache.filled = 5
    reorder_cache(cache, torch.tensor([2, 0, 0]), start=3)
    assert cache.keys[0][:, 0, :, 0].tolist() == [
        [0, 0, 0, 2, 2, 0, 0, 0],
        [1, 1, 1, 0, 0, 1, 1, 1],
        [2, 2, 2, 0, 0, 2, 2, 2],
    ]


@pytest.mark.parametrize("beam", [2, 4])
def test_moving_only_what_differs_is_enough(network: Network, beam: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the cache is moved at all: `Forks` moves a mask in its place."""
    options = GenerationOptions(max_tokens=12, beam=beam, num_return_sequences=beam)
    moved: list[int] = []

    def watch(cache: SelfCache, rows: torch.Tensor, start: int = 0) -> None:
        moved.append(start)
        reorder_cache(cache, rows, start)

    monkeypatch.setattr("qkv.decode.runner.reorder_cache", watch)
    ours = run_backend(REFERENCE, network, SOURCES, options)
    assert max(moved) > 1, "something stayed"
    monkeypatch.setattr("qkv.decode.runner.reorder_cache", lambda cache, rows, start=0: reorder_cache(cache, rows))
    assert told(ours) == told(run_backend(REFERENCE, network, SOURCES, options))


@pytest.mark.parametrize("family", ["decoder", "seq2seq"])
def test_sources_that_are_settled_leave_the_batch(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = tiny(family, seed=1)
    options = GenerationOptions(max_tokens=24, beam=3, num_return_sequences=3, length_penalty=0.0)
    rows: list[int] = []
    step = ModelRunner.step
    monkeypatch.setattr(ModelRunner, "step", lambda self, chosen: (rows.append(len(chosen)), step(self, chosen))[1])
    together = generate(network, SOURCES, options)
    assert rows[0] == len(SOURCES) * 3
    assert rows[-1] < rows[0], "this model settles its sources at different lengths"
    assert all(count % 3 == 0 for count in rows)
    assert told(together) == told([generate(network, [source], options)[0] for source in SOURCES])


LOGITS = st.lists(st.lists(st.floats(-50, 50), min_size=6, max_size=6), min_size=4, max_size=4)


@settings(max_examples=60, deadline=None)
@given(LOGITS, st.lists(st.floats(-20, 0), min_size=4, max_size=4), st.integers(1, 12))
def test_the_best_ways_on_are_the_best_of_all(logits: list[list[float]], scores: list[float], wide: int) -> None:
    """Against sorting everything; two sources of two beams."""
    table, before = torch.tensor(logits, dtype=torch.float64), torch.tensor(scores, dtype=torch.float64)
    every = (table.log_softmax(-1) + before[:, None]).view(2, -1)
    for source, ways in enumerate(best_continuations(table, before, 2, wide)):
        assert [way.score for way in ways] == pytest.approx(every[source].sort(descending=True).values[:wide].tolist())
        for way in ways:
            assert every[source, way.beam * 6 + way.token].item() == pytest.approx(way.score)


def test_a_row_without_a_way_on_offers_none() -> None:
    never = float("-inf")
    logits = torch.tensor([[0.0, never, 1.0], [never] * 3])
    ways = best_continuations(logits, torch.zeros(2, dtype=torch.float64), 2, 6)[0]
    assert [(way.beam, way.token) for way in ways] == [(0, 2), (0, 0)]


@settings(max_examples=60, deadline=None)
@given(LOGITS)
def test_the_log_of_the_sum_is_exact_enough_in_float32(logits: list[list[float]]) -> None:
    table = torch.tensor(logits)
    exact = table.double().logsumexp(-1)
    assert torch.allclose(logsumexp(table), exact, rtol=0.0, atol=1e-6)
    assert logsumexp(table.double()).tolist() == pytest.approx(exact.tolist(), rel=1e-13, abs=1e-12)


def test_the_log_of_the_sum_of_nothing() -> None:
    assert logsumexp(torch.full((1, 3), float("-inf"))).tolist() == [float("-inf")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_likeliest_is_the_first_of_equals(dtype: torch.dtype) -> None:
    table = torch.tensor([[1.0, 3.0, 3.0, 2.0], [float("-inf"), 0.0, -1.0, 0.0]], dtype=dtype)
    assert argmax(table).tolist() == [1, 1]
