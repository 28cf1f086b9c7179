"""bfloat16 on a CPU: whether it works, whether the processor has instructions for it, and a copy of a network."""

import copy
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import torch
from torch import nn

from qkv.models.network import Network

ISA_VARIABLE = "ONEDNN_MAX_CPU_ISA"
"""The environment variable that limits oneDNN's instruction set. torch reads it at the first use of oneDNN."""
WITHOUT_AMX = "AVX512_CORE_BF16"
LIMITS_WITHOUT_BFLOAT16 = {"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX512_CORE", "AVX512_CORE_VNNI"}
"""The values of the variable with which oneDNN does not use instructions for bfloat16, although the processor may."""
FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
"""The names of instructions for bfloat16 in /proc/cpuinfo: AVX-512, AMX, and ARM's."""
_PROBE = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); raise SystemExit(float((x @ x)[0, 0]) != 64.0)"


@cache
def supports_bfloat16() -> bool:
    """Whether a matrix product in bfloat16 works, with instructions for it or without.

    Some virtual machines advertise AMX, but kill a process that uses it, so another process tries a product first. If
    it fails, set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 before starting Python, or use float32.
    """
    flags = cpu_flags()
    if ISA_VARIABLE in os.environ or (flags and "amx_bf16" not in flags):
        return True
    try:
        return subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, timeout=120).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def has_bfloat16_instructions() -> bool:
    """Whether oneDNN uses instructions for bfloat16, and they work. Other processors emulate it, which is slow."""
    if os.environ.get(ISA_VARIABLE, "").upper() in LIMITS_WITHOUT_BFLOAT16:
        return False
    return bool(cpu_flags() & FLAGS) and supports_bfloat16()


def cpu_flags() -> set[str]:
    """The names of the processor's features; empty if the system does not list them."""
    info = Path("/proc/cpuinfo")
    return set(info.read_text().split()) if info.exists() else set()


def bfloat16_copy(network: Network) -> Network:
    """A copy of a network with weights in bfloat16. The two share no tensors."""
    parameters = {id(p): nn.Parameter(p.detach().to(torch.bfloat16), requires_grad=False) for p in network.parameters()}
    return copy.deepcopy(network, parameters)
