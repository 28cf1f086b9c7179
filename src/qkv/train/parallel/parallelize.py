"""A learner spread over many processes, and how its tensors come together again.

    world = join(section)                       from torchrun's environment; a world of one without it
    module = spread(learner, world, section)    whole copies (ddp), sharded parameters (fsdp), cut matrices (tensor)
    pieces_of(name, tensor, world)              what this process writes of a tensor into a checkpoint
    fill(tensor, checkpoint, name, world)       the reverse, whatever the number of processes was
    give_out(network, whole, world)             the first process's weights to all; whole_network is the reverse

A checkpoint knows whole tensors and boxes of them, nothing of processes: a run may go on with more, fewer or one.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from qkv.blocks.block import Block
from qkv.errors import QkvError, UsageError
from qkv.models import Network, build
from qkv.train.checkpoint.slices import TensorSlice
from qkv.train.parallel.row_order import RowOrder
from qkv.train.parallel.world import DATA_AXIS, TENSOR_AXIS, World, init_world, is_dtensor, local_tensor, sharded_axes
from qkv.train.recipe.schema import TrainSection

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

__all__ = [
    "TensorReader",
    "World",
    "gather_network",
    "gather_tensors",
    "init_world",
    "load_slices",
    "local_slices",
    "parallelize",
    "scatter_weights",
]


class TensorReader(Protocol):
    """What tensors are filled from: a checkpoint."""

    def read_tensor(self, name: str) -> Tensor: ...
    def read_slice(self, name: str, offset: tuple[int, ...], shape: tuple[int, ...]) -> Tensor: ...


def parallelize(module: nn.Module, world: World, section: TrainSection) -> nn.Module:
    """Spread a learner over the world; returns what is to be called in its place.

    `learner.network` stays the network, with parameters that are whole or cut. All start with the weights of process
    0. A learner on the meta device costs no memory before it is cut; its shards are then NaN until `fill` or
    `give_out` gives them numbers.
    """
    if world.mesh is None:
        return module
    network: nn.Module = module.network  # type: ignore[assignment]
    meta = any(parameter.is_meta for parameter in module.parameters())
    if not world.is_sharded:
        if meta:
            raise QkvError('a network without weights can be spread with train.parallel = "fsdp" alone')
        return _wrap_ddp(module.to(world.device), world)
    if section.precision == "float16":
        raise UsageError('train.precision = "float16" is for whole copies; sharded parameters take "bfloat16"')
    if not meta:
        module.to(world.device)
        for tensor in module.parameters():
            dist.broadcast(tensor.data, src=0)
    from qkv.train.parallel.tensor_parallel import split_network, sum_qk_norm_gradients

    if world.tensor_size > 1:
        world.row_orders.update(split_network(network, world.mesh[TENSOR_AXIS]))
    if world.data_size > 1:
        _apply_fsdp(module, world, section)
    if meta:
        _materialize(module, world.device)
    if world.data_size == 1:
        sum_qk_norm_gradients(network)
    return module


def _wrap_ddp(learner: nn.Module, world: World) -> nn.Module:
    """DDP, whose gradients are made sums: its own way is the mean over processes, whatever their labels."""
    assert world.mesh is not None
    group = world.mesh.get_group(DATA_AXIS)
    # A head that only some objectives read may get no gradient.
    skips = any(".sentence." in name for name, p in learner.named_parameters() if p.requires_grad)
    module = DistributedDataParallel(
        learner,
        device_ids=[world.device] if world.device.type == "cuda" else None,
        process_group=group,
        gradient_as_bucket_view=True,
        find_unused_parameters=skips,
    )
    module.register_comm_hook(group, _sum_gradients)
    return module


def _sum_gradients(group, bucket):  # type: ignore[no-untyped-def]  # torch inspects the types, and not every torch has them
    work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


def _apply_fsdp(learner: nn.Module, world: World, section: TrainSection) -> None:
    """FSDP2: each block gathers its parameters when it runs; what is outside of blocks belongs to the learner."""
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    assert world.mesh is not None
    policy = MixedPrecisionPolicy()
    if world.device.type == "cuda" and section.precision in ("auto", "bfloat16"):
        # Weights travel as bfloat16, gradients are added up in float32; the types of activations are autocast's.
        policy = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for module in [m for m in learner.modules() if isinstance(m, Block)] + [learner]:
        # Given back after each forward pass, also by the learner itself: else, after an evaluation, its whole copies
        # would stay, and stay as they were when averages or a checkpoint change the shards beneath them.
        sharded = fully_shard(module, mesh=world.mesh[DATA_AXIS], mp_policy=policy, reshard_after_forward=True)
        assert isinstance(sharded, FSDPModule)
        sharded.set_gradient_divide_factor(1.0)  # sums, not means
        sharded.set_force_sum_reduction_for_comms(True)


def _materialize(network: nn.Module, device: torch.device) -> None:
    """Replace parameters on the meta device by memory full of NaN; what was tied stays tied."""
    made: dict[int, nn.Parameter] = {}
    for module in network.modules():
        for name, old in list(module.named_parameters(recurse=False)):
            if id(old) not in made:
                new = torch.full_like(old.detach(), float("nan"), device=device)
                made[id(old)] = nn.Parameter(new, requires_grad=old.requires_grad)
            module.register_parameter(name, made[id(old)])


def local_slices(name: str, tensor: Tensor, world: World | None = None) -> list[TensorSlice]:
    """What this process writes of a tensor; nothing where another process writes the same."""
    world = _resolve_world(name, tensor, world)
    shape = tuple(tensor.shape)
    if not is_dtensor(tensor):
        return [TensorSlice.whole(tensor.detach())] if world.rank == 0 else []
    data, along_tensor = sharded_axes(tensor)
    if (not data and world.data_rank) or (not along_tensor and world.tensor_rank):
        return []
    here = local_tensor(tensor.detach())
    return [
        TensorSlice(here.narrow(0, start, rows), offset, shape)
        for start, rows, offset in _local_runs(name, tensor, world)
    ]


def load_slices(
    tensor: Tensor, source: TensorReader | Mapping[str, Tensor], name: str, world: World | None = None
) -> None:
    """Copy the numbers of `name` into what this process holds of a tensor."""
    world = _resolve_world(name, tensor, world)
    with torch.no_grad():
        if not is_dtensor(tensor):
            whole = source[name] if isinstance(source, Mapping) else source.read_tensor(name)
            _check_shape(name, tensor, whole)
            tensor.copy_(whole)
            return
        here = local_tensor(tensor.detach())
        for start, rows, offset in _local_runs(name, tensor, world):
            mine = here.narrow(0, start, rows)
            if isinstance(source, Mapping):
                _check_shape(name, tensor, source[name])
                box = source[name][tuple(slice(o, o + n) for o, n in zip(offset, mine.shape, strict=True))]
            else:
                box = source.read_slice(name, offset, tuple(mine.shape))
            mine.copy_(box)


def _check_shape(name: str, tensor: Tensor, found: Tensor) -> None:
    if tensor.shape != found.shape:
        raise QkvError(f"{name}: the checkpoint has {list(found.shape)}, the run {list(tensor.shape)}")


def _resolve_world(name: str, tensor: Tensor, world: World | None) -> World:
    """The world that was given; or, where rows are in their own order for sure, the one that torch knows of."""
    if world is not None or not (dist.is_available() and dist.is_initialized()):
        return world or World()
    alone = World(rank=dist.get_rank(), size=dist.get_world_size())
    if is_dtensor(tensor) and (tensor.device_mesh.mesh_dim_names, tensor.device_mesh.size()) != (
        (DATA_AXIS,),
        alone.size,
    ):
        raise QkvError(f"{name} is spread over a grid of processes: say which one (world=)")
    return alone


def _local_runs(name: str, tensor: "DTensor", world: World) -> list[tuple[int, int, tuple[int, ...]]]:
    """What is here of a tensor, as (first row here, rows, offset in the whole tensor as others know it)."""
    first, size = _local_extent(tensor)
    if 0 in size:
        return []
    order = _row_order(name, world)
    if order is None:
        return [(0, size[0], tuple(first))]
    runs = order.old_runs(first[0], first[0] + size[0])
    return [(new - first[0], rows, (old, *first[1:])) for new, old, rows in runs]


def _local_extent(tensor: "DTensor") -> tuple[list[int], list[int]]:
    """Where the part that is here begins in the whole tensor, and how far it reaches.

    Matrices are cut over `tensor` first, in even parts, and then over `data`: ⌈n/k⌉ rows each while there are any.
    """
    first, size = [0] * tensor.ndim, list(tensor.shape)
    mesh = tensor.device_mesh
    place = mesh.get_coordinate()
    assert place is not None
    for axis in reversed(range(mesh.ndim)):  # tensor comes last in the grid
        dim = getattr(tensor.placements[axis], "dim", None)
        if dim is not None:
            step = -(-size[dim] // mesh.size(axis))
            begin = min(step * place[axis], size[dim])
            first[dim] += begin
            size[dim] = min(step, size[dim] - begin)
    assert tuple(size) == tuple(local_tensor(tensor.detach()).shape), "torch cuts tensors in another way than it did"
    return first, size


def _row_order(name: str, world: World) -> RowOrder | None:
    """The row order of a parameter or of something kept beside it, as optimizer.exp_avg.NAME."""
    while name:
        if name in world.row_orders:
            return world.row_orders[name]
        name = name.partition(".")[2]
    return None


def scatter_weights(network: nn.Module, whole: nn.Module | None, world: World) -> None:
    """Start a spread network with the weights of `whole`, which process 0 alone needs to hold (on its CPU, say).

    The weights are then those that one process would have started with, at the price of one process's memory.
    """
    theirs = dict(whole.named_parameters()) if whole is not None else {}
    for name, parameter in network.named_parameters():
        values = torch.empty(parameter.shape, dtype=parameter.dtype, device=world.device)
        if world.rank == 0:
            values.copy_(theirs[name].detach())
        if world.mesh is not None:
            dist.broadcast(values, src=0)
        load_slices(parameter, {name: values}, name, world)


def gather_tensors(named: Iterable[tuple[str, Tensor]], world: World) -> Iterator[tuple[str, Tensor]]:
    """Whole tensors from cut ones, one at a time, on every process. All must ask, for the same names in one order.

    Each process lays its pieces into zeros, and the sum is the tensor.
    """
    for name, tensor in named:
        if not is_dtensor(tensor):
            yield name, tensor.detach()
            continue
        whole = torch.zeros(tensor.shape, dtype=tensor.dtype, device=world.device)
        for piece in local_slices(name, tensor, world):
            whole[tuple(slice(o, o + n) for o, n in zip(*piece.bounds, strict=True))] = piece.values
        dist.all_reduce(whole)
        yield name, whole


def gather_network(network: Network, world: World, device: torch.device | None = None) -> Network | None:
    """A network that one process can use by itself, on the first process; None on the others.

    Gathered on `device` (the world's own, if none is given): a CPU has room for what a GPU may not hold.
    """
    if not world.is_sharded:
        return network if world.rank == 0 else None
    whole = own = None
    if world.rank == 0:
        whole = build(network.config, device="meta")
        _materialize(whole, device or world.device)
        own = dict(whole.named_parameters())
    with torch.no_grad():
        for name, values in gather_tensors(network.named_parameters(), world):
            if own is not None:
                own[name].copy_(values)
    return None if whole is None else whole.eval()
