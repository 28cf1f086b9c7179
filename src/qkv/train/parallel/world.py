"""The processes (ranks) of a run, and the collectives that they use.

Ranks form a mesh, data × tensor. Ranks along `data` get different sequences, and their gradients are summed: sums,
not means, because the loss is divided by the number of labels of all ranks before the backward pass. Ranks along
`tensor` get the same sequences and hold a part of each matrix. Ranks along `tensor` have consecutive numbers, so that
they are on one machine.
"""

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import get_total_norm

from qkv.errors import UsageError
from qkv.train.parallel.heartbeat import Heartbeat
from qkv.train.parallel.row_order import RowOrder
from qkv.train.recipe.schema import TrainSection

if TYPE_CHECKING:  # importing it takes a second, so only sharded runs do
    from torch.distributed.tensor import DTensor

DATA_AXIS, TENSOR_AXIS = "data", "tensor"
COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""The timeout of collectives. The heartbeat detects a lost process much sooner."""


@dataclass
class World:
    """This rank and its place among all ranks. `init_world` makes it; `World()` is a single process."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    tensor_size: int = 1
    parallel: Literal["ddp", "fsdp"] = "ddp"
    mesh: DeviceMesh | None = None  # the axes are data × tensor; None for a single process
    heartbeat: Heartbeat | None = None
    row_orders: dict[str, RowOrder] = field(default_factory=dict)  # by name, for parameters whose rows were reordered

    @property
    def data_size(self) -> int:
        """The number of ranks that a batch is split over."""
        return self.size // self.tensor_size

    @property
    def data_rank(self) -> int:
        """The index of this rank's part of a batch."""
        return self.rank // self.tensor_size

    @property
    def tensor_rank(self) -> int:
        """The index of this rank's part of each matrix."""
        return self.rank % self.tensor_size

    @property
    def is_sharded(self) -> bool:
        """Whether each rank holds only a part of the network."""
        return self.tensor_size > 1 or (self.parallel == "fsdp" and self.size > 1)

    def sum_tensor(self, value: Tensor, *, all_ranks: bool = False) -> Tensor:
        """Return the sum over the data axis or, with `all_ranks`, over all ranks (all-reduce).

        Tensor-parallel ranks have the same sequences, so sums over sequences use the data axis, to count them once.
        """
        if self.mesh is None or (self.data_size == 1 and not all_ranks):
            return value
        value = value.to(self.device, copy=True)
        dist.all_reduce(value, group=None if all_ranks else self.mesh.get_group(DATA_AXIS))
        return value

    def sum_scalar(self, value: float) -> float:
        """Return the sum of a number over the data axis."""
        return float(self.sum_tensor(torch.tensor(value, dtype=torch.float64)))

    def mean(self, value: float) -> float:
        """Return the mean of a number over all ranks."""
        return float(self.sum_tensor(torch.tensor(value, dtype=torch.float64), all_ranks=True)) / self.size

    def barrier(self) -> None:
        """Wait until all ranks have called this."""
        if self.mesh is not None:
            dist.barrier()

    def gradient_sync(self, module: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """Return the context of a micro-batch. With DDP, gradients are all-reduced only after the `last` micro-batch.

        Gradients of sharded parameters are reduced after each micro-batch. Accumulating whole gradients would take the
        memory that sharding saves.
        """
        if isinstance(module, DistributedDataParallel) and not last:
            return module.no_sync()
        return nullcontext()

    def clip_gradients(self, parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
        """Clip the norm of all gradients to `max_norm`. Return the norm before clipping.

        Parameters may be sharded or not. With `max_norm` = 0 nothing is clipped. The host does not wait for the device.
        """
        found: dict[tuple[bool, bool], list[Tensor]] = {}
        for parameter in parameters:
            if parameter.grad is not None:
                found.setdefault(sharded_axes(parameter.grad), []).append(local_tensor(parameter.grad))
        dtype = torch.float64 if any(g.dtype == torch.float64 for gs in found.values() for g in gs) else torch.float32
        # squares[i, j]: i = 1 for gradients sharded along the data axis, j = 1 along the tensor axis.
        squares = torch.zeros(2, 2, dtype=dtype, device=self.device)
        for (data, tensor), gradients in found.items():
            squares[int(data), int(tensor)] = get_total_norm(gradients).to(dtype) ** 2
        if self.mesh is not None and self.is_sharded:
            dist.all_reduce(squares[1], group=self.mesh.get_group(DATA_AXIS))
            squares = squares.sum(0)
            dist.all_reduce(squares[1:], group=self.mesh.get_group(TENSOR_AXIS))
        norm = squares.sum().sqrt()
        if max_norm > 0:
            scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
            for gradients in found.values():
                torch._foreach_mul_(gradients, scale)
        return norm

    def leave(self, *, failed: bool = False) -> None:
        """Leave the process group. With `failed`, notify the other ranks and do not wait for them."""
        if self.mesh is None:
            return
        if not failed:
            self.barrier()
        if self.heartbeat is not None:
            self.heartbeat.stop(failed=failed)
        if not failed:
            dist.destroy_process_group()
        self.mesh = None


def is_dtensor(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Return whether a tensor is a DTensor: this rank may hold only a part of it."""
    return hasattr(tensor, "placements")


def local_tensor(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this rank holds, in the same memory."""
    return tensor.to_local() if is_dtensor(tensor) else tensor


def sharded_axes(tensor: Tensor) -> tuple[bool, bool]:
    """Return whether a tensor is sharded along `data`, and whether along `tensor`."""
    if not is_dtensor(tensor):
        return False, False
    assert not any(placement.is_partial() for placement in tensor.placements), "a partial sum that was never reduced"
    names = tensor.device_mesh.mesh_dim_names or ()
    axes = {name for name, placement in zip(names, tensor.placements, strict=True) if hasattr(placement, "dim")}
    return DATA_AXIS in axes, TENSOR_AXIS in axes


def init_world(section: TrainSection) -> World:
    """Join the process group that torchrun (or `launch.py`) set up. Without one, return a single process."""
    rank, size, local_rank = (int(os.environ.get(n, d)) for n, d in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0)))
    device = select_device(section.device, local_rank, size)
    on_gpu = device.type == "cuda"
    if on_gpu and device.index is not None:
        torch.cuda.set_device(device)  # the default device of kernels and streams
    if size == 1:
        if section.tensor_parallel > 1:
            raise UsageError(
                f"train.tensor_parallel = {section.tensor_parallel} needs several processes; this run has one. "
                f"Start it with --processes {section.tensor_parallel}"
            )
        return World(device=device)
    tensor = section.tensor_parallel
    if size % tensor:
        raise UsageError(
            f"train.tensor_parallel = {tensor} does not divide the number of processes, {size}; choose a divisor"
        )
    if tensor > 1 and size > tensor and section.parallel == "ddp":
        raise UsageError(
            f"train.tensor_parallel = {tensor} with {size} processes gives {size // tensor} groups of ranks, "
            'which needs train.parallel = "fsdp"'
        )
    dist.init_process_group(
        "nccl" if on_gpu else "gloo", timeout=COLLECTIVE_TIMEOUT, device_id=device if on_gpu else None
    )
    mesh = init_device_mesh(device.type, (size // tensor, tensor), mesh_dim_names=(DATA_AXIS, TENSOR_AXIS))
    heartbeat = Heartbeat.from_environment(rank, size)
    heartbeat.start()
    dist.barrier()
    return World(rank, size, local_rank, device, tensor, section.parallel, mesh, heartbeat)


DEVICE_CHOICES = "auto, cpu, cuda or mps, with a number as in cuda:1"


def select_device(name: str, local_rank: int, world_size: int) -> torch.device:
    """Return the device of this rank. With several ranks on GPUs, each uses the GPU of its local rank."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"train.device = {name!r} is not a device; choose {DEVICE_CHOICES}") from error
    if device.type not in ("cpu", "cuda", "mps"):
        raise UsageError(f"train.device = {name!r} is not supported for training; choose {DEVICE_CHOICES}")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UsageError(f"train.device = {name!r}: torch finds no such device on this machine; choose another")
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        raise UsageError(f'train.device = {name!r}: torch finds no GPU on this machine; set train.device = "cpu"')
    if world_size > 1:
        device = torch.device("cuda", local_rank)
    if (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(
            f"there is no GPU {device.index} for this rank: the machine has {torch.cuda.device_count()}. Start fewer "
            'processes, or set train.device = "cpu"'
        )
    return device
