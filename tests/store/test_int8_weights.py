"""Matrices in int8 on disk: a quarter of the size, close weights after loading, and errors for damaged scales."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import qkv
from qkv.errors import QkvError
from qkv.store.weights import WEIGHTS_FILE, quantize_rows


@pytest.fixture
def saved(model: qkv.Model, tmp_path: Path) -> Path:
    model.save(tmp_path / "int8", int8=True)
    return tmp_path / "int8"


def test_weights_come_back_within_half_a_step_of_their_row(model, saved):
    loaded = dict(qkv.load(saved).network.named_parameters())
    for name, original in model.network.named_parameters():
        if original.dim() == 2:
            step = original.abs().amax(1, keepdim=True) / 127
            assert bool(((loaded[name] - original).abs() <= step / 2 * 1.0001).all()), name
        else:
            assert torch.equal(loaded[name], original), name
    assert {p.dtype for p in loaded.values()} == {torch.float32}


def test_the_file_holds_one_byte_for_each_weight_of_a_matrix(model, saved):
    stored = load_file(saved / WEIGHTS_FILE)
    matrices = [name for name, p in model.network.named_parameters() if p.dim() == 2]
    assert matrices
    assert all(stored[name].dtype == torch.int8 for name in matrices)
    assert sum(name.endswith(".scale") for name in stored) == len(matrices)


def test_saving_a_loaded_model_again_changes_no_int8_value(saved, tmp_path):
    qkv.load(saved).save(tmp_path / "again", int8=True)
    first, again = load_file(saved / WEIGHTS_FILE), load_file(tmp_path / "again" / WEIGHTS_FILE)
    assert all(torch.equal(first[name], again[name]) for name in first if first[name].dtype == torch.int8)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda scale: scale.fill_(float("nan")), "not a finite positive number"),
        (lambda scale: scale.fill_(0.0), "not a finite positive number"),
        (lambda scale: scale[:-1].clone(), "stored as I8"),
        (lambda scale: None, "stored as I8"),
    ],
)
def test_damaged_scales_are_an_error(saved, damage, message):
    tensors = load_file(saved / WEIGHTS_FILE)
    name = next(name for name in tensors if name.endswith(".scale"))
    scale = damage(tensors.pop(name))
    save_file(tensors if scale is None else {**tensors, name: scale}, saved / WEIGHTS_FILE)
    with pytest.raises(QkvError, match=f"{message}|unexpected"):
        qkv.load(saved)


def test_a_shape_check_reads_no_int8_values(saved):
    from qkv.store import read_model

    assert {p.device.type for p in read_model(saved, device="meta").network.parameters()} == {"meta"}


def test_values_that_are_not_finite_are_refused():
    with pytest.raises(QkvError, match=r"w has values that are not finite.*float32"):
        quantize_rows({"w": torch.tensor([[1.0, float("inf")]])})
