"""Tensor parallel: the matrices of every block cut over a few processes, which work on each token together.

    attention   qkv, q, kv by heads: each process holds its own heads     out    by what those heads feed it
    ffn         up by hidden units (gate and value alike)                 down   by what those units feed it

Two sums a block go between the processes, one after `out` and one after `down` (a third with cross-attention), and
as many come back in the backward pass. Embeddings, norms and the head are whole everywhere and see the same numbers.
The cutting is torch's (`parallelize_module`); what is ours is the order of rows: a fused matrix holds all queries,
then all keys, then all values, and is laid out anew so that a process's share is one run of rows:

    q0 q1 q2 q3  k0 k1 k2 k3  v0 v1 v2 v3    →    q0 q1 k0 k1 v0 v1 | q2 q3 k2 k3 v2 v3

A `RowOrder` remembers where rows came from, so that checkpoints never see this.
"""

from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from qkv.blocks import Stack
from qkv.blocks.attention import Attention, SelfAttention
from qkv.blocks.block import Block
from qkv.errors import UsageError
from qkv.train.parallel.row_order import RowOrder


def check_divisible(network: nn.Module, tensor_size: int) -> None:
    """Refuse a network whose blocks do not divide evenly, or whose matrices are not plain ones."""
    for stack in (module for module in network.modules() if isinstance(module, Stack)):
        for name in ("heads", "kv_heads", "ffn_width"):
            if (value := getattr(stack.config, name)) % tensor_size:
                raise UsageError(
                    f"train.tensor_parallel = {tensor_size} does not divide the {stack.name}'s {name} = {value}; "
                    "choose a divisor of it"
                )
    for name, block in network.named_modules():
        if isinstance(block, Block):
            for inner, module in block.named_modules():
                if inner.endswith((".qkv", ".q", ".kv", ".out", ".up", ".down")) and type(module) is not nn.Linear:
                    raise UsageError(
                        f"train.tensor_parallel = {tensor_size}: {name}.{inner} is a {type(module).__name__}, not a plain "
                        'matrix (LoRA?); set it to 1, and share memory with train.parallel = "fsdp" instead'
                    )


def split_network(network: nn.Module, mesh: DeviceMesh) -> dict[str, RowOrder]:
    """Cut every block over the processes of a one-dimensional mesh; returns which parameters have a new row order.

    All processes must hold the same weights, or none (on the meta device).
    """
    shares = mesh.size()
    check_divisible(network, shares)
    orders: dict[str, RowOrder] = {}
    for name, module in network.named_modules():
        if isinstance(module, Block):
            for inner, order in _split_block(module, mesh).items():
                orders[f"{name}.{inner}"] = order
        elif isinstance(module, Stack) and module.bias is not None:
            if module.bias.table is not None:  # T5's has a column for each head
                _parallelize(module.bias, mesh, {"table": ColwiseParallel()})
            else:
                _keep_local_heads(module.bias, mesh)
    return orders


def _split_block(block: Block, mesh: DeviceMesh) -> dict[str, RowOrder]:
    shares = mesh.size()
    fused = {"attention.qkv": block.attention.split_sizes}
    plan: dict[str, ParallelStyle] = {"attention.qkv": ColwiseParallel(), "attention.out": RowwiseParallel()}
    if block.cross is not None:
        fused["cross.kv"] = [block.cross.kv_heads * block.cross.head_dim] * 2
        plan |= {"cross.q": ColwiseParallel(), "cross.kv": ColwiseParallel(), "cross.out": RowwiseParallel()}
    if block.ffn.gated:
        fused["ffn.up"] = [block.ffn.down.in_features] * 2
    plan |= {"ffn.up": ColwiseParallel(), "ffn.down": RowwiseParallel()}
    orders = {}
    for name, parts in fused.items():
        order = RowOrder.interleave(parts, shares)
        for inner, parameter in block.get_submodule(name).named_parameters():
            parameter.data = parameter.data[order.old_rows().to(parameter.device)]
            orders[f"{name}.{inner}"] = order
    _parallelize(block, mesh, plan)
    for attention in (block.attention, block.cross):
        if attention is not None:
            _use_local_heads(attention, mesh)
    return orders


def _use_local_heads(attention: Attention, mesh: DeviceMesh) -> None:
    """From here on the module counts the heads of this process alone."""
    attention.heads //= mesh.size()
    attention.kv_heads //= mesh.size()
    if isinstance(attention, SelfAttention):
        attention.split_sizes = [rows // mesh.size() for rows in attention.split_sizes]
    # These are whole, but each process sees its own heads (dimension 1) alone: see `add_up_gradients`.
    norms = [name for name in ("q_norm", "k_norm") if getattr(attention, name) is not None]
    _parallelize(attention, mesh, {name: SequenceParallel(sequence_dim=1, use_local_output=True) for name in norms})


def sum_qk_norm_gradients(network: nn.Module) -> None:
    """One gain norms the queries of every head: its gradient is the sum over the heads of all processes.

    FSDP does this by itself; without it, a hook does. Called when parameters are the ones that will be trained.
    """

    def add_up(gradient: Tensor) -> Tensor:
        assert isinstance(gradient, DTensor)
        return gradient.redistribute(placements=[Replicate()])

    for attention in (module for module in network.modules() if isinstance(module, Attention)):
        for norm in (attention.q_norm, attention.k_norm):
            for parameter in norm.parameters() if norm is not None else ():
                if parameter.requires_grad:
                    parameter.register_hook(add_up)


def _keep_local_heads(bias: nn.Module, mesh: DeviceMesh) -> None:
    """ALiBi has no weights: every process computes the bias of all heads and keeps that of its own."""

    def keep(module: nn.Module, arguments: Any, out: Tensor) -> Tensor:
        return out.chunk(mesh.size(), dim=1)[mesh.get_local_rank()]

    bias.register_forward_hook(keep)


def _parallelize(module: nn.Module, mesh: DeviceMesh, plan: dict[str, ParallelStyle]) -> None:
    """Torch's own cutting, which forgets what is frozen; nothing is sent, for all hold the same."""
    frozen = [name for name, parameter in module.named_parameters() if not parameter.requires_grad]
    if plan:
        parallelize_module(module, mesh, plan, src_data_rank=None)
    for name in frozen:
        module.get_parameter(name).requires_grad_(False)
