"""Make the optimizer of a recipe, set its learning rate, and list its state for checkpoints.

    optimizer = make_optimizer(network.named_parameters(), section)
    set_lr(optimizer, 3e-4)
    optimizer.step()
    optimizer_tensors(optimizer, network.named_parameters())      its state, as tensors by name

SGD, Adam and AdamW are torch's; LAMB is in `lamb.py`, Muon in `muon.py`; `qkv.train.tables.register_optimizer` adds
others. A checkpoint is restored by copying into the state tensors, so that nothing is pickled and a captured CUDA graph
still refers to the same memory.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from qkv.errors import UsageError
from qkv.train.optim.eager import SGD, Adam, AdamW
from qkv.train.optim.lamb import Lamb
from qkv.train.optim.muon import CombinedOptimizer, Muon
from qkv.train.recipe.schema import TrainSection
from qkv.train.tables import OPTIMIZERS, OptimizerRow

NamedParameters = Iterable[tuple[str, nn.Parameter]]
EMBEDDING_SUFFIXES = (
    "embedding.token.weight",
    "embedding.position.weight",
    "embedding.types.weight",
    "bias.table.weight",
    "words.table.weight",
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


@dataclass(frozen=True)
class OptimizerSetup:
    """Everything that an optimizer is made from."""

    named: list[tuple[str, nn.Parameter]]  # the parameters that are trained
    section: TrainSection
    lr: float | Tensor  # a tensor if `capturable`
    fused: bool = False  # whether to use torch's fused kernel for the update, if there is one
    capturable: bool = False  # whether all state is in tensors, so that a CUDA graph can capture the step

    @property
    def adam(self) -> dict[str, Any]:
        """The keyword arguments of torch's Adam and AdamW."""
        # torch refuses `capturable` on a CPU. There nothing is captured, and a tensor as `lr` works without it.
        capturable = self.capturable and self.named[0][1].device.type != "cpu"
        return {**self.moments, "fused": self.fused or None, "capturable": capturable}

    @property
    def moments(self) -> dict[str, Any]:
        """The learning rate, β₁ and β₂, and ε."""
        return {"lr": self.lr, "betas": self.section.betas, "eps": self.section.eps}

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Make groups with and without weight decay, of the head and the rest. DTensors get separate groups, too."""
        groups: dict[tuple[bool, bool, bool], list[nn.Parameter]] = {}
        section = self.section
        for name, parameter in self.named:
            decays = section.weight_decay_on == "all" or parameter_kind(name, parameter) == "matrix"
            is_head = section.head_lr_factor != 1 and name.startswith("head.")
            groups.setdefault((not decays, hasattr(parameter, "placements"), is_head), []).append(parameter)
        made: list[dict[str, Any]] = []
        for (no_decay, _, is_head), parameters in sorted(groups.items(), key=lambda item: item[0]):
            group: dict[str, Any] = {"params": parameters, "weight_decay": 0.0 if no_decay else section.weight_decay}
            if is_head:  # with its own learning rate: a tensor must not be shared with other groups
                lr = self.lr.clone() if isinstance(self.lr, Tensor) else self.lr
                group |= {"lr_factor": section.head_lr_factor, "lr": lr}
            made.append(group)
        return made


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
    row = OPTIMIZERS.find(section.optimizer, "train.optimizer")
    device = named[0][1].device
    lr: Any = torch.tensor(section.lr, dtype=torch.float32, device=device) if capturable else section.lr
    optimizer = _make(row, OptimizerSetup(named, section, lr, fused, capturable))
    if row not in BUILT_IN:
        _check_resumable(row, section)
    return optimizer


def _make(row: OptimizerRow, setup: OptimizerSetup) -> Optimizer:
    """Make an optimizer, with its state if the row states it."""
    optimizer: Optimizer = row.make(setup)
    if row.state is not None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                optimizer.state[parameter].update(row.state(group, parameter))
        optimizer.initial_state = row.state  # type: ignore[attr-defined]
    return optimizer


def _make_muon(setup: OptimizerSetup) -> Optimizer:
    """Make Muon for the matrices of the blocks, and AdamW for the rest."""
    matrices = [
        p for name, p in setup.named if parameter_kind(name, p) == "matrix" and p.dim() == 2 and "blocks." in name
    ]
    muon_ids = {id(p) for p in matrices}
    others = [(name, p) for name, p in setup.named if id(p) not in muon_ids]
    parts: list[Optimizer] = []
    if matrices:
        in_float32 = matrices[0].device.type == "cpu" and setup.section.precision != "bfloat16"
        dtype = torch.float32 if in_float32 else torch.bfloat16
        parts.append(Muon(matrices, lr=setup.lr, weight_decay=setup.section.weight_decay, compute_dtype=dtype))
    if others:
        parts.append(_make_adamw(replace(setup, named=others)))
    return CombinedOptimizer(parts)


def _make_adamw(setup: OptimizerSetup) -> Optimizer:
    return AdamW(setup.parameter_groups(), **setup.adam)


def _make_sgd(setup: OptimizerSetup) -> Optimizer:
    momentum = setup.section.momentum
    return SGD(setup.parameter_groups(), lr=setup.lr, momentum=momentum, fused=setup.fused or None)


ADAMW = OptimizerRow(_make_adamw, is_fused=True)
ADAM = OptimizerRow(lambda setup: Adam(setup.parameter_groups(), **setup.adam), is_fused=True)
SGD_ROW = OptimizerRow(_make_sgd, is_fused=True)
LAMB = OptimizerRow(lambda setup: Lamb(setup.parameter_groups(), **setup.moments))
MUON = OptimizerRow(_make_muon, is_fused=True)
BUILT_IN = (ADAMW, ADAM, SGD_ROW, LAMB, MUON)


def _check_resumable(row: OptimizerRow, section: TrainSection) -> None:
    """Raise an error if an optimizer keeps state that a checkpoint does not have, by making a step with it."""
    parameter = nn.Parameter(torch.ones(2, 2))
    parameter.grad = torch.ones(2, 2)
    optimizer = _make(row, OptimizerSetup([("blocks.0.weight", parameter)], section, section.lr))
    before = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    optimizer.step()
    changed = [
        name
        for group, old in zip(optimizer.param_groups, before, strict=True)
        for name in group
        if name != "params" and (name not in old or group[name] is not old[name])
    ]
    plain = [
        name for state in optimizer.state.values() for name, value in state.items() if not isinstance(value, Tensor)
    ]
    if changed or plain:
        raise UsageError(
            f"train.optimizer = {section.optimizer!r} cannot be resumed from a checkpoint, because it keeps "
            f"{', '.join([*plain, *changed])} outside of tensors; keep all of its state as tensors in "
            "optimizer.state[parameter]"
        )


def can_skip_update_on_device(optimizer: Optimizer) -> bool:
    """Whether the optimizer skips an update if its tensor `found_inf` is 1, as Muon and torch's fused optimizers do."""
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


def optimizer_tensors(
    optimizer: Optimizer, named: NamedParameters, saved: Collection[str] | None = None
) -> dict[str, Tensor]:
    """Return the optimizer's state, as "exp_avg.NAME" → tensor. Create the state if no step was taken yet.

    To restore a checkpoint, copy its values into these tensors; `saved` are their names in the checkpoint. An optimizer
    without a method `initial_state` creates its state in a step with gradients of 0, after which the weights must be
    restored, too.
    """
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    named = [(name, p) for name, p in named if id(p) in groups]
    if hasattr(optimizer, "initial_state"):
        for _, parameter in named:
            if not optimizer.state[parameter]:
                optimizer.state[parameter].update(optimizer.initial_state(groups[id(parameter)], parameter))
    elif saved is not None:
        _create_state(optimizer, {id(p) for name, p in named if any(key.endswith(f".{name}") for key in saved)})
    return {f"{kind}.{name}": value for name, p in named for kind, value in optimizer.state.get(p, {}).items()}


def _create_state(optimizer: Optimizer, wanted: set[int]) -> None:
    """Let an optimizer create its state for the parameters with these ids."""
    parameters = [p for group in optimizer.param_groups for p in group["params"] if id(p) in wanted]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
