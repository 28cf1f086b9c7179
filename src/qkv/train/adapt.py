"""Training a part of a network: frozen parameters, and LoRA adapters.

    freeze(network, ["encoder.*"])              the encoder is not trained
    add_lora(network, rank=8, alpha=16, targets=["*.attention.*"])
    merge_lora(network)                         a plain network again, with the adapters added to its matrices

LoRA (Hu et al. 2021):  y = Wx + b + (α/r) · B(Ax), where only A (r × in) and B (out × r) are trained. B starts at 0,
so the adapters do not change the outputs before the first step.
"""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.errors import UsageError, suggest_name


def freeze(network: nn.Module, patterns: Sequence[str]) -> list[str]:
    """Freeze the parameters whose names match a pattern. Return the names of all frozen parameters.

    A pattern that matches no parameter is an error. A tied embedding has two names; a match of one of them freezes it.
    """
    names = [name for name, _ in network.named_parameters(remove_duplicate=False)]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UsageError(f"model.freeze: no parameter matches {pattern!r}; {_name_hint(pattern, names)}")
    for name, parameter in network.named_parameters(remove_duplicate=False):
        if matches_any(name, patterns):
            parameter.requires_grad_(False)
    return [name for name, parameter in network.named_parameters() if not parameter.requires_grad]


def matches_any(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a name matches one of the patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


class LoraLinear(nn.Module):
    """A linear layer with a LoRA adapter. `weight` is the merged weight of layer and adapter."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.base = base
        self.scale = alpha / rank
        self.lora_a = nn.Parameter(base.weight.new_empty(rank, base.in_features))
        self.lora_b = nn.Parameter(base.weight.new_zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_a, a=5**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Return Wx + b + (α/r)·B(Ax)."""
        out: Tensor = self.base(x)
        return out + F.linear(F.linear(x, self.lora_a), self.lora_b) * self.scale

    @property
    def weight(self) -> Tensor:
        """W + (α/r)·BA, computed in float64 (float32 on MPS) and then rounded to the dtype of W."""
        base = self.base.weight
        sum_dtype = torch.float32 if base.device.type == "mps" else torch.float64
        return (base.to(sum_dtype) + self.lora_b.to(sum_dtype) @ self.lora_a.to(sum_dtype) * self.scale).to(base.dtype)

    @property
    def bias(self) -> Tensor | None:
        """As in `nn.Linear`."""
        return self.base.bias


def add_lora(
    network: nn.Module, rank: int, alpha: float, targets: Sequence[str], also_train: Sequence[str] = ()
) -> list[str]:
    """Add LoRA adapters to the linear layers whose names match `targets`. Return the names of these layers.

    Every parameter of the network is frozen, unless it matches `also_train`, such as a new head: "head.*". Layers that
    match `also_train` or were frozen before get no adapter. A layer that is tied to an embedding gets none either,
    because merging the adapter would change the embedding, too.
    """
    if rank < 1:
        raise UsageError(f"model.lora_rank = {rank} must be at least 1; leave it out to train without LoRA")
    linears = {name: module for name, module in network.named_modules() if isinstance(module, nn.Linear)}
    tables = {id(module.weight) for module in network.modules() if isinstance(module, nn.Embedding)}
    chosen = {
        name: linear
        for name, linear in linears.items()
        if matches_any(name, targets)
        and linear.weight.requires_grad
        and id(linear.weight) not in tables
        and not matches_any(f"{name}.weight", also_train)
    }
    if not chosen:
        free = [name for name, linear in linears.items() if linear.weight.requires_grad]
        raise UsageError(
            f"model.lora_targets: no linear layer matches {' or '.join(map(repr, targets))}; {_suffix_hint(free)}"
        )
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and matches_any(name, also_train))
    for name, linear in chosen.items():
        replace_module(network, name, LoraLinear(linear, rank, alpha))
    return list(chosen)


def merge_lora(network: nn.Module) -> None:
    """Add each adapter to the weight of its layer, and remove the adapter. The outputs stay the same."""
    for name, module in list(network.named_modules()):
        if isinstance(module, LoraLinear):
            with torch.no_grad():
                module.base.weight.copy_(module.weight)
            replace_module(network, name, module.base)


def replace_module(network: nn.Module, name: str, module: nn.Module) -> None:
    """Replace the submodule `name` by `module`."""
    parent, _, last = name.rpartition(".")
    setattr(network.get_submodule(parent), last, module)


def _name_hint(pattern: str, names: Sequence[str]) -> str:
    """Return a hint: the most similar name or `module.*` pattern, or a few names."""
    below = {name.rsplit(".", depth)[0] + ".*" for name in names for depth in range(1, name.count(".") + 1)}
    hint = suggest_name(pattern, [*names, *below])
    return hint if hint.startswith("did you mean") else "names look like " + ", ".join(names[:3])


def _suffix_hint(names: Iterable[str]) -> str:
    """Return a hint that lists the endings of the names as patterns, such as `*.attention.qkv`."""
    kinds = sorted({"*." + ".".join(name.split(".")[-2:]) for name in names})
    return "there are " + ", ".join(kinds) if kinds else "all layers are frozen"
