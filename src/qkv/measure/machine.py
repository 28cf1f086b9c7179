"""The machine: device and dtype by name, free memory, name."""

import platform
from pathlib import Path

import torch

from qkv.decode.cpu.bfloat16 import ISA_VARIABLE, WITHOUT_AMX, supports_bfloat16
from qkv.errors import QkvError, UsageError, suggest_name
from qkv.models import Config
from qkv.models.tables.summary import summarise_model

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}
"""What a model may compute in, and the bytes of a number."""


def choose_device(name: str) -> torch.device:
    """A device by its name; "auto" is the GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"--device {name}: unknown; auto, cpu, cuda or mps, with a number as in cuda:1") from error
    if device.type not in ("cpu", "cuda", "mps"):
        raise UsageError(f"--device {name}: nothing runs there; auto, cpu, cuda or mps")
    if device.type == "cuda":
        there = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= there:
            told = "torch sees no GPU on this machine" if not there else f"torch sees {there} GPUs, from cuda:0 on"
            raise UsageError(f"--device {name}: {told}; --device cpu runs anywhere")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UsageError(f"--device {name}: torch sees no Apple GPU on this machine; --device cpu runs anywhere")
    return device


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """A type by its name; "auto" is bfloat16 on a GPU and float32 elsewhere."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if name not in DTYPE_BYTES:
        raise UsageError(f"--dtype {name}: {suggest_name(name, [*DTYPE_BYTES, 'auto'])}")
    if name == "bfloat16" and device.type == "cpu" and not supports_bfloat16():
        raise QkvError(
            f"--dtype bfloat16 crashes on this CPU; set {ISA_VARIABLE}={WITHOUT_AMX} in the environment, or use float32"
        )
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def check_memory(name: str, config: Config, dtype: torch.dtype, device: torch.device, *, int8: bool) -> None:
    """Refuse a model whose weights do not fit, before any of them is made."""
    size = summarise_model(config).total * dtype.itemsize
    wanted, free = (size + size // dtype.itemsize if int8 else size), free_memory(device)
    if free is not None and wanted > free:
        smaller = "" if dtype.itemsize == 2 else "--dtype bfloat16, or "
        raise QkvError(
            f"{name} takes {wanted / 1e9:,.1f} GB in {str(dtype).removeprefix('torch.')}{' and int8' if int8 else ''}, "
            f"and {free / 1e9:,.1f} GB are free on {device}; try {smaller}a smaller model"
        )


def free_memory(device: torch.device) -> int | None:
    """How many bytes may still be taken; None where the machine does not tell."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    kilobytes = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return 1024 * kilobytes[0] if kilobytes else None


def machine_name(device: torch.device) -> str:
    """What the machine calls itself."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "cpu":
        try:
            lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        except OSError:
            lines = []
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        if names:
            return names[0]
    return platform.processor() or platform.machine()
