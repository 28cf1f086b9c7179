"""What all tests share."""

import os
import shutil
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings

# Some virtual machines advertise AMX and then stop the process at its first instruction; tests in bfloat16 do not
# need it. It must be said before torch is loaded.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# Tests are tiny and run side by side: threads of their own would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Tests start hundreds of processes. Without bytecode on the disk, each of them would compile all of qkv again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell makes its background jobs deaf to Ctrl-C, and they their children. Tests that press it need it heard.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Kernels written in Triton are interpreted where there is no GPU. It must be said before Triton is loaded.
if shutil.which("nvidia-smi") is None:
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Other work on the machine must not fail a test, so properties have no deadline. Every run tries the same examples:
# a failure that a new seed finds belongs in a longer search, `pytest --hypothesis-profile=search`.
settings.register_profile("search", deadline=None, max_examples=1000)
settings.register_profile("same examples", deadline=None, derandomize=True)
settings.load_profile("same examples")


@pytest.fixture
def run_qkv(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run a command and return its output, as `out` and `err`. It must exit with `code`, and without a traceback."""
    from qkv.cli import run_command

    def run(arguments: list[str], code: int = 0) -> Any:
        exit_code, captured = run_command(arguments), capsys.readouterr()
        assert exit_code == code, captured.err
        assert "Traceback" not in captured.err
        return captured

    return run
