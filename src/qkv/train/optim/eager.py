"""torch's SGD, Adam and AdamW without the import of torch's compiler.

torch wraps three methods of an optimizer so that its compiler can skip them. The wrappers import the compiler, which
takes a second or more, even if nothing is compiled. We never compile an optimizer.
"""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from qkv.train.optim.lamb import moment_state, zeros_like

OptimizerClass = TypeVar("OptimizerClass", bound=type[Optimizer])

for _method in (Optimizer.add_param_group, Optimizer.zero_grad):
    # torch calls the function that this attribute holds; without the attribute, it imports the compiler and sets it.
    _function = inspect.unwrap(_method)
    _function.__dict__.setdefault("__dynamo_disable", _function)


def adam_state(optimizer: Optimizer, group: dict[str, Any], parameter: Tensor) -> dict[str, Tensor]:
    """Return the state of a parameter before its first step, as Adam creates it."""
    # As in torch: the step count is on the CPU unless the update runs in one kernel or in a CUDA graph.
    device = parameter.device if group["fused"] or group["capturable"] else "cpu"
    return moment_state(parameter) | {"step": torch.zeros((), dtype=torch.float32, device=device)}


def momentum_state(optimizer: Optimizer, group: dict[str, Any], parameter: Tensor) -> dict[str, Tensor]:
    """Return the state of a parameter before its first step, as SGD and Muon create it."""
    return {"momentum_buffer": zeros_like(parameter)} if group["momentum"] else {}


def without_compiler(optimizer: OptimizerClass, initial_state: Callable[..., dict[str, Tensor]]) -> OptimizerClass:
    """Return a subclass of a torch optimizer with `initial_state`, and whose `step` does not import the compiler."""
    step = torch.no_grad()(inspect.unwrap(optimizer.step))
    return type(optimizer.__name__, (optimizer,), {"step": step, "initial_state": initial_state})  # type: ignore[return-value]


SGD = without_compiler(torch.optim.SGD, momentum_state)
Adam = without_compiler(torch.optim.Adam, adam_state)
AdamW = without_compiler(torch.optim.AdamW, adam_state)
