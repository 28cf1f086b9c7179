"""Cached decoding equals the full forward pass: any number of tokens at a time.

Trap 4: `is_causal` is aligned to the first token, and so wrong for queries that come after a cache.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention

from qkv.blocks import Inputs
from qkv.blocks.mask import Mask
from qkv.decode.cache_edits import crop_cache, reorder_cache
from qkv.errors import UsageError

POSITIONS = ["sinusoidal", "sinusoidal_split", "learned", "rotary", "alibi", "t5", "none"]
Make = Callable[..., Any]


@pytest.fixture(autouse=True)
def _no_grad(monkeypatch: pytest.MonkeyPatch) -> Any:
    """FlexAttention runs its own formula, without tracing it anew for every mask."""
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    with torch.no_grad():
        yield


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, atol=1e-11, rtol=1e-11)


def in_steps(network: Any, ids: Tensor, steps: list[int], cache: Any, memory: Any = None) -> Tensor:
    """The logits of a text that is given bit by bit."""
    return torch.cat([network(part, memory=memory, cache=cache) for part in ids.split(steps, dim=1)], dim=1)


@pytest.mark.parametrize("steps", [[1] * 8, [3, 3, 2], [5, 1, 1, 1], [4, 3, 1], [8]], ids=str)
@pytest.mark.parametrize("position", POSITIONS)
def test_a_decoder_with_a_cache_is_the_full_forward(network: Make, ids: Make, position: str, steps: list[int]) -> None:
    """Trap 4."""
    small, text = network("decoder", position=position), ids(3, 8)
    cache = small.new_cache(3, 8)
    assert close(in_steps(small, text, steps, cache), small(text))


@pytest.mark.parametrize(
    ("options", "steps", "capacity"),
    [
        ({"position": "rotary", "kv_heads": 2, "kernel": "eager"}, [3, 1, 1], 8),
        ({"position": "rotary", "kv_heads": 2, "kernel": "flex"}, [3, 1, 1], 8),
        ({"sliding_window": 2, "sliding_window_layers": (0,)}, [4, 1, 3, 1], 9),
        *(({}, [2, 1, 1, 5], capacity) for capacity in (1, 3, 8)),
    ],
    ids=["eager", "flex", "window", "grows from 1", "grows from 3", "grows from 8"],
)
def test_every_kernel_and_a_window_read_a_cache_that_may_grow(
    network: Make, ids: Make, options: dict[str, Any], steps: list[int], capacity: int
) -> None:
    small, text = network("decoder", **options), ids(2, sum(steps))
    cache = small.new_cache(2, capacity)
    assert close(in_steps(small, text, steps, cache), small(text))
    assert cache.capacity >= sum(steps)


def test_a_wrongly_aligned_mask_would_be_noticed(network: Make, ids: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: queries that count from 0, as a triangle by index does."""
    small, text = network("decoder", position="rotary"), ids(2, 8)
    full = small(text)
    cache = small.new_cache(2, 8)
    rule = Mask.allows
    monkeypatch.setattr(Mask, "allows", lambda self, a, b, query, key: rule(self, a, b, query - query.amin(), key))
    assert not close(in_steps(small, text, [5, 3], cache), full)


@pytest.mark.parametrize("position", POSITIONS)
def test_a_seq2seq_with_caches_is_the_full_forward(network: Make, ids: Make, position: str) -> None:
    small, source, target = network("seq2seq", position=position), ids(2, 5, seed=1), ids(2, 6)
    segment = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 1, 0, 0]])
    full = small(Inputs(target, source=Inputs(source, document_ids=segment)))
    memory = small.build_cross_cache(small.encode(Inputs(source, document_ids=segment)))
    assert close(in_steps(small, target, [2, 1, 3], small.new_cache(2, 6), memory), full)


# ── Prompts of unequal length ────────────────────────────────────────────────────────────────────────────────────

PROMPTS = ([3, 1, 4, 1, 5], [9, 2], [6])
NEXT = torch.tensor([[5, 3], [5, 8], [9, 7]])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("position", POSITIONS)
def test_prompts_of_unequal_length_decode_in_one_batch_as_alone(network: Make, position: str, side: str) -> None:
    small = network("decoder", position=position)
    batch, segment = torch.zeros(3, 5, dtype=torch.long), torch.zeros(3, 5, dtype=torch.long)
    for row, prompt in enumerate(PROMPTS):
        where = slice(5 - len(prompt), 5) if side == "left" else slice(0, len(prompt))
        batch[row, where], segment[row, where] = torch.tensor(prompt), 1
    cache = small.new_cache(3, 8)
    first = small(Inputs(batch, document_ids=segment), cache=cache)
    then = in_steps(small, NEXT, [1, 1], cache)
    for row, prompt in enumerate(PROMPTS):
        alone = small(torch.cat([torch.tensor(prompt), NEXT[row]])[None])[0]
        assert close(first[row][segment[row] != 0], alone[: len(prompt)])
        assert close(then[row], alone[len(prompt) :])


def test_the_fast_path_of_rows_that_are_alike_is_the_masked_path(network: Make, ids: Make) -> None:
    small, text = network("decoder", position="rotary"), ids(2, 7)
    fast, masked = small.new_cache(2, 8), small.new_cache(2, 8)
    for part in text.split([3, 1, 3], dim=1):
        a = small(part, cache=fast)
        b = small(Inputs(part, document_ids=torch.ones_like(part)), cache=masked)
        assert close(a, b)
    assert fast.is_default
    assert not masked.is_default


# ── Beams, guesses ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("position", POSITIONS)
def test_rows_that_are_reordered_continue_what_they_were(network: Make, ids: Make, position: str) -> None:
    small, text, rows = network("decoder", position=position), ids(3, 6), torch.tensor([2, 0, 2])
    cache = small.new_cache(3, 6)
    small(text[:, :4], cache=cache)
    reorder_cache(cache, rows)
    found = small(text[:, 4:], cache=cache)
    assert close(found, small(torch.cat([text[rows, :4], text[:, 4:]], dim=1))[:, 4:])
    assert not close(found, small(text)[:, 4:]), "the negative control: without the reordering it would be this"


def test_tokens_that_are_taken_back_leave_no_trace(network: Make, ids: Make) -> None:
    small, text = network("decoder", position="learned"), ids(2, 7)
    cache = small.new_cache(2, 8)
    small(text[:, :3], cache=cache)
    small(ids(2, 4, seed=5), cache=cache)
    crop_cache(cache, 3)
    assert close(small(text[:, 3:], cache=cache), small(text)[:, 3:])


# ── Where positions or slots end ─────────────────────────────────────────────────────────────────────────────────


def test_a_cache_counts_against_learned_positions(network: Make, ids: Make) -> None:
    small = network("decoder", position="learned", max_positions=6)
    cache = small.new_cache(1, 6)
    small(ids(1, 5), cache=cache)
    small(ids(1, 1), cache=cache)
    with pytest.raises(UsageError, match="7 tokens are more than the 6 positions"):
        small(ids(1, 1), cache=cache)


def test_a_cache_has_the_type_of_the_network(network: Make) -> None:
    cache = network("decoder", dtype=torch.bfloat16, kv_heads=2).new_cache(3, 5)
    assert cache.keys[0].dtype == torch.bfloat16
    assert cache.keys[0].shape == (3, 2, 5, 4)
    assert len(cache.keys) == 2
