"""Tensors of many dtypes and shapes to save in checkpoints, and a comparison bit by bit."""

from pathlib import Path

import torch
from torch import Tensor

from qkv.train.checkpoint.folder import Checkpoint, CheckpointFolder
from qkv.train.checkpoint.slices import TensorSlice


def state_of(step: int) -> dict[str, Tensor]:
    """Tensors that depend on the step, of several types and shapes."""
    draw = torch.Generator().manual_seed(step)
    return {
        "weight": torch.randn(6, 5, generator=draw),
        "half": torch.randn(7, generator=draw).bfloat16(),
        "moment": torch.randn(3, 4, generator=draw, dtype=torch.float64),
        "count": torch.tensor(step),
        "scale": torch.randn((), generator=draw),
        "nothing": torch.zeros(0, 3),
    }


def whole(tensors: dict[str, Tensor]) -> dict[str, list[TensorSlice]]:
    return {name: [TensorSlice.whole(tensor)] for name, tensor in tensors.items()}


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal in type, shape and every bit: NaN included, and -0.0 is not 0.0."""
    bits = [t.detach().reshape(-1).contiguous().view(torch.uint8) for t in (a, b)]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*bits)


def saved(folder: Path, *steps: int, keep: int = 9) -> CheckpointFolder:
    """Checkpoints with `state_of` these steps in them."""
    checkpoints = CheckpointFolder(folder, max_to_keep=keep)
    for step in steps:
        checkpoints.save(step, whole(state_of(step)), {"step": step})
    checkpoints.wait_for_save()
    return checkpoints


def holds(checkpoint: Checkpoint | None, step: int) -> bool:
    """Whether this is the checkpoint of `step`, bit by bit."""
    tensors = state_of(step)
    return (
        checkpoint is not None
        and checkpoint.step == step
        and checkpoint.state == {"step": step}
        and checkpoint.tensor_names() == sorted(tensors)
        and all(same_bits(checkpoint.read_tensor(name), tensor) for name, tensor in tensors.items())
    )


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
