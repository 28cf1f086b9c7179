"""Where positions end: learned ones refuse what lies beyond, all other kinds go on."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from qkv.blocks import Inputs
from qkv.errors import UsageError

Make = Callable[..., Any]


@pytest.mark.parametrize("family", ["encoder", "decoder", "seq2seq"])
def test_learned_positions_refuse_a_text_beyond_their_end(network: Make, run: Make, ids: Make, family: str) -> None:
    small = network(family, position="learned", max_positions=8)
    run(small, ids(1, 8), None, ids(1, 8))
    with pytest.raises(UsageError, match="9 tokens are more than the 8 positions that this model has"):
        run(small, ids(1, 9), None, ids(1, 8))


def test_a_source_beyond_the_end_is_refused_too(network: Make, ids: Make) -> None:
    small = network("seq2seq", position="learned", max_positions=8)
    with pytest.raises(UsageError, match="9 tokens are more than the 8 positions"):
        small(Inputs(ids(1, 2), source=Inputs(ids(1, 9))))


def test_an_offset_does_not_shorten_what_fits(network: Make, ids: Make) -> None:
    """BART and RoBERTa have rows before the first position."""
    small = network("decoder", position="learned", max_positions=8, position_offset=2)
    assert small(ids(1, 8)).shape == (1, 8, 40)


@pytest.mark.parametrize("position", ["sinusoidal", "sinusoidal_split", "rotary", "alibi", "t5", "none"])
def test_other_positions_do_not_end(network: Make, ids: Make, position: str) -> None:
    small = network("decoder", position=position, max_positions=8)
    assert small(ids(1, 20)).isfinite().all()


def test_positions_of_the_callers_own_are_taken_at_their_word(network: Make, ids: Make) -> None:
    """A packed row is longer than any of its texts."""
    small = network("decoder", position="learned", max_positions=8)
    segment = torch.tensor([[1] * 6 + [2] * 6])
    where = torch.cat([torch.arange(6), torch.arange(6)])[None]
    assert small(Inputs(ids(1, 12), document_ids=segment, positions=where)).shape == (1, 12, 40)


def test_a_row_may_be_longer_than_its_texts(network: Make, ids: Make) -> None:
    """Packed texts start again, and padding needs no position; one text that is too long is still refused."""
    small = network("encoder", position="learned", max_positions=8)
    for segment in ([1] * 6 + [2] * 6, [0] * 9 + [1] * 3, [1] * 3 + [0] * 9):
        assert small(Inputs(ids(1, 12), document_ids=torch.tensor([segment]))).shape[:2] == (1, 12)
    with pytest.raises(UsageError, match="9 tokens are more than the 8 positions"):
        small(Inputs(ids(1, 12), document_ids=torch.tensor([[1] * 9 + [2] * 3])))
