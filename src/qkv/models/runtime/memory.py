"""The free memory of a device."""

from pathlib import Path

import torch


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
