"""Check whether Triton can run, and select the GPU that it runs on."""

import os
import shutil
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.util import find_spec

import torch


@cache
def has_triton() -> bool:
    """Whether Triton kernels can run here: they need a GPU, the triton package and a C compiler."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    return torch.cuda.is_available() and find_spec("triton") is not None and bool(compiler)


def device_guard(device: torch.device) -> AbstractContextManager[object]:
    """A context in which `device` is the current GPU, where Triton kernels and streams run by default."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
