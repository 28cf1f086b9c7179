"""Helpers of the networks and of the code that runs them; not needed to understand a Transformer.

An input that is longer than the model's number of positions is an error; it is never truncated silently.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from qkv.blocks import SelfCache, StackConfig, positions_in_documents
from qkv.errors import UsageError


def check_length(
    config: StackConfig,
    ids: Tensor,
    positions: Tensor | None = None,
    cache: SelfCache | None = None,
    document_ids: Tensor | None = None,
) -> None:
    """Raise if `ids` (B, T) need positions that the model does not have.

    Positions from the caller are not checked. With a cache, the number of filled slots + T is checked. Without a cache,
    a sequence longer than the table may consist of several shorter documents or have padding. If it has document ids,
    the length of its longest document is checked instead, but not under torch.compile, which cannot read tensors.
    """
    if positions is not None or not config.has_max_positions:
        return
    needed = ids.shape[1] + (cache.filled if cache is not None else 0)
    if needed <= config.max_positions:
        return
    if document_ids is not None and cache is None:
        if torch.compiler.is_compiling():
            return
        needed = int(positions_in_documents(document_ids).max()) + 1
    if needed > config.max_positions:
        raise UsageError(
            f"{needed} tokens are more than the {config.max_positions} positions that this model has; "
            "shorten the text or split it"
        )


@contextmanager
def eval_mode(network: nn.Module) -> Iterator[None]:
    """A context in which the network is in evaluation mode and computes no gradients. At its end, each module gets its
    former mode back.
    """
    training = [module for module in network.modules() if module.training]
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


class SkipTorchInit(TorchFunctionMode):
    """A context in which torch's modules do not sample weights. On the meta device, sampling would import torch's
    compiler.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


@contextmanager
def mark_uninitialised() -> Iterator[None]:
    """A context in which memory that nothing has written holds NaN, also in modules that are not of qkv."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def free_memory(device: torch.device) -> int | None:
    """The free memory of a device in bytes; None if it is unknown."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    kilobytes = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    if not kilobytes:
        return None
    return min([1024 * kilobytes[0], *_container_memory()])


def _container_memory() -> list[int]:
    """The memory that the limit of a container (a cgroup) leaves, if there is a limit."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit, used = (int((folder / f"memory.{name}").read_text(encoding="ascii")) for name in ("max", "current"))
    except (OSError, ValueError):  # no cgroup, or "max": no limit
        return []
    return [max(limit - used, 0)]
