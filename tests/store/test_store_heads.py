"""Loading a folder with a new head: the body is read, the old head is not, and notes list the new tensors."""

import pytest
import torch

import qkv
from qkv.blocks import HeadConfig

CLASSIFY = HeadConfig(kind="classify", labels=("bad", "good"), dense="tanh", bias=True)


def body(model: qkv.Model) -> dict[str, torch.Tensor]:
    return {name: p for name, p in model.network.named_parameters() if not name.startswith("head.")}


def test_the_body_is_read_and_the_head_is_new(either, model):
    loaded = qkv.load(either, head=CLASSIFY)
    assert loaded.config.head == CLASSIFY
    first, second = body(model), body(loaded)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert loaded.logits([[5, 6, 7]]).shape == (1, 2)


def test_a_note_lists_the_new_head_and_not_the_one_that_it_replaces(either):
    notes = " ".join(qkv.load(either, head=CLASSIFY).notes)
    assert "4 tensors are not in the folder and were newly initialised" in notes
    assert "head.out.weight" in notes
    assert "cls.predictions" not in notes


def test_a_model_without_a_head_has_no_new_tensors(either, model):
    loaded = qkv.load(either, head=HeadConfig())
    assert not [note for note in loaded.notes if "newly initialised" in note]
    assert torch.equal(loaded.logits([[5, 6, 7]]), model.hidden([[5, 6, 7]]))


def test_an_equal_head_is_read_from_the_folder(either, model, same):
    loaded = qkv.load(either, head=model.config.head)
    assert loaded.notes == []
    assert torch.equal(loaded.network.head.dense.weight, model.network.head.dense.weight)


def test_a_new_head_has_the_dtype_of_the_folder(either, tmp_path):
    qkv.load(either, dtype=torch.bfloat16).save(tmp_path / "half")
    loaded = qkv.load(tmp_path / "half", head=CLASSIFY)
    assert {p.dtype for p in loaded.network.parameters()} == {torch.bfloat16}


def test_an_impossible_head_is_refused(either):
    with pytest.raises(qkv.UsageError, match=r"head.*299.*300"):
        qkv.load(either, head=HeadConfig(kind="mlm", outputs=299))


def test_a_new_head_is_saved_with_the_body(either, tmp_path, same):
    loaded = qkv.load(either, head=CLASSIFY)
    loaded.save(tmp_path / "next")
    assert same(tmp_path / "next", loaded)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_weights_are_saved_in_their_dtype(either, dtype, tmp_path):
    loaded = qkv.load(either, dtype=dtype)
    loaded.save(tmp_path / "next")
    again = qkv.load(tmp_path / "next")
    pairs = zip(loaded.network.parameters(), again.network.parameters(), strict=True)
    assert all(a.dtype == b.dtype == dtype and torch.equal(a, b) for a, b in pairs)
