"""Optimizers: which parameters shrink, by what rule all of them step, and what must be kept to go on exactly.

    optimizer = make_optimizer(network.named_parameters(), section)
    set_lr(optimizer, 3e-4)
    optimizer.step()
    optimizer_tensors(optimizer, network.named_parameters())      everything it remembers, by name, alive

SGD, Adam, AdamW and Muon are torch's; LAMB is in `lamb.py`, Muon's company in `muon.py`. To load a checkpoint is to
copy into the living tensors: nothing is pickled, and a captured CUDA graph goes on with the same memory.
"""

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from qkv.errors import UsageError
from qkv.train.optim.lamb import Lamb, initial_state
from qkv.train.optim.muon import CombinedOptimizer, Muon
from qkv.train.recipe.schema import TrainSection

NamedParameters = Iterable[tuple[str, nn.Parameter]]
EMBEDDING_SUFFIXES = (
    "embedding.token.weight",
    "embedding.position.weight",
    "embedding.types.weight",
    "bias.table.weight",
)
"""Rows that are looked up rather than multiplied with: how these names end."""


def parameter_kind(name: str, parameter: Tensor) -> Literal["matrix", "table", "vector"]:
    """What a parameter is: a matrix, a table of embeddings, or a norm's gain or a bias.

    >>> kind_of("decoder.blocks.0.attention.qkv.weight", torch.empty(6, 2))
    'matrix'
    """
    if parameter.dim() < 2:
        return "vector"
    return "table" if name.endswith(EMBEDDING_SUFFIXES) else "matrix"


def make_optimizer(
    named: NamedParameters, section: TrainSection, *, fused: bool = False, capturable: bool = False
) -> Optimizer:
    """The optimizer of a recipe for these parameters, those that are to change.

    `fused` does a whole step in one kernel where torch has one. `capturable` makes everything that changes a tensor,
    the learning rate too, so that a CUDA graph can hold the step.
    """
    named = [(name, p) for name, p in named if p.requires_grad]
    if not named:
        raise UsageError("nothing to train: every parameter is frozen (model.freeze)")
    if len(section.betas) != 2:
        raise UsageError(f"train.betas = {list(section.betas)}: two numbers are needed, as [0.9, 0.98]")
    device = named[0][1].device
    lr: Any = torch.tensor(section.lr, dtype=torch.float32, device=device) if capturable else section.lr
    adam: dict[str, Any] = {"lr": lr, "betas": (section.betas[0], section.betas[1]), "eps": section.eps}
    if section.optimizer == "lamb":
        return Lamb(_parameter_groups(named, section), **adam)
    if section.optimizer == "sgd":
        return SGD(_parameter_groups(named, section), lr=lr, momentum=section.momentum, fused=fused or None)
    # Torch has the flag for devices with graphs alone; on a CPU a tensor for a rate is all there is to it.
    adam |= {"fused": fused or None, "capturable": capturable and device.type != "cpu"}
    if section.optimizer == "adam":
        return Adam(_parameter_groups(named, section), **adam)
    if section.optimizer == "adamw":
        return AdamW(_parameter_groups(named, section), **adam)
    inner = [p for name, p in named if parameter_kind(name, p) == "matrix" and p.dim() == 2 and "blocks." in name]
    known = {id(p) for p in inner}
    outer = [(name, p) for name, p in named if id(p) not in known]
    parts: list[Optimizer] = []
    if inner:
        parts.append(Muon(inner, lr=lr, weight_decay=section.weight_decay))
    if outer:
        parts.append(AdamW(_parameter_groups(outer, section), **adam))
    return CombinedOptimizer(parts)


def _parameter_groups(named: list[tuple[str, nn.Parameter]], section: TrainSection) -> list[dict[str, Any]]:
    """Those that shrink and those that do not, cut tensors and whole ones apart: torch steps no mixture of them."""
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for name, parameter in named:
        shrinks = section.decay_parameters == "all" or parameter_kind(name, parameter) == "matrix"
        groups.setdefault((not shrinks, hasattr(parameter, "placements")), []).append(parameter)
    decay = {False: section.weight_decay, True: 0.0}
    return [{"params": groups[key], "weight_decay": decay[key[0]]} for key in sorted(groups)]


def set_lr(optimizer: Optimizer, lr: float) -> None:
    """Set the learning rate of every group, in place where it is a tensor."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


def optimizer_tensors(optimizer: Optimizer, named: NamedParameters) -> dict[str, Tensor]:
    """All that the optimizer remembers, as "exp_avg.NAME" → the tensor it works with; made if it has not begun yet.

    Copying saved numbers into these is loading: the next step is then the one that would have come next.
    """
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    out = {}
    for name, parameter in named:
        if id(parameter) not in groups:
            continue
        state = optimizer.state[parameter]
        if not state:
            state.update(_initial_state(optimizer, groups[id(parameter)], parameter))
        for kind, value in state.items():
            out[f"{kind}.{name}"] = value
    return out


def _initial_state(optimizer: Optimizer, group: dict[str, Any], parameter: Tensor) -> dict[str, Tensor]:
    """The state that the optimizer itself would make at its first step."""
    if isinstance(optimizer, Lamb):
        return initial_state(parameter)
    if "betas" not in group:  # SGD, Muon
        return {"momentum_buffer": torch.zeros_like(parameter)} if group["momentum"] else {}
    # Where the count is a number that Python reads, it stays on the CPU.
    where = parameter.device if group["fused"] or group["capturable"] else "cpu"
    return initial_state(parameter) | {"step": torch.zeros((), dtype=torch.float32, device=where)}
