"""Make the optimizer of a recipe, set its learning rate, and list its state for checkpoints.

    optimizer = make_optimizer(network.named_parameters(), section)
    set_lr(optimizer, 3e-4)
    optimizer.step()
    optimizer_tensors(optimizer, network.named_parameters())      its state, as tensors by name

SGD, Adam and AdamW are torch's; LAMB is in `lamb.py`, Muon in `muon.py`. A checkpoint is restored by copying into the
state tensors, so that nothing is pickled and a captured CUDA graph still refers to the same memory.
"""

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from qkv.errors import UsageError
from qkv.train.optim.eager import SGD, Adam, AdamW
from qkv.train.optim.lamb import Lamb, initial_state, zeros_like
from qkv.train.optim.muon import CombinedOptimizer, Muon
from qkv.train.recipe.schema import TrainSection

NamedParameters = Iterable[tuple[str, nn.Parameter]]
EMBEDDING_SUFFIXES = (
    "embedding.token.weight",
    "embedding.position.weight",
    "embedding.types.weight",
    "bias.table.weight",
)
"""The endings of the names of embedding tables."""


def parameter_kind(name: str, parameter: Tensor) -> Literal["matrix", "table", "vector"]:
    """Return the kind of a parameter: a matrix, an embedding table, or a vector (a norm's gain or a bias).

    >>> parameter_kind("decoder.blocks.0.attention.qkv.weight", torch.empty(6, 2))
    'matrix'
    """
    if parameter.dim() < 2:
        return "vector"
    return "table" if name.endswith(EMBEDDING_SUFFIXES) else "matrix"


def make_optimizer(
    named: NamedParameters, section: TrainSection, *, fused: bool = False, capturable: bool = False
) -> Optimizer:
    """Make the optimizer of a recipe, for the parameters that require a gradient.

    `fused` uses torch's fused kernel for the update, if there is one. `capturable` keeps all state in tensors, the
    learning rate included, so that a CUDA graph can capture the step.
    """
    named = [(name, p) for name, p in named if p.requires_grad]
    if not named:
        raise UsageError("model.freeze matches every parameter, so there is nothing to train; freeze fewer of them")
    if len(section.betas) != 2:
        raise UsageError(f"train.betas = {list(section.betas)} must be two numbers, such as [0.9, 0.98]")
    device = named[0][1].device
    lr: Any = torch.tensor(section.lr, dtype=torch.float32, device=device) if capturable else section.lr
    adam: dict[str, Any] = {"lr": lr, "betas": (section.betas[0], section.betas[1]), "eps": section.eps}
    if section.optimizer == "lamb":
        return Lamb(_parameter_groups(named, section, lr), **adam)
    if section.optimizer == "sgd":
        return SGD(_parameter_groups(named, section, lr), lr=lr, momentum=section.momentum, fused=fused or None)
    # torch refuses `capturable` on a CPU. There nothing is captured, and a tensor as learning rate works without it.
    adam |= {"fused": fused or None, "capturable": capturable and device.type != "cpu"}
    if section.optimizer == "adam":
        return Adam(_parameter_groups(named, section, lr), **adam)
    if section.optimizer == "adamw":
        return AdamW(_parameter_groups(named, section, lr), **adam)
    matrices = [p for name, p in named if parameter_kind(name, p) == "matrix" and p.dim() == 2 and "blocks." in name]
    muon_ids = {id(p) for p in matrices}
    others = [(name, p) for name, p in named if id(p) not in muon_ids]
    parts: list[Optimizer] = []
    if matrices:
        parts.append(Muon(matrices, lr=lr, weight_decay=section.weight_decay))
    if others:
        parts.append(AdamW(_parameter_groups(others, section, lr), **adam))
    return CombinedOptimizer(parts)


def _parameter_groups(
    named: list[tuple[str, nn.Parameter]], section: TrainSection, lr: float | Tensor
) -> list[dict[str, Any]]:
    """Make groups with and without weight decay, of the head and the rest. DTensors get separate groups, too."""
    groups: dict[tuple[bool, bool, bool], list[nn.Parameter]] = {}
    for name, parameter in named:
        decays = section.decay_parameters == "all" or parameter_kind(name, parameter) == "matrix"
        is_head = section.head_lr != 1 and name.startswith("head.")
        groups.setdefault((not decays, hasattr(parameter, "placements"), is_head), []).append(parameter)
    made: list[dict[str, Any]] = []
    for (no_decay, _, is_head), parameters in sorted(groups.items(), key=lambda item: item[0]):
        group: dict[str, Any] = {"params": parameters, "weight_decay": 0.0 if no_decay else section.weight_decay}
        if is_head:  # with its own learning rate: a tensor must not be shared with other groups
            group |= {"lr_factor": section.head_lr, "lr": lr.clone() if isinstance(lr, Tensor) else lr}
        made.append(group)
    return made


def can_skip_update_on_device(optimizer: Optimizer) -> bool:
    """Whether the optimizer skips an update if its tensor `found_inf` is 1: Muon and torch's fused optimizers do."""
    parts = optimizer.parts if isinstance(optimizer, CombinedOptimizer) else [optimizer]
    return all(isinstance(part, Muon) or all(group.get("fused") for group in part.param_groups) for part in parts)


def set_lr(optimizer: Optimizer, lr: float) -> None:
    """Set the learning rate of every group, in place if it is a tensor. The rate of the head has its own factor."""
    for group in optimizer.param_groups:
        rate = lr * group.get("lr_factor", 1.0)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def optimizer_tensors(optimizer: Optimizer, named: NamedParameters) -> dict[str, Tensor]:
    """Return the optimizer's state, as "exp_avg.NAME" → tensor. Create the state if no step was taken yet.

    To restore a checkpoint, copy its values into these tensors.
    """
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    tensors = {}
    for name, parameter in named:
        if id(parameter) not in groups:
            continue
        state = optimizer.state[parameter]
        if not state:
            state.update(_initial_state(optimizer, groups[id(parameter)], parameter))
        for kind, value in state.items():
            tensors[f"{kind}.{name}"] = value
    return tensors


def _initial_state(optimizer: Optimizer, group: dict[str, Any], parameter: Tensor) -> dict[str, Tensor]:
    """Return the state that the optimizer itself would create in its first step."""
    if isinstance(optimizer, Lamb):
        return initial_state(parameter)
    if "betas" not in group:  # SGD, Muon
        return {"momentum_buffer": zeros_like(parameter)} if group["momentum"] else {}
    # As in torch: the step count is on the CPU unless the update runs in one kernel or in a CUDA graph.
    device = parameter.device if group["fused"] or group["capturable"] else "cpu"
    return initial_state(parameter) | {"step": torch.zeros((), dtype=torch.float32, device=device)}
