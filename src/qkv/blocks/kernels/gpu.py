"""What a GPU needs of its own."""

import os
import shutil
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.util import find_spec

import torch


@cache
def has_triton() -> bool:
    """Whether kernels that are written in Triton can run here. It builds their launchers with a C compiler."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    return torch.cuda.is_available() and find_spec("triton") is not None and bool(compiler)


def device_guard(device: torch.device) -> AbstractContextManager[object]:
    """Kernels and streams that name no device belong to this one meanwhile."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
