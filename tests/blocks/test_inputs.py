"""Inputs: padding of ragged lists, slices of a batch and of its columns, prompts with payloads."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkv.blocks import Inputs, Payload
from qkv.blocks.inputs import PayloadItem, Prompt, as_inputs


def item(length: int, seed: int = 0) -> PayloadItem:
    values = torch.rand(length, 2, generator=torch.Generator().manual_seed(seed))
    return PayloadItem("a", values, (length, 1), length)


def text(*parts: Any) -> Inputs:
    return Inputs.from_parts(parts, placeholder_id=9)


def test_lists_of_unequal_length_are_padded_with_document_0() -> None:
    rows, types = [[5, 6, 7], [8], []], [[0, 1, 1], [1], []]
    right = Inputs.from_sequences(rows, pad_token_id=3, token_type_ids=types)
    left = Inputs.from_sequences(rows, pad_token_id=3, token_type_ids=types, side="left")
    assert right.ids.tolist() == [[5, 6, 7], [8, 3, 3], [3, 3, 3]]
    assert left.ids.tolist() == [[5, 6, 7], [3, 3, 8], [3, 3, 3]]
    for found, documents in ((right, [[1, 1, 1], [1, 0, 0], [0, 0, 0]]), (left, [[1, 1, 1], [0, 0, 1], [0, 0, 0]])):
        assert found.document_ids is not None
        assert found.token_type_ids is not None
        assert found.document_ids.tolist() == documents
        assert found.is_token.tolist() == [[bool(i) for i in row] for row in documents]
        assert found.token_type_ids.tolist() == [[0, 1, 1], *documents[1:]]


def test_without_padding_there_are_no_document_ids() -> None:
    assert Inputs.from_sequences([[5, 6], [7, 8]]).document_ids is None
    assert Inputs.from_sequences([[5, 6], [7, 8]], always_document_ids=True).document_ids is not None
    assert Inputs.from_sequences([[], []]).ids.shape == (2, 1)
    assert as_inputs(torch.tensor([[5]])).is_token.tolist() == [[True]]


@given(st.lists(st.lists(st.integers(1, 3), max_size=3), min_size=1, max_size=4), st.sampled_from(["left", "right"]))
def test_slices_have_the_payloads_of_their_rows(lengths: list[list[int]], side: str) -> None:
    """Rows of a batch are the rows alone, and columns that split no item, joined again, are the whole."""
    rows = [text([5], *(item(n, seed=10 * i + j) for j, n in enumerate(row)), [6, 7]) for i, row in enumerate(lengths)]
    batch = Inputs.from_sequences([Prompt(row) for row in rows], side=side)  # type: ignore[arg-type]
    length = batch.ids.shape[1]
    for number, row in enumerate(rows):
        part = batch[number : number + 1]
        start = length - row.ids.shape[1] if side == "left" else 0
        assert part.ids[0, start : start + row.ids.shape[1]].tolist() == row.ids[0].tolist()
        assert set(part.payloads) == set(row.payloads)
        for name, payload in row.payloads.items():
            expected = payload._replace(rows=payload.rows + start)
            assert all(torch.equal(a, b) for a, b in zip(part.payloads[name], expected, strict=True))
    pieces = [(first, batch.columns(first, end)) for first, end in batch.split_columns(2)]
    assert torch.cat([piece.ids for _, piece in pieces], dim=1).tolist() == batch.ids.tolist()
    placed: set[tuple[int, ...]] = set()
    for first, piece in pieces:
        width = piece.ids.shape[1]
        for payload in piece.payloads.values():
            placed |= {(int(r) // width * length + int(r) % width + first,) for r in payload.rows}
    assert placed == {(int(r),) for payload in batch.payloads.values() for r in payload.rows}


def test_positions_of_a_prompt_continue_after_the_highest() -> None:
    prompt = Prompt(text([5], item(3), [6])).extend([7, 8])
    assert prompt.ids == [5, 9, 9, 9, 6, 7, 8]
    assert prompt.positions == [0, 1, 1, 1, 2, 3, 4]
    assert prompt[1:3] == [9, 9]
    apart = Inputs.from_parts([[5], item(2), [6]], share_positions=False)
    assert Prompt(apart).positions == [0, 1, 2, 3]


def test_a_digest_is_of_the_payload() -> None:
    digest = Prompt(text([5], item(3), [6])).digest()
    assert Prompt(text([5], item(3), [6])).extend([7]).digest() == digest, "more text does not change it"
    others = [text([5], item(3, seed=1), [6]), text([5, 5], item(3), [6]), text([5], item(2), [6])]
    assert len({digest, *(Prompt(other).digest() for other in others)}) == 4


def test_mistakes_are_refused() -> None:
    batch = Inputs(torch.zeros(2, 3, dtype=torch.long))
    with pytest.raises(ValueError, match="a prompt is one sequence, and these inputs have 2"):
        Prompt(batch)
    with pytest.raises(ValueError, match="must have step 1"):
        batch[::2]


def test_a_batch_moves_with_its_payloads_and_source() -> None:
    payload = Payload(torch.rand(1, 2), torch.tensor([0]), torch.tensor([[1, 1]]), torch.tensor([1]))
    inputs = Inputs(
        torch.zeros(1, 2, dtype=torch.long), payloads={"a": payload}, source=Inputs(torch.zeros(1, 1).long())
    )
    moved = inputs.to("meta")
    assert moved.source is not None
    assert {t.device.type for t in (moved.ids, moved.source.ids, *moved.payloads["a"])} == {"meta"}


def test_a_batch_has_positions_if_one_of_its_prompts_has() -> None:
    moved = Prompt(Inputs(torch.tensor([[5, 6, 7]]), positions=torch.tensor([[0, 0, 1]])))
    plain = Prompt(Inputs(torch.tensor([[8]])))
    positions = Inputs.from_sequences([moved, plain, [4, 4]]).positions
    assert positions is not None
    assert positions.tolist() == [[0, 0, 1], [0, 0, 0], [0, 1, 0]]
    assert Inputs.from_sequences([plain, [4, 4]]).positions is None
