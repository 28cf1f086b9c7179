"""Save, load, scatter and gather tensors that are distributed over ranks.

    local_slices(name, tensor, world)              the slices that this rank saves in a checkpoint
    load_slices(tensor, checkpoint, name, world)   the reverse, for any number of ranks
    scatter_weights(network, whole, world)         send the weights of rank 0 to all ranks
    gather_network(network, world)                 the reverse

A checkpoint stores slices with their position in the whole tensor, so a run can be resumed with any number of ranks.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.models import Network, build
from qkv.train.checkpoint.slices import TensorReader, TensorSlice, index_within
from qkv.train.parallel.parallelize import materialize
from qkv.train.parallel.row_order import RowOrder
from qkv.train.parallel.world import World, is_dtensor, local_tensor, sharded_axes

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def local_slices(name: str, tensor: Tensor, world: World) -> list[TensorSlice]:
    """Return the slices of a tensor that this rank saves; none if another rank saves the same slices."""
    shape = tuple(tensor.shape)
    if not is_dtensor(tensor):
        return [TensorSlice.whole(tensor.detach())] if world.rank == 0 else []
    along_data, along_tensor = sharded_axes(tensor)
    if (not along_data and world.data_rank) or (not along_tensor and world.tensor_rank):
        return []
    local = local_tensor(tensor.detach())
    ranges = _local_ranges(name, tensor, world)
    return [TensorSlice(local.narrow(0, start, rows), offset, shape) for start, rows, offset in ranges]


def load_slices(tensor: Tensor, source: TensorReader | Mapping[str, Tensor], name: str, world: World) -> None:
    """Copy the tensor `name` of `source` into `tensor`, or this rank's part of it if `tensor` is sharded."""
    with torch.no_grad():
        if not is_dtensor(tensor):
            whole = source[name] if isinstance(source, Mapping) else source.read_tensor(name)
            _check_shape(name, tensor, whole)
            tensor.copy_(whole)
            return
        local = local_tensor(tensor.detach())
        for start, rows, offset in _local_ranges(name, tensor, world):
            target = local.narrow(0, start, rows)
            size = tuple(target.shape)
            if isinstance(source, Mapping):
                _check_shape(name, tensor, source[name])
                target.copy_(source[name][index_within((offset, size), (0,) * len(size))])
            else:
                target.copy_(source.read_slice(name, offset, size))


def _check_shape(name: str, tensor: Tensor, found: Tensor) -> None:
    if tensor.shape != found.shape:
        raise QkvError(
            f"{name}: the shape is {list(found.shape)} in the checkpoint and {list(tensor.shape)} in the run, so the "
            "checkpoint is of another model; undo changes of [model], or start a new run with run=…"
        )


def _local_ranges(name: str, tensor: "DTensor", world: World) -> list[tuple[int, int, tuple[int, ...]]]:
    """Return this rank's rows of a tensor, as ranges (first local row, number of rows, offset in the saved tensor)."""
    first, size = _local_extent(tensor)
    if 0 in size:
        return []
    order = _row_order(name, world)
    if order is None:
        return [(0, size[0], tuple(first))]
    ranges = order.old_ranges(first[0], first[0] + size[0])
    return [(new - first[0], rows, (old, *first[1:])) for new, old, rows in ranges]


def _local_extent(tensor: "DTensor") -> tuple[list[int], list[int]]:
    """Return the offset and the size of this rank's part in the whole tensor.

    A tensor is split evenly over the `tensor` axis, and each part is then split over `data`. There, k ranks get ⌈n/k⌉
    of n rows each; the last ranks may get fewer or none.
    """
    first, size = [0] * tensor.ndim, list(tensor.shape)
    mesh = tensor.device_mesh
    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    for axis in reversed(range(mesh.ndim)):  # the last axis of the mesh is `tensor`
        dim = getattr(tensor.placements[axis], "dim", None)
        if dim is not None:
            step = -(-size[dim] // mesh.size(axis))
            begin = min(step * coordinate[axis], size[dim])
            first[dim] += begin
            size[dim] = min(step, size[dim] - begin)
    assert tuple(size) == tuple(local_tensor(tensor.detach()).shape), "torch shards tensors differently than assumed"
    return first, size


def _row_order(name: str, world: World) -> RowOrder | None:
    """Return the row order of a parameter or of its state, such as optimizer.exp_avg.NAME; None if not reordered."""
    while name:
        if name in world.row_orders:
            return world.row_orders[name]
        name = name.partition(".")[2]
    return None


def scatter_weights(network: nn.Module, whole: nn.Module | None, world: World) -> None:
    """Fill a distributed network with the weights of `whole`. Only rank 0 needs `whole`, for example on its CPU.

    So a sharded run starts with the same weights as a run of one process. Tensors are sent one at a time.
    """
    weights = dict(whole.named_parameters()) if whole is not None else {}
    for name, parameter in network.named_parameters():
        values = torch.empty(parameter.shape, dtype=parameter.dtype, device=world.device)
        if world.rank == 0:
            values.copy_(weights[name].detach())
        if world.mesh is not None:
            dist.broadcast(values, src=0)
        load_slices(parameter, {name: values}, name, world)


def gather_tensors(named: Iterable[tuple[str, Tensor]], world: World) -> Iterator[tuple[str, Tensor]]:
    """Yield whole tensors, one at a time, on every rank. All ranks must give the same names in the same order.

    Each rank writes its slices into a tensor of zeros. The sum of these over ranks is the whole tensor.
    """
    for name, tensor in named:
        if not is_dtensor(tensor):
            yield name, tensor.detach()
            continue
        whole = torch.zeros(tensor.shape, dtype=tensor.dtype, device=world.device)
        for one in local_slices(name, tensor, world):
            whole[index_within(one.bounds, (0,) * tensor.ndim)] = one.values
        dist.all_reduce(whole)
        yield name, whole


def gather_network(network: Network, world: World, device: torch.device | None = None) -> Network | None:
    """Return the whole network on rank 0, and None on the other ranks.

    The network is gathered on `device`, by default this rank's device. Use the CPU if it does not fit on one GPU.
    """
    if not world.is_sharded:
        return network if world.rank == 0 else None
    whole = own = None
    if world.rank == 0:
        whole = build(network.config, device="meta")
        materialize(whole, device or world.device)
        own = dict(whole.named_parameters())
    with torch.no_grad():
        for name, values in gather_tensors(network.named_parameters(), world):
            if own is not None:
                own[name].copy_(values)
    return None if whole is None else whole.eval()
