"""Find out whether this CPU can compute in bfloat16."""

import subprocess
import sys
from functools import cache

ISA_VARIABLE = "ONEDNN_MAX_CPU_ISA"
"""The environment variable that limits oneDNN's instruction set. torch reads it at the first use of oneDNN."""
WITHOUT_AMX = "AVX512_CORE_BF16"
_PROBE = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); assert float((x @ x)[0, 0]) == 64.0"


@cache
def supports_bfloat16() -> bool:
    """Try a matrix product in another process.

    Some virtual machines advertise AMX, but kill a process that uses it. If the product fails, set
    ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 before starting Python, or use float32.
    """
    try:
        return subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, timeout=120).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
