"""Gradients as one vector, and the memory that a backward pass needs: both by the loss that qkv trains with."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from qkv.data.load.batch import Batch
from qkv.train.loss.training_module import TrainingModule, count_labels, make_labelled_batch


def loss_of_batch(module: TrainingModule, batch: Batch, num_labels: int = 0) -> Tensor:
    """The summed loss of a batch divided by `num_labels`; 0: by its own number of labels, which gives the mean."""
    dtype = next(module.parameters()).dtype
    weight = torch.tensor(1 / (num_labels or count_labels(batch)[0]), dtype=dtype)
    loss: Tensor = module(make_labelled_batch(batch, torch.device("cpu")), weight, weight)
    return loss


def gradient_of(module: nn.Module, loss: Tensor) -> Tensor:
    """The gradient of a loss for all parameters of a module, as one vector."""
    module.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])


def count_saved_bytes(module: nn.Module, compute_loss: Callable[[], Tensor]) -> int:
    """The bytes of all tensors that a forward pass keeps for the backward pass, without the parameters."""
    parameters = {p.untyped_storage().data_ptr() for p in module.parameters()}
    saved: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    def restore(tensor: Any) -> Any:
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, restore):
        loss = compute_loss()  # noqa: F841  the graph holds the saved tensors, so that no address is used twice
    return sum(saved.values())
