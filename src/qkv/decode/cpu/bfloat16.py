"""Whether this CPU can compute in bfloat16."""

import subprocess
import sys
from functools import cache

ISA_VARIABLE = "ONEDNN_MAX_CPU_ISA"
"""The environment variable that limits the instructions of oneDNN; read when torch first needs it."""
WITHOUT_AMX = "AVX512_CORE_BF16"
_PROBE = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); assert float((x @ x)[0, 0]) == 64.0"


@cache
def supports_bfloat16() -> bool:
    """Try a product in another process: some virtual machines advertise AMX and kill processes that use it.

    Where it fails, set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 before starting Python, or stay in float32.
    """
    try:
        return subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, timeout=120).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
