"""Step order: torch's own packing of the documents, whatever the layout."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence

from qkv.blocks.document_order import find_sources, order_documents
from qkv.blocks.mask import make_layout

ROWS = st.integers(1, 4).flatmap(
    lambda length: st.lists(st.lists(st.integers(0, 3), min_size=length, max_size=length), min_size=1, max_size=4)
)
"""Document ids of a batch. A document may be anywhere in its sequence, also in several parts."""


def documents(x: Tensor, document_ids: Tensor) -> list[Tensor]:
    return [x[row][document_ids[row] == one] for row in range(len(x)) for one in (1, 2, 3)]


@given(ROWS)
def test_tokens_are_in_the_order_of_a_packed_sequence(rows: list[list[int]]) -> None:
    ids = torch.tensor(rows)
    x = torch.arange(ids.numel(), dtype=torch.float64).view(*ids.shape, 1)
    order = order_documents(make_layout(ids, ids), len(ids))
    expected = [one for one in documents(x, ids) if len(one)]
    if not expected:
        assert len(order.tokens) == len(order.rows) == 0
        return
    expected.sort(key=len, reverse=True)  # stable, as ours
    packed = pack_sequence(expected, enforce_sorted=True)
    assert torch.equal(order.gather(x), packed.data)
    assert torch.equal(order.batch_sizes, packed.batch_sizes)
    assert order.lengths.tolist() == [len(one) for one in expected]
    assert torch.equal(
        x[order.rows, 0, 0] // ids.shape[1], torch.stack([one[0, 0] for one in expected]) // ids.shape[1]
    )
    assert torch.equal(order.scatter(order.gather(x) + 1, *ids.shape), (x + 1) * (ids != 0)[..., None])


def test_without_document_ids_every_sequence_is_a_document() -> None:
    x = torch.randn(3, 4, 2)
    order, masked = order_documents(make_layout(x), 3), order_documents(make_layout(x, torch.ones(3, 4).long()), 3)
    for one, other in zip(order, masked, strict=True):
        assert torch.equal(one, other)
    assert order.ranks().tolist() == [0, 1, 2] * 4


def test_each_target_finds_the_source_with_its_document_id() -> None:
    """Two beams of two sources; the second source has no document 2, so that target has no source."""
    source_ids = torch.tensor([[2, 2, 1, 1, 1], [0, 0, 1, 1, 0]])
    target_ids = torch.tensor([[1, 2, 2], [1, 1, 2], [1, 2, 2], [0, 1, 1]])
    values = torch.arange(2 * 5 * 4, dtype=torch.float64).view(2, 5, 4) + 1
    order = order_documents(make_layout(target_ids, target_ids), 4)
    target, source = make_layout(target_ids, target_ids), make_layout(source_ids, source_ids)
    found = find_sources(order, target, -values, values, source)
    summaries = found.summaries()
    for number, (row, document) in enumerate(zip(order.rows.tolist(), order.ids.tolist(), strict=True)):
        expected = values[row // 2][source_ids[row // 2] == document]
        assert torch.equal(found.values[number][~found.padding[number]], expected)
        assert torch.equal(found.keys[number][~found.padding[number]], -expected)
        if len(expected):
            assert torch.equal(summaries[number], torch.cat([expected[-1, :2], expected[0, 2:]]))
            assert torch.equal(values[row // 2, found.columns[number, : len(expected)]], expected)
        else:
            assert not summaries[number].any()


def test_targets_that_are_one_document_each_find_theirs_without_a_search() -> None:
    source_ids, values = torch.tensor([[1, 1, 0], [0, 1, 1], [2, 2, 1]]), torch.randn(3, 3, 4)
    source = make_layout(source_ids, source_ids)
    fast, slow = make_layout(torch.zeros(6, 2)), make_layout(torch.zeros(6, 2), torch.ones(6, 2).long())
    one, other = (find_sources(order_documents(x, 6), x, values, values, source) for x in (fast, slow))
    assert torch.equal(one.summaries(), other.summaries())
    for row in range(6):
        assert torch.equal(one.keys[row][~one.padding[row]], other.keys[row][~other.padding[row]])
        assert torch.equal(one.columns[row][~one.padding[row]], other.columns[row][~other.padding[row]])
