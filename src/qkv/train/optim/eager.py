"""torch's SGD, Adam and AdamW without the import of torch's compiler.

torch wraps three methods of an optimizer so that its compiler can skip them. The wrappers import the compiler, which
takes a second or more, even if nothing is compiled. We never compile an optimizer.
"""

import inspect
from typing import TypeVar

import torch
from torch.optim import Optimizer

OptimizerClass = TypeVar("OptimizerClass", bound=type[Optimizer])

for _method in (Optimizer.add_param_group, Optimizer.zero_grad):
    # torch calls the function that this attribute holds; without the attribute, it imports the compiler and sets it.
    _function = inspect.unwrap(_method)
    _function.__dict__.setdefault("__dynamo_disable", _function)


def without_compiler(optimizer: OptimizerClass) -> OptimizerClass:
    """Return a subclass of a torch optimizer whose `step` does not import the compiler."""
    step = torch.no_grad()(inspect.unwrap(optimizer.step))
    return type(optimizer.__name__, (optimizer,), {"step": step})  # type: ignore[return-value]


SGD = without_compiler(torch.optim.SGD)
Adam = without_compiler(torch.optim.Adam)
AdamW = without_compiler(torch.optim.AdamW)
