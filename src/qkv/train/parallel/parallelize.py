"""Distribute a training module over several processes: data parallel (DDP), fully sharded (FSDP2), tensor parallel.

    world = init_world(section)                 from torchrun's environment; without it, a world of one process
    module = parallelize(module, world, section)

`shards.py` saves, loads and gathers the distributed tensors.
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
    """Distribute a training module over the ranks. Return the module to call instead.

    The parameters of `module.network` are whole with DDP, otherwise sharded. All ranks start with the weights of rank
    0. A module on the meta device takes no memory before it is sharded. Its shards are NaN until `load_slices` or
    `scatter_weights` fills them.
    """
    if world.mesh is None:
        return module
    network: nn.Module = module.network  # type: ignore[assignment]
    is_meta = any(parameter.is_meta for parameter in module.parameters())
    if not world.is_sharded:
        if is_meta:
            raise QkvError('the network is on the meta device, which DDP cannot use; set train.parallel = "fsdp"')
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
    # Import this only here: it imports torch's DTensor, which takes a second.
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
    """Wrap a module in DDP that sums gradients. By default DDP averages them over ranks."""
    assert world.mesh is not None
    group = world.mesh.get_group(DATA_AXIS)
    # Not every objective uses the next-sentence head, so its parameters may have no gradient.
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
    """Apply FSDP2 to each block, and to the module for the other parameters. Each of these modules gathers its
    parameters when it runs.
    """
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    assert world.mesh is not None
    policy = MixedPrecisionPolicy()
    if world.device.type == "cuda" and section.precision in ("auto", "bfloat16"):
        # Weights are sent in bfloat16, gradients are summed in float32; autocast decides the dtype of activations.
        policy = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for part in [m for m in module.modules() if isinstance(m, Block)] + [module]:
        # Reshard after each forward pass, also for the root module. By default the root keeps its gathered parameters
        # after an evaluation. They would be outdated when EMA or a checkpoint changes the shards.
        sharded = fully_shard(part, mesh=world.mesh[DATA_AXIS], mp_policy=policy, reshard_after_forward=True)
        assert isinstance(sharded, FSDPModule)
        sharded.set_gradient_divide_factor(1.0)  # sums, not means
        sharded.set_force_sum_reduction_for_comms(True)


def materialize(network: nn.Module, device: torch.device) -> None:
    """Replace parameters on the meta device by NaN parameters on `device`. Tied parameters stay tied."""
    made: dict[int, nn.Parameter] = {}
    for module in network.modules():
        for name, old in list(module.named_parameters(recurse=False)):
            if id(old) not in made:
                new = torch.full_like(old.detach(), float("nan"), device=device)
                made[id(old)] = nn.Parameter(new, requires_grad=old.requires_grad)
            setattr(module, name, made[id(old)])  # recurrent layers keep a second reference, which this updates, too
