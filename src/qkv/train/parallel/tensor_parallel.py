"""Tensor parallelism: the matrices of every block are split over a few ranks, which process the same tokens together.

    attention   qkv, q, kv by heads: each rank has its own heads     out    by the columns that those heads feed
    ffn         up by hidden units (gate and value alike)            down   by the columns that those units feed

Each block needs two all-reduces in the forward pass, after `out` and after `down` (a third with cross-attention), and
the same number in the backward pass. Embeddings, norms and the head are replicated. torch's
`parallelize_module` splits the matrices. It gives each rank a range of consecutive rows. But a fused matrix has all
queries, then all keys, then all values, so its rows are reordered before:

    q0 q1 q2 q3  k0 k1 k2 k3  v0 v1 v2 v3    →    q0 q1 k0 k1 v0 v1 | q2 q3 k2 k3 v2 v3

A `RowOrder` records the old rows, so that checkpoints have the original order.
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
from qkv.blocks.attention import Attention, CrossAttention, SelfAttention
from qkv.blocks.block import Block
from qkv.blocks.feedforward import FeedForward
from qkv.errors import UsageError
from qkv.train.parallel.row_order import RowOrder

SPLIT_PARTS = {
    "block": (Block,),
    "attention": (SelfAttention,),
    "cross": (CrossAttention, type(None)),
    "ffn": (FeedForward,),
}
"""The parts of a block, with the classes that can be split."""


def check_divisible(network: nn.Module, tensor_size: int) -> None:
    """Raise if there are no blocks, if heads or hidden units do not divide evenly, or if a part cannot be split."""
    stacks = [module for module in network.modules() if isinstance(module, Stack)]
    if not stacks:
        raise UsageError(
            f"train.tensor_parallel = {tensor_size} splits Transformer blocks, but this model has recurrent layers; "
            'set train.tensor_parallel = 1 and train.parallel = "ddp"'
        )
    for stack in stacks:
        for name in ("attention_sinks", "value_residual"):
            if (value := getattr(stack.config, name)) != "none":
                raise UsageError(
                    f"train.tensor_parallel = {tensor_size} does not support the {stack.name}'s {name} = {value!r}; "
                    'set train.tensor_parallel = 1, and save memory with train.parallel = "fsdp" instead'
                )
        for block in stack.blocks:
            parts = {"block": block, **dict(block.named_children())}
            for name, known in SPLIT_PARTS.items():
                if type(part := parts.get(name)) not in known:
                    raise UsageError(
                        f"train.tensor_parallel = {tensor_size} cannot split the {stack.name}'s {name}, which is a "
                        f"{type(part).__name__} and not a built-in part; set train.tensor_parallel = 1, and save "
                        'memory with train.parallel = "fsdp" instead'
                    )
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
                        f"train.tensor_parallel = {tensor_size} cannot split {name}.{inner}, which is a "
                        f"{type(module).__name__} and not a plain matrix (LoRA?): set train.tensor_parallel = 1, and "
                        'save memory with train.parallel = "fsdp" instead'
                    )


def split_network(network: nn.Module, mesh: DeviceMesh) -> dict[str, RowOrder]:
    """Split every block over the ranks of a one-dimensional mesh. Return the row orders of the reordered parameters.

    All ranks must have the same weights, unless the network is on the meta device.
    """
    check_divisible(network, mesh.size())
    orders: dict[str, RowOrder] = {}
    for name, module in network.named_modules():
        if isinstance(module, Block):
            for inner, order in _split_block(module, mesh).items():
                orders[f"{name}.{inner}"] = order
        elif isinstance(module, Stack) and module.bias is not None:
            if module.bias.table is not None:  # T5: the table has a column for each head
                _parallelize(module.bias, mesh, {"table": ColwiseParallel()})
            else:
                _slice_alibi_heads(module.bias, mesh)
    return orders


def _split_block(block: Block, mesh: DeviceMesh) -> dict[str, RowOrder]:
    fused = {"attention.qkv": block.attention.split_sizes}
    plan: dict[str, ParallelStyle] = {"attention.qkv": ColwiseParallel(), "attention.out": RowwiseParallel()}
    if block.cross is not None:
        fused["cross.kv"] = [block.cross.kv_heads * block.cross.head_dim] * 2
        plan |= {"cross.q": ColwiseParallel(), "cross.kv": ColwiseParallel(), "cross.out": RowwiseParallel()}
    if block.ffn.gated:
        fused["ffn.up"] = [block.ffn.down.in_features] * 2
    plan |= {"ffn.up": ColwiseParallel(), "ffn.down": RowwiseParallel()}
    orders = {}
    for name, rows in fused.items():
        order = RowOrder.interleave(rows, mesh.size())
        for inner, parameter in block.get_submodule(name).named_parameters():
            parameter.data = parameter.data[order.old_rows().to(parameter.device)]
            orders[f"{name}.{inner}"] = order
    _parallelize(block, mesh, plan)
    for attention in (block.attention, block.cross):
        if attention is not None:
            _set_local_head_counts(attention, mesh)
    return orders


def _set_local_head_counts(attention: Attention, mesh: DeviceMesh) -> None:
    """Set the numbers of heads of an attention module to the numbers on this rank."""
    attention.heads //= mesh.size()
    attention.kv_heads //= mesh.size()
    if isinstance(attention, SelfAttention):
        attention.split_sizes = [rows // mesh.size() for rows in attention.split_sizes]
    # These norms are replicated, but process only this rank's heads (dimension 1). See `sum_qk_norm_gradients`.
    norms = [name for name in ("q_norm", "k_norm") if getattr(attention, name) is not None]
    _parallelize(attention, mesh, {name: SequenceParallel(sequence_dim=1, use_local_output=True) for name in norms})


def sum_qk_norm_gradients(network: nn.Module) -> None:
    """Add hooks that sum the gradients of the query and key norms over ranks.

    All heads share one gain, but each rank has only some heads. FSDP sums these gradients itself, so this is for runs
    without FSDP. Call it after all wrappers and `materialize`, which replace parameters.
    """

    def all_reduce(gradient: Tensor) -> Tensor:
        assert isinstance(gradient, DTensor)
        return gradient.redistribute(placements=[Replicate()])

    for attention in (module for module in network.modules() if isinstance(module, Attention)):
        for norm in (attention.q_norm, attention.k_norm):
            for parameter in norm.parameters() if norm is not None else ():
                if parameter.requires_grad:
                    parameter.register_hook(all_reduce)


def _slice_alibi_heads(bias: nn.Module, mesh: DeviceMesh) -> None:
    """Add a hook for ALiBi, which has no weights: each rank computes the bias of all heads, and keeps its own heads."""

    def keep(module: nn.Module, arguments: Any, out: Tensor) -> Tensor:
        return out.chunk(mesh.size(), dim=1)[mesh.get_local_rank()]

    bias.register_forward_hook(keep)


def _parallelize(module: nn.Module, mesh: DeviceMesh, plan: dict[str, ParallelStyle]) -> None:
    """Call torch's `parallelize_module`, and restore `requires_grad`, which it loses.

    No weights are broadcast (`src_data_rank=None`): each rank takes its part of the weights that it already has.
    """
    frozen = [name for name, parameter in module.named_parameters() if not parameter.requires_grad]
    if plan:
        parallelize_module(module, mesh, plan, src_data_rank=None)
    for name in frozen:
        module.get_parameter(name).requires_grad_(False)
