"""Wrapping a training module for several processes: data parallel (DDP), fully sharded (FSDP2), tensor parallel.

    world = init_world(section)                 from torchrun's environment; without it, a world of one process
    module = parallelize(module, world, section)

`shards.py` has the reverse: it saves, loads and gathers the tensors that are spread over ranks.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from qkv.blocks.block import Block
from qkv.errors import QkvError, UsageError
from qkv.train.parallel.world import DATA_AXIS, TENSOR_AXIS, World
from qkv.train.recipe.schema import TrainSection


def parallelize(module: nn.Module, world: World, section: TrainSection) -> nn.Module:
    """Distribute a training module over the ranks; returns the module to call in its place.

    `module.network` stays the network, with parameters that are whole (DDP) or sharded. All ranks start with the
    weights of rank 0. A module on the meta device takes no memory before it is sharded; its shards are then NaN until
    `load_slices` or `scatter_weights` fills them.
    """
    if world.mesh is None:
        return module
    network: nn.Module = module.network  # type: ignore[assignment]
    is_meta = any(parameter.is_meta for parameter in module.parameters())
    if not world.is_sharded:
        if is_meta:
            raise QkvError('a network on the meta device needs train.parallel = "fsdp"')
        return _wrap_ddp(module.to(world.device), world)
    if section.precision == "float16":
        raise UsageError(
            'train.precision = "float16" does not work with sharded parameters: set "bfloat16", or train.parallel = '
            '"ddp" and train.tensor_parallel = 1'
        )
    if not is_meta:
        module.to(world.device)
        for tensor in module.parameters():
            dist.broadcast(tensor.data, src=0)
    # Importing torch's DTensor takes a second, which runs of one process do not pay.
    from qkv.train.parallel.tensor_parallel import split_network, sum_qk_norm_gradients

    if world.tensor_size > 1:
        world.row_orders.update(split_network(network, world.mesh[TENSOR_AXIS]))
    if world.data_size > 1:
        _apply_fsdp(module, world, section)
    if is_meta:
        materialize(module, world.device)
    if world.data_size == 1:
        sum_qk_norm_gradients(network)
    return module


def _wrap_ddp(module: nn.Module, world: World) -> nn.Module:
    """DDP with summed gradients. (By default it averages them, whatever the number of labels on each rank.)"""
    assert world.mesh is not None
    group = world.mesh.get_group(DATA_AXIS)
    # The head of next-sentence prediction gets a gradient from some objectives only.
    may_skip = any(".sentence." in name for name, p in module.named_parameters() if p.requires_grad)
    wrapped = DistributedDataParallel(
        module,
        device_ids=[world.device] if world.device.type == "cuda" else None,
        process_group=group,
        gradient_as_bucket_view=True,
        find_unused_parameters=may_skip,
    )
    wrapped.register_comm_hook(group, _sum_gradients)
    return wrapped


def _sum_gradients(group, bucket):  # type: ignore[no-untyped-def]  # torch inspects the annotations, and versions differ
    work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


def _apply_fsdp(module: nn.Module, world: World, section: TrainSection) -> None:
    """FSDP2: each block gathers its parameters when it runs; parameters outside of blocks belong to the module."""
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    assert world.mesh is not None
    policy = MixedPrecisionPolicy()
    if world.device.type == "cuda" and section.precision in ("auto", "bfloat16"):
        # Weights are sent in bfloat16, gradients are summed in float32; autocast decides the dtype of activations.
        policy = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for part in [m for m in module.modules() if isinstance(m, Block)] + [module]:
        # Reshard after each forward pass, the root module included. Otherwise its gathered parameters would remain
        # after an evaluation, and would be outdated when an average or a checkpoint changes the shards.
        sharded = fully_shard(part, mesh=world.mesh[DATA_AXIS], mp_policy=policy, reshard_after_forward=True)
        assert isinstance(sharded, FSDPModule)
        sharded.set_gradient_divide_factor(1.0)  # sums, not means
        sharded.set_force_sum_reduction_for_comms(True)


def materialize(network: nn.Module, device: torch.device) -> None:
    """Replace parameters on the meta device by ones full of NaN on `device`; tied parameters stay tied."""
    made: dict[int, nn.Parameter] = {}
    for module in network.modules():
        for name, old in list(module.named_parameters(recurse=False)):
            if id(old) not in made:
                new = torch.full_like(old.detach(), float("nan"), device=device)
                made[id(old)] = nn.Parameter(new, requires_grad=old.requires_grad)
            module.register_parameter(name, made[id(old)])
