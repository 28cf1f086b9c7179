"""The processes of a run: who is there, and how they talk.

They form a grid, data × tensor. Those along `data` see different rows and add up their gradients: sums, never means,
since the loss is divided by everybody's labels before the backward pass. Those along `tensor` see the same rows and
share each matrix; they are neighbours in number, so that they sit in one machine.
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

if TYPE_CHECKING:  # loading it takes a second, which a run of one process need not wait
    from torch.distributed.tensor import DTensor

DATA_AXIS, TENSOR_AXIS = "data", "tensor"
COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""How long a collective may take. A process that is gone is noticed much sooner, by its heartbeat."""


@dataclass
class World:
    """This process and the others. Made by `join`; by itself, a world of one."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    tensor_size: int = 1
    parallel: Literal["ddp", "fsdp"] = "ddp"
    mesh: DeviceMesh | None = None  # data × tensor; None: alone
    heartbeat: Heartbeat | None = None
    row_orders: dict[str, RowOrder] = field(default_factory=dict)  # parameters whose rows were laid out anew

    @property
    def data_size(self) -> int:
        """How many shares a batch is split into."""
        return self.size // self.tensor_size

    @property
    def data_rank(self) -> int:
        """Which share of the batch is ours."""
        return self.rank // self.tensor_size

    @property
    def tensor_rank(self) -> int:
        """Which share of each matrix is ours."""
        return self.rank % self.tensor_size

    @property
    def is_sharded(self) -> bool:
        """Whether no process holds the whole network."""
        return self.tensor_size > 1 or (self.parallel == "fsdp" and self.size > 1)

    def sum_tensor(self, value: Tensor, *, all_ranks: bool = False) -> Tensor:
        """The sum over all shares of the data, the same everywhere; `everyone`: over all processes.

        The tensor-parallel ones see the same rows, so that their labels are counted once; but not the same clock.
        """
        if self.mesh is None or (self.data_size == 1 and not all_ranks):
            return value
        value = value.to(self.device, copy=True)
        dist.all_reduce(value, group=None if all_ranks else self.mesh.get_group(DATA_AXIS))
        return value

    def sum_scalar(self, value: float) -> float:
        """The sum of a number over all shares of the data."""
        return float(self.sum_tensor(torch.tensor(value, dtype=torch.float64)))

    def mean(self, value: float) -> float:
        """The mean of a number over all processes, the same everywhere."""
        return float(self.sum_tensor(torch.tensor(value, dtype=torch.float64), all_ranks=True)) / self.size

    def barrier(self) -> None:
        """Wait for all."""
        if self.mesh is not None:
            dist.barrier()

    def no_sync(self, module: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """The context of a micro-batch's forward (and backward) pass: whole copies talk at the last one alone.

        Sharded parameters give their gradients away each time: keeping them whole in between is the memory that
        sharding is there to save.
        """
        if isinstance(module, DistributedDataParallel) and not last:
            return module.no_sync()
        return nullcontext()

    def clip_gradients(self, parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
        """Scale gradients down to a norm of `most` over all parameters, cut or not; returns the norm before.

        With `most` = 0 nothing is scaled. Nobody waits for the device.
        """
        found: dict[tuple[bool, bool], list[Tensor]] = {}
        for parameter in parameters:
            if parameter.grad is not None:
                found.setdefault(sharded_axes(parameter.grad), []).append(local_tensor(parameter.grad))
        exact = torch.float64 if any(g.dtype == torch.float64 for gs in found.values() for g in gs) else torch.float32
        squares = torch.zeros(2, 2, dtype=exact, device=self.device)  # [cut along data, cut along tensor]
        for (data, tensor), gradients in found.items():
            squares[int(data), int(tensor)] = get_total_norm(gradients).to(exact) ** 2
        if self.mesh is not None and self.is_sharded:
            dist.all_reduce(squares[1], group=self.mesh.get_group(DATA_AXIS))
            squares = squares.sum(0)
            dist.all_reduce(squares[1:], group=self.mesh.get_group(TENSOR_AXIS))
        norm = squares.sum().sqrt()
        if max_norm > 0:
            share = (max_norm / (norm + 1e-6)).clamp(max=1.0)
            for gradients in found.values():
                torch._foreach_mul_(gradients, share)
        return norm

    def leave(self, *, failed: bool = False) -> None:
        """Say goodbye. With `failed`, the others are told and not waited for: they may never come."""
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
    """Whether a tensor is one of torch's distributed ones, of which a process may hold a part."""
    return hasattr(tensor, "placements")


def local_tensor(tensor: Tensor) -> Tensor:
    """The part of a tensor that is here, in its own memory."""
    return tensor.to_local() if is_dtensor(tensor) else tensor


def sharded_axes(tensor: Tensor) -> tuple[bool, bool]:
    """Whether a tensor is cut along `data`, and along `tensor`."""
    if not is_dtensor(tensor):
        return False, False
    assert not any(placement.is_partial() for placement in tensor.placements), "a sum that was never made"
    names = tensor.device_mesh.mesh_dim_names or ()
    cut = {name for name, placement in zip(names, tensor.placements, strict=True) if hasattr(placement, "dim")}
    return DATA_AXIS in cut, TENSOR_AXIS in cut


def init_world(section: TrainSection) -> World:
    """Find the others, by the environment that torchrun (or `launch.py`) makes; without one this is a world of one."""
    rank, size, local_rank = (int(os.environ.get(n, d)) for n, d in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0)))
    device = select_device(section.device, local_rank, size)
    on_gpu = device.type == "cuda"
    if on_gpu and device.index is not None:
        torch.cuda.set_device(device)  # kernels and streams that name no device belong to this one
    if size == 1:
        if section.tensor_parallel > 1:
            raise UsageError(
                f"train.tensor_parallel = {section.tensor_parallel} needs as many processes; this run has one. "
                f"Start it with --processes {section.tensor_parallel}"
            )
        return World(device=device)
    tensor = section.tensor_parallel
    if size % tensor:
        raise UsageError(f"train.tensor_parallel = {tensor} does not divide the number of processes, {size}")
    if tensor > 1 and size > tensor and section.parallel == "ddp":
        raise UsageError(
            f"train.tensor_parallel = {tensor} with {size} processes makes {size // tensor} shares of the data, which "
            'need train.parallel = "fsdp"'
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
    """The device of this process: with several of them, each has the GPU of its own number."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"train.device = {name!r}: unknown; {DEVICE_CHOICES}") from error
    if device.type not in ("cpu", "cuda", "mps"):
        raise UsageError(f"train.device = {name!r}: nothing can be trained there; {DEVICE_CHOICES}")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UsageError(f"train.device = {name!r}: torch sees no such device on this machine")
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        raise UsageError(f"train.device = {name!r}: torch sees no GPU on this machine")
    if world_size > 1:
        device = torch.device("cuda", local_rank)
    if (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(
            f"there is no GPU {device.index} for this process: the machine has {torch.cuda.device_count()}; "
            'start fewer processes, or set train.device = "cpu"'
        )
    return device
