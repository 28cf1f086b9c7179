"""Trap 13: the source is read once and projected once; beams share it, in one cache that does not grow with them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention

from qkv.blocks import Inputs, Stack
from qkv.blocks.attention import CrossAttention
from qkv.decode.cache_edits import reorder_cache

Make = Callable[..., Any]
SEGMENT = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
BEAMS = 3


@pytest.fixture(autouse=True)
def _no_grad(monkeypatch: pytest.MonkeyPatch) -> Any:
    """FlexAttention runs its own formula, without tracing it anew for every mask."""
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    with torch.no_grad():
        yield


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often the encoder ran, and how often a layer projected its output."""
    counts = {"encoder": 0, "projections": 0}
    forward, project = Stack.forward, CrossAttention.keys_values

    def count_forward(self: Stack, *args: Any, **options: Any) -> Tensor:
        counts["encoder"] += self.name == "encoder"
        return forward(self, *args, **options)

    def count_projection(self: CrossAttention, *args: Any) -> tuple[Tensor, Tensor]:
        counts["projections"] += 1
        return project(self, *args)

    monkeypatch.setattr(Stack, "forward", count_forward)
    monkeypatch.setattr(CrossAttention, "keys_values", count_projection)
    return counts


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, atol=1e-11, rtol=1e-11)


def test_a_decoding_reads_and_projects_its_source_once(network: Make, ids: Make, calls: dict[str, int]) -> None:
    small = network("seq2seq", layers=3)
    memory = small.build_cross_cache(small.encode(Inputs(ids(2, 5), document_ids=SEGMENT)))
    cache = small.new_cache(2 * BEAMS, 8)
    for step in range(5):
        small(ids(2 * BEAMS, 1, seed=step), memory=memory, cache=cache)
        reorder_cache(cache, torch.tensor([1, 0, 2, 4, 3, 5]))
    assert calls == {"encoder": 1, "projections": 3}


def test_without_remembering_every_step_projects_again(network: Make, ids: Make, calls: dict[str, int]) -> None:
    """The negative control of the counting."""
    small = network("seq2seq", layers=3)
    memory = small.encode(Inputs(ids(2, 5), document_ids=SEGMENT))
    cache = small.new_cache(2, 8)
    for step in range(5):
        small(ids(2, 1, seed=step), memory=memory, cache=cache)
    assert calls == {"encoder": 1, "projections": 15}


def test_the_memory_of_the_source_does_not_grow_with_beams(
    network: Make, ids: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in the cache, and not on the way into the kernel either: attention is given one source's keys."""
    small = network("seq2seq")
    memory = small.build_cross_cache(small.encode(Inputs(ids(2, 5), document_ids=SEGMENT)))
    before = [tensor.shape for tensor in (*memory.keys, *memory.values)]
    assert before == [(2, 4, 5, 4)] * 4
    shapes = set()
    attend = CrossAttention.attend

    def watch(self: CrossAttention, q: Tensor, k: Tensor, *rest: Any) -> Tensor:
        shapes.add((q.shape[0], q.shape[2], k.shape[0], k.shape[2]))
        return attend(self, q, k, *rest)

    monkeypatch.setattr(CrossAttention, "attend", watch)
    for beams in (1, 4, 16):
        small(ids(2 * beams, 1), memory=memory, cache=small.new_cache(2 * beams, 2))
    assert [tensor.shape for tensor in (*memory.keys, *memory.values)] == before
    assert shapes == {(2, 1, 2, 5), (2, 4, 2, 5), (2, 16, 2, 5)}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("position", ["sinusoidal", "learned", "rotary", "alibi", "t5"])
def test_beams_with_caches_are_separate_sources_without(network: Make, ids: Make, position: str, padded: bool) -> None:
    """A prefix of two tokens, a step, a reordering, two steps: each beam as if it alone had been decoded."""
    small, source, text = network("seq2seq", position=position), ids(2, 5, seed=1), ids(2 * BEAMS, 5)
    segment = SEGMENT if padded else None
    memory = small.build_cross_cache(small.encode(Inputs(source, document_ids=segment)))
    cache = small.new_cache(2 * BEAMS, 8)
    small(text[:, :2], memory=memory, cache=cache)
    small(text[:, 2:3], memory=memory, cache=cache)
    order = torch.tensor([2, 0, 0, 3, 5, 4])
    reorder_cache(cache, order)
    found = torch.cat([small(text[:, t : t + 1], memory=memory, cache=cache) for t in (3, 4)], dim=1)
    whole = torch.cat([text[order, :3], text[:, 3:]], dim=1)
    repeated = source.repeat_interleave(BEAMS, dim=0)
    segments = None if segment is None else segment.repeat_interleave(BEAMS, dim=0)
    assert close(found, small(Inputs(whole, source=Inputs(repeated, document_ids=segments)))[:, 3:])


@pytest.mark.parametrize("kernel", ["eager", "sdpa", "flex"])
@pytest.mark.parametrize("segmented", [False, True])
def test_beams_without_a_cache_are_separate_sources(network: Make, ids: Make, kernel: str, segmented: bool) -> None:
    """All target positions of all beams against one memory, padded targets too."""
    small, source, text = network("seq2seq", kernel=kernel, position="rotary"), ids(2, 5, seed=1), ids(2 * BEAMS, 4)
    target = torch.tensor([[1, 1, 1, 1], [0, 1, 1, 1], [1, 1, 0, 0]] * 2) if segmented else None
    found = small(Inputs(text, document_ids=target), memory=small.encode(Inputs(source, document_ids=SEGMENT)))
    repeated, segments = (t.repeat_interleave(BEAMS, dim=0) for t in (source, SEGMENT))
    expected = small(Inputs(text, document_ids=target, source=Inputs(repeated, document_ids=segments)))
    real = torch.ones(6, 4, dtype=torch.bool) if target is None else target != 0
    assert close(found[real], expected[real])


def test_targets_that_cannot_share_their_sources_evenly_are_refused(network: Make, ids: Make) -> None:
    small = network("seq2seq")
    with pytest.raises(ValueError, match="a batch of 5 targets for 2 sources"):
        small(ids(5, 1), memory=small.encode(ids(2, 5)))
