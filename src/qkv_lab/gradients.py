"""The loss that qkv trains with, its gradient as one vector, and the memory that its backward pass needs."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from qkv.data import Batch, Loader
from qkv.models.runtime import eval_mode
from qkv.tasks.prepare.prepare import PreparedRun
from qkv.train.loss.training_module import TrainingModule, make_labelled_batch


def loss_of_batch(module: TrainingModule, batch: Batch, num_labels: int = 0) -> Tensor:
    """The summed loss of a batch divided by `num_labels`; 0: by its own number of labels, which gives the mean."""
    dtype = next(module.parameters()).dtype
    weight = torch.tensor(1 / (num_labels or batch.num_token_labels), dtype=dtype)
    loss: Tensor = module(make_labelled_batch(batch, torch.device("cpu")), weight, weight)
    return loss


@torch.no_grad()
def validation_loss(module: TrainingModule, prepared: PreparedRun) -> float:
    """The mean loss on the validation data of a run."""
    assert prepared.valid_data is not None
    batches = list(Loader(prepared.valid_data, epochs=1))
    num_labels = sum(batch.num_token_labels for batch in batches)
    with eval_mode(module):
        return sum(loss_of_batch(module, batch, num_labels).item() for batch in batches)


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
