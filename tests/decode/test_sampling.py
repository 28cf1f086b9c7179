"""The k largest, found with one look at most of the vocabulary, are those of `topk`."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from qkv.decode.sampling import fast_topk

NEVER, NAN = float("-inf"), float("nan")


def check(logits: Tensor, k: int) -> None:
    """The same values in the same order, each where it is said to stand, no place twice."""
    values, index = fast_topk(logits, k)
    torch.testing.assert_close(values, logits.topk(k).values, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(logits.gather(1, index), values, rtol=0, atol=0, equal_nan=True)
    assert all(len(set(row)) == k for row in index.tolist())


def drawn(rows: int, vocab: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 5), st.integers(1, 700), st.integers(1, 12), st.integers(0, 1000), st.booleans())
def test_they_are_those_of_topk_for_every_shape(rows: int, vocab: int, k: int, seed: int, ties: bool) -> None:
    logits = drawn(rows, vocab, seed)
    check(logits.round() if ties else logits, min(k, vocab))


def test_the_shortcut_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: for a large vocabulary the whole rows are never sorted, so the other tests test something."""
    widths: list[int] = []
    whole = Tensor.topk
    monkeypatch.setattr(Tensor, "topk", lambda self, k: (widths.append(self.shape[-1]), whole(self, k))[1])
    fast_topk(drawn(2, 8000), 5)
    assert max(widths) == 500
    fast_topk(drawn(2, 100), 5)
    assert max(widths) == 500
    assert widths[-1] == 100


@pytest.mark.parametrize("vocab", [1000, 1008, 1023])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_what_stands_at_the_edges_is_found(vocab: int, dtype: torch.dtype) -> None:
    """In the first and last of each group, and in what is left over behind the groups."""
    for place in (0, vocab // 16 - 1, vocab // 16, 16 * (vocab // 16) - 1, vocab - 1):
        logits = torch.zeros(2, vocab, dtype=dtype)
        logits[1, place] = 3.0
        values, index = fast_topk(logits, 2)
        assert (values[1].tolist(), index[1, 0].item()) == ([3.0, 0.0], place)


def test_all_the_largest_may_stand_in_one_group() -> None:
    logits = drawn(1, 1600).clamp(max=2.0)
    logits[0, 7::100] = 10.0 + torch.arange(16.0)
    check(logits, 8)
    assert set(fast_topk(logits, 8)[1][0].tolist()) <= set(range(7, 1600, 100))


@pytest.mark.parametrize("vocab", [40, 1000])
def test_forbidden_tokens_come_last(vocab: int) -> None:
    logits = torch.full((3, vocab), NEVER)
    logits[0, vocab - 1] = 1.0
    logits[1, [3, 5]] = torch.tensor([1.0, 2.0])
    check(logits, 4)
    assert fast_topk(logits, 4)[0][0].tolist() == [1.0, NEVER, NEVER, NEVER]


@pytest.mark.parametrize("vocab", [40, 1000])
def test_what_is_no_number_counts_as_the_largest_as_in_topk(vocab: int) -> None:
    logits = drawn(3, vocab)
    logits[0, vocab // 2] = NAN
    logits[1] = NAN
    check(logits, 4)


def test_rows_that_lie_apart_are_read() -> None:
    check(drawn(6, 2000)[::2, 100:1900], 5)
    check(drawn(1, 1000).expand(4, -1), 5)
