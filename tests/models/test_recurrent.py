"""Recurrent networks: cached decoding equals the full forward pass, in any steps, with padding, beams, reordering."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.blocks import Inputs
from qkv.decode.cache_edits import reorder_cache, select_sources
from qkv.models import Config

Make = Callable[..., Any]
RECURRENT = {"heads": 0, "ffn_width": 0}
KINDS = ["rnn", "gru", "lstm"]
PROMPTS = ([3, 1, 4, 1, 5], [9, 2], [6])
NEXT = torch.tensor([[5, 3], [5, 8], [9, 7]])


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


@pytest.fixture
def recurrent(network: Make) -> Make:
    return lambda family, kind="lstm", **choices: network(family, block=kind, **RECURRENT, **choices)


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, atol=1e-11, rtol=1e-11)


def in_steps(network: Any, ids: Tensor, steps: list[int], cache: Any, memory: Any = None) -> Tensor:
    """The logits of a text that is given in parts."""
    return torch.cat([network(part, memory=memory, cache=cache) for part in ids.split(steps, dim=1)], dim=1)


@pytest.mark.parametrize("steps", [[1] * 8, [5, 1, 2], [8]], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_decoder_with_a_cache_is_the_full_forward(recurrent: Make, ids: Make, kind: str, steps: list[int]) -> None:
    small, text = recurrent("decoder", kind), ids(3, 8)
    assert close(in_steps(small, text, steps, small.new_cache(3, 1)), small(text))


@pytest.mark.parametrize("attention", ["additive", "none"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_seq2seq_with_caches_is_the_full_forward(recurrent: Make, ids: Make, kind: str, attention: str) -> None:
    small = recurrent("seq2seq", kind, recurrent_attention=attention)
    source, target = ids(2, 5, seed=1), ids(2, 6)
    document_ids = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 1, 0, 0]])
    full = small(Inputs(target, source=Inputs(source, document_ids=document_ids)))
    memory = small.build_cross_cache(small.encode(Inputs(source, document_ids=document_ids)))
    assert close(in_steps(small, target, [2, 1, 3], small.new_cache(2, 6), memory), full)
    other = small(Inputs(target, source=Inputs(source.roll(1, 1), document_ids=document_ids)))
    assert not torch.allclose(other, full, atol=1e-3), "the source matters"


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", ["decoder", "seq2seq"])
def test_prompts_of_unequal_length_decode_in_one_batch_as_alone(
    recurrent: Make, ids: Make, family: str, side: str
) -> None:
    """Also in chunks: with left-padding, the shortest prompt starts only in the third."""
    small, source = recurrent(family), ids(3, 4, seed=1)
    batch, document_ids = torch.zeros(3, 5, dtype=torch.long), torch.zeros(3, 5, dtype=torch.long)
    for row, prompt in enumerate(PROMPTS):
        where = slice(5 - len(prompt), 5) if side == "left" else slice(0, len(prompt))
        batch[row, where], document_ids[row, where] = torch.tensor(prompt), 1
    memory = small.build_cross_cache(small.encode(source)) if family == "seq2seq" else None
    cache = small.new_cache(3, 8)
    chunks = zip(batch.split(2, dim=1), document_ids.split(2, dim=1), strict=True)
    parts = [Inputs(part, document_ids=one) for part, one in chunks]
    first = torch.cat([small(part, memory=memory, cache=cache) for part in parts], dim=1)
    assert cache.next_positions(NEXT, None).tolist() == [[5, 6], [2, 3], [1, 2]]
    then = in_steps(small, NEXT, [1, 1], cache, memory)
    for row, prompt in enumerate(PROMPTS):
        text = torch.cat([torch.tensor(prompt), NEXT[row]])[None]
        alone = (small(Inputs(text, source=Inputs(source[row : row + 1]))) if memory else small(text))[0]
        assert close(first[row][document_ids[row] != 0], alone[: len(prompt)])
        assert close(then[row], alone[len(prompt) :])


def test_sequences_that_are_reordered_continue_what_they_were(recurrent: Make, ids: Make) -> None:
    small, text, rows = recurrent("decoder"), ids(3, 6), torch.tensor([2, 0, 2])
    cache = small.new_cache(3, 6)
    small(text[:, :4], cache=cache)
    reorder_cache(cache, rows)
    found = small(text[:, 4:], cache=cache)
    assert close(found, small(torch.cat([text[rows, :4], text[:, 4:]], dim=1))[:, 4:])
    assert not close(found, small(text)[:, 4:]), "the negative control: without the reordering it would be this"


@pytest.mark.parametrize("attention", ["additive", "none"])
def test_beams_share_the_source_that_they_belong_to(recurrent: Make, ids: Make, attention: str) -> None:
    small = recurrent("seq2seq", "gru", recurrent_attention=attention)
    source, target = ids(2, 4, seed=1), ids(6, 3)  # three beams for each of two sources
    memory = small.build_cross_cache(small.encode(source))
    found = in_steps(small, target, [1, 2], small.new_cache(6, 3), memory)
    assert close(found, small(Inputs(target, source=Inputs(source.repeat_interleave(3, 0)))))
    cache = small.new_cache(6, 3)
    small(target[:, :1], memory=memory, cache=cache)
    kept = torch.tensor([4, 3, 5])  # the first prompt has ended
    reorder_cache(cache, kept)
    memory = select_sources(memory, torch.tensor([1]))
    assert close(small(target[kept, 1:], memory=memory, cache=cache), found[kept, 1:])


def test_a_cached_sequence_is_one_document(recurrent: Make, ids: Make) -> None:
    small = recurrent("decoder")
    cache = small.new_cache(1, 4)
    with pytest.raises(ValueError, match="must be one document"):
        small(Inputs(ids(1, 4), document_ids=torch.tensor([[1, 1, 2, 2]])), cache=cache)
    assert cache.lengths.tolist() == [0]


def test_stacks_are_both_recurrent_or_neither(stack_config: Make) -> None:
    lstm, gru = (stack_config(block=kind, **RECURRENT) for kind in ("lstm", "gru"))
    assert not Config(encoder=lstm, decoder=gru).has_blocks
    with pytest.raises(ValueError, match="encoder: block = 'lstm', but decoder: block = 'transformer'"):
        Config(encoder=lstm, decoder=stack_config())
    odd = stack_config(block="lstm", **RECURRENT, width=15)
    assert not Config(decoder=odd).has_blocks
    with pytest.raises(ValueError, match="encoder: width = 15 must be even"):
        Config(encoder=odd)
