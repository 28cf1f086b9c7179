"""Caches: slots, growth, positions, reordering and cropping.

That cached decoding equals the full forward pass is held for whole networks in `tests/models/test_cached.py`.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from qkv.blocks import CrossCache, SelfCache, SequenceLayout, Stack, make_layout
from qkv.blocks.cache import EncoderMemory
from qkv.decode.cache_edits import crop_cache, reorder_cache, select_sources

LAYERS, ROWS, KV, WIDTH = 2, 3, 2, 4


def make(length: int = 8, rows: int = ROWS) -> SelfCache:
    return SelfCache(LAYERS, rows, KV, length, WIDTH, dtype=torch.float64)


def tokens(count: int, seed: int = 0, rows: int = ROWS) -> Tensor:
    return torch.randn(rows, KV, count, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def put(cache: SelfCache, keys: Tensor, segment: Tensor | None = None) -> SequenceLayout:
    """Write `keys` to every layer, their negatives as values, at the positions that the cache counts on to."""
    ids = torch.zeros(keys.shape[0], keys.shape[2], dtype=torch.long)
    shown = cache.add_layout(make_layout(ids, segment, cache.next_positions(ids, segment)))
    for layer in range(LAYERS):
        cache.write(layer, keys + layer, -keys - layer)
    return shown


def show(cache: SelfCache, layer: int, filled: int) -> tuple[Tensor, Tensor]:
    return cache.keys[layer][:, :, :filled], cache.values[layer][:, :, :filled]


def test_what_is_written_is_shown_in_order() -> None:
    cache, first, second = make(), tokens(3), tokens(2, seed=1)
    put(cache, first)
    put(cache, second)
    for layer in range(LAYERS):
        expected = torch.cat([first, second], dim=2) + layer
        keys, values = show(cache, layer, 5)
        assert torch.equal(keys, expected)
        assert torch.equal(values, -expected)


def test_a_growing_cache_shows_its_filled_slots_alone() -> None:
    cache, keys = make(), tokens(3)
    layout = put(cache, keys)
    assert layout.positions.tolist() == [[0, 1, 2]]
    assert layout.document_ids is None, "rows that are alike need no segments"
    shown, _ = cache.write(0, keys, keys)
    assert shown.shape == (ROWS, KV, 3, WIDTH)


@pytest.mark.parametrize("length", [1, 2, 3, 64])
def test_a_growing_cache_makes_room_and_keeps_what_it_holds(length: int) -> None:
    cache, all_keys = make(length), tokens(9)
    for part in all_keys.split([1, 4, 1, 3], dim=2):
        put(cache, part)
    assert cache.filled == 9
    assert cache.capacity >= 9
    assert torch.equal(show(cache, 1, 9)[0], all_keys + 1)
    assert cache.positions[:, :9].tolist() == [list(range(9))] * ROWS
    assert cache.document_ids[:, :9].tolist() == [[1] * 9] * ROWS
    assert not cache.document_ids[:, 9:].any()
    assert not cache.positions[:, 9:].any()


def test_growth_doubles_so_that_copies_stay_few() -> None:
    cache, lengths = make(1), []
    for _ in range(17):
        put(cache, tokens(1))
        lengths.append(cache.capacity)
    assert sorted(set(lengths)) == [1, 2, 4, 8, 16, 32]


# ── Positions ────────────────────────────────────────────────────────────────────────────────────────────────────

LEFT = torch.tensor([[0, 0, 1], [0, 1, 1], [1, 1, 1]])


@pytest.mark.parametrize("side", ["left", "right"])
def test_each_row_counts_on_from_its_last_token(side: str) -> None:
    cache = make()
    segment = LEFT if side == "left" else LEFT.flip(1)
    ids = torch.zeros(ROWS, 3, dtype=torch.long)
    first = cache.next_positions(ids, segment)
    assert first[segment != 0].tolist() == [0, 0, 1, 0, 1, 2]
    put(cache, tokens(3), segment)
    assert cache.next_positions(ids[:, :2], None).tolist() == [[1, 2], [2, 3], [3, 4]]
    put(cache, tokens(2))
    assert cache.next_positions(ids[:, :1], None).tolist() == [[3], [4], [5]]


def test_rows_that_are_alike_share_one_row_of_positions() -> None:
    """The fast path: no look at a tensor while nothing was padded."""
    cache = make()
    put(cache, tokens(3))
    assert cache.is_default
    assert cache.next_positions(torch.zeros(ROWS, 2), None).tolist() == [[3, 4]]
    put(cache, tokens(3), LEFT)
    assert not cache.is_default
    assert put(cache, tokens(1)).document_ids is not None


# ── Reordering and taking back ───────────────────────────────────────────────────────────────────────────────────


def test_reorder_moves_rows_with_their_places() -> None:
    cache, keys = make(), tokens(3)
    put(cache, keys, LEFT)
    reorder_cache(cache, torch.tensor([2, 0, 0]))
    for layer in range(LAYERS):
        assert torch.equal(show(cache, layer, 3)[0], keys[[2, 0, 0]] + layer)
        assert torch.equal(show(cache, layer, 3)[1], -keys[[2, 0, 0]] - layer)
    assert torch.equal(cache.document_ids[:, :3], LEFT[[2, 0, 0]])
    assert cache.next_positions(torch.zeros(ROWS, 1).long(), None).tolist() == [[3], [1], [1]]


def test_slots_that_rows_have_in_common_stay_where_they_are() -> None:
    """Only what came after `since` is moved; before it the rows are told to hold the same."""
    cache, keys = make(), tokens(5)
    put(cache, keys)
    reorder_cache(cache, torch.tensor([2, 0, 0]), start=3)
    expected = torch.cat([keys[:, :, :3], keys[[2, 0, 0], :, 3:]], dim=2)
    for layer in range(LAYERS):
        assert torch.equal(show(cache, layer, 5)[0], expected + layer)
        assert torch.equal(show(cache, layer, 5)[1], -expected - layer)


@pytest.mark.parametrize("since", [0, 2])
@pytest.mark.parametrize("rows", [[0, 0, 1, 2, 2], [1]], ids=["more", "fewer"])
def test_a_growing_cache_may_be_given_other_numbers_of_rows(rows: list[int], since: int) -> None:
    """One prompt becomes several beams, or texts that are finished leave; new rows get their beginning too."""
    cache, keys = make(), tokens(3)
    put(cache, keys, LEFT)
    reorder_cache(cache, torch.tensor(rows), start=since)
    assert cache.batch_size == len(rows)
    assert torch.equal(show(cache, 0, 3)[0], keys[rows])
    assert torch.equal(cache.document_ids[:, :3], LEFT[rows])


def test_crop_takes_back_the_last_tokens() -> None:
    cache, keys = make(), tokens(5)
    put(cache, keys)
    crop_cache(cache, 2)
    again = tokens(2, seed=1)
    layout = put(cache, again)
    assert torch.equal(show(cache, 0, 4)[0], torch.cat([keys[:, :, :2], again], dim=2))
    assert layout.positions[0, :4].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("filled", [-1, 9])
def test_crop_beyond_what_there_is_is_refused(filled: int) -> None:
    cache = make()
    put(cache, tokens(5))
    with pytest.raises(ValueError, match=f"cannot crop to {filled} slots"):
        crop_cache(cache, filled)


def test_crop_of_a_growing_cache_cannot_uncover_slots_that_were_never_written() -> None:
    cache = make()
    put(cache, tokens(5))
    with pytest.raises(ValueError, match=r"cannot crop to 6 slots: it must lie in 0 … 5"):
        crop_cache(cache, 6)


@pytest.mark.parametrize(("rows", "length"), [(0, 4), (4, 0)])
def test_a_cache_needs_a_row_and_a_slot(rows: int, length: int) -> None:
    with pytest.raises(ValueError, match=f"batch_size = {rows} and capacity = {length}"):
        make(length, rows=rows)


def test_what_is_written_takes_the_type_of_the_cache() -> None:
    cache = SelfCache(LAYERS, ROWS, KV, 8, WIDTH, dtype=torch.bfloat16)
    put(cache, tokens(2))
    assert torch.equal(cache.keys[0][:, :, :2], tokens(2).bfloat16())


# ── The source ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_cross_cache_is_the_memory_projected_by_every_layer(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack(causal=True, cross=True, kv_heads=2)
    source = torch.randn(2, 5, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    layout = make_layout(source, torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]))
    source[0, 3:] = torch.nan  # padding is blank
    memory, cache = EncoderMemory(source, layout), stack.build_cross_cache(source, layout)
    assert (memory.batch_size, cache.batch_size) == (2, 2)
    assert len(cache.keys) == len(cache.values) == 2
    for layer, block in enumerate(stack.blocks):
        fresh = memory.keys_values(layer, block.cross.keys_values)
        kept = cache.keys_values(layer, block.cross.keys_values)
        assert all(torch.equal(a, b) for a, b in zip(fresh, kept, strict=True))
        assert all(t.isfinite().all() for t in kept)
    assert not torch.equal(cache.keys[0], cache.keys[1])
    assert isinstance(cache, CrossCache)


@pytest.mark.parametrize("segmented", [False, True])
def test_a_cross_cache_of_some_sources_is_theirs_alone(make_stack: Callable[..., Stack], segmented: bool) -> None:
    stack = make_stack(causal=True, cross=True)
    source = torch.randn(3, 4, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    segment = torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1], [1, 1, 0, 0]]) if segmented else None
    rows = torch.tensor([2, 0])
    some = select_sources(stack.build_cross_cache(source, make_layout(source, segment)), rows)
    alone = stack.build_cross_cache(source[rows], make_layout(source[rows], None if segment is None else segment[rows]))
    for a, b in zip((*some.keys, *some.values), (*alone.keys, *alone.values), strict=True):
        assert torch.allclose(a, b, atol=1e-14)
    assert some.batch_size == 2
    assert torch.equal(some.layout.positions, alone.layout.positions)
    if segmented:
        assert torch.equal(some.layout.document_ids, alone.layout.document_ids)  # type: ignore[arg-type]
    else:
        assert some.layout.document_ids is None
