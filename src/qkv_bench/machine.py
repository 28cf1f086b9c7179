"""The machine: choose a device and a dtype by name, check that a model fits into memory, and name the machine."""

import platform
from pathlib import Path

import torch

from qkv import Config, QkvError, UsageError
from qkv.decode import WeightPrecision
from qkv.errors import suggest_name
from qkv.models.bfloat16 import ISA_VARIABLE, WITHOUT_AMX, supports_bfloat16
from qkv.models.runtime import free_memory
from qkv.models.tables.summary import summarise_model

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}
"""The supported dtypes and their sizes in bytes."""


def choose_device(name: str) -> torch.device:
    """The device of that name; "auto" is the GPU if there is one, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(
            f"--device {name}: no such device; use auto, cpu, cuda, cuda:1 (the second GPU) or mps"
        ) from error
    if device.type not in ("cpu", "cuda", "mps"):
        raise UsageError(f"--device {name}: qkv does not support this device; use auto, cpu, cuda or mps")
    if device.type == "cuda":
        num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= num_gpus:
            valid = "cuda:0" if num_gpus == 1 else f"cuda:0 to cuda:{num_gpus - 1}"
            gpus = (
                f"torch sees {num_gpus} on this machine: {valid}" if num_gpus else "torch sees no GPU on this machine"
            )
            raise UsageError(f"--device {name}: no such GPU, {gpus}; use --device cpu, which works on any machine")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UsageError(
            f"--device {name}: torch sees no Apple GPU on this machine; use --device cpu, which works on any machine"
        )
    return device


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype of that name; "auto" is bfloat16 on a CUDA GPU and float32 elsewhere."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if name not in DTYPE_BYTES:
        raise UsageError(f"--dtype {name}: not a supported dtype; {suggest_name(name, [*DTYPE_BYTES, 'auto'])}")
    if name == "bfloat16" and device.type == "cpu" and not supports_bfloat16():
        raise QkvError(
            f"--dtype bfloat16: torch crashes on this CPU; set {ISA_VARIABLE}={WITHOUT_AMX} in the environment, "
            "or use --dtype float32"
        )
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def check_memory(
    name: str, config: Config, dtype: torch.dtype, device: torch.device, *, precision: WeightPrecision | None
) -> None:
    """Raise an error if the weights do not fit into free memory, before they are allocated."""
    size = summarise_model(config).total * dtype.itemsize
    wanted, free = (size + size // dtype.itemsize if precision else size), free_memory(device)
    if free is not None and wanted > free:
        smaller = "" if dtype.itemsize == 2 else "--dtype bfloat16, or "
        dtypes = f"{str(dtype).removeprefix('torch.')}{f' and {precision}' if precision else ''}"
        raise QkvError(
            f"{name} needs {wanted / 1e9:,.1f} GB of memory in {dtypes}, but only {free / 1e9:,.1f} GB are free on "
            f"{device}; try {smaller}a smaller model"
        )


def machine_name(device: torch.device) -> str:
    """The name of the GPU or the CPU."""
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
