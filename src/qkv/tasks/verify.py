"""Proof that a run survives being killed, on the user's own recipe and machine.

The recipe is trained for a few steps twice, in processes of their own: once straight through, once killed with
SIGKILL after its first checkpoint and continued. Weights, the optimizer's state and the log must be the same, bit for
bit.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from qkv.errors import QkvError
from qkv.train.checkpoint_read import Checkpoint
from qkv.train.run_folder import RunFolder

PATIENCE = 1800.0
"""Seconds that a run of a few steps may take."""
NOT_COMPARED = ("seconds", "kind", "tokens_per_second")


@dataclass(frozen=True)
class Verified:
    """What came of it."""

    same: bool
    steps: int
    killed_after: int  # the step of the checkpoint that the second run was seen to have written
    tensors: int
    lines: int  # of the log
    difference: str  # the first one, in words

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def verify_resume(
    recipe: str,
    overrides: Sequence[str],
    folder: Path,
    *,
    steps: int = 12,
    progress: Callable[[str], None] | None = None,
) -> Verified:
    """Train, kill, continue, compare. The two runs are left in `folder`, as `whole` and `killed`."""
    if steps < 4:
        raise QkvError(f"steps = {steps}: at least 4 are needed to save, die and go on")
    tell = progress or (lambda text: None)
    save = max(1, steps // 3)
    short = [
        f"train.steps={steps}",
        "train.minutes=0",
        "train.epochs=0",
        f"train.save_every={save}",
        "train.log_every=1",
    ]
    short += [f"train.eval_every={steps}", "train.eval_examples=8", "train.patience=0"]
    whole, killed = folder / "whole", folder / "killed"
    tell(f"training {steps} steps")
    finish(start([recipe, *overrides, *short, f"run={whole}"]))
    tell(f"training again, to be killed after step {save}")
    step = kill_after(start([recipe, *overrides, *short, f"run={killed}"]), killed, save)
    tell("going on")
    finish(start([str(killed)]))
    tell("comparing")
    tensors, difference = compare(last(whole), last(killed))
    lines, told = compare_logs(whole, killed)
    difference = difference or told
    return Verified(not difference, steps, step, tensors, lines, difference)


def start(arguments: Sequence[str]) -> subprocess.Popen[str]:
    """Start a run in a process of its own."""
    command = [sys.executable, "-m", "qkv", "train", *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> None:
    """Wait for a run; raise what it said where it failed."""
    try:
        _, said = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise QkvError(f"a run of a few steps did not end within {PATIENCE:.0f} seconds") from None
    if process.returncode:
        raise QkvError(f"a run ended with exit code {process.returncode}:\n{said.strip()[-2000:]}")


def kill_after(process: subprocess.Popen[str], run: Path, step: int) -> int:
    """Kill a run as soon as it has the checkpoint of a step."""
    checkpoints = RunFolder(run).checkpoints
    began = time.monotonic()
    while step not in checkpoints.steps():
        if process.poll() is not None:
            finish(process)
            raise QkvError("the run ended before it could be killed; use more steps")
        if time.monotonic() - began > PATIENCE:
            process.kill()
            raise QkvError(f"a run of a few steps did not save within {PATIENCE:.0f} seconds")
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    return max(checkpoints.steps())


def last(run: Path) -> Checkpoint:
    found = RunFolder(run).checkpoints.newest()
    if found is None:
        raise QkvError(f"{run}: no checkpoint was written")
    return found


def compare(one: Checkpoint, other: Checkpoint) -> tuple[int, str]:
    """How many tensors two checkpoints have in common, and the first difference between them in words."""
    if one.step != other.step:
        return 0, f"one run ended at step {one.step}, the other at {other.step}"
    names = sorted({*one.names(), *other.names()})
    for name in names:
        if name not in one.names() or name not in other.names():
            return 0, f"{name} is in one checkpoint only"
        a, b = one.whole(name), other.whole(name)
        if not torch.equal(a.view(torch.uint8) if a.ndim else a, b.view(torch.uint8) if b.ndim else b):
            wrong = int((a != b).sum())
            most = float((a.double() - b.double()).abs().max())
            return len(names), f"{name}: {wrong:,} of {a.numel():,} numbers differ, by up to {most:.3g}"
    return len(names), ""


def compare_logs(one: Path, other: Path) -> tuple[int, str]:
    """How many steps two logs tell of, and the first difference."""
    logs = [[line for line in RunFolder(run).records() if line.get("kind") == "step"] for run in (one, other)]
    for a, b in zip(*logs, strict=False):
        for name in a:
            if name not in NOT_COMPARED and a[name] != b.get(name):
                return len(
                    logs[0]
                ), f"log, step {a.get('step')}: {name} is {json.dumps(a[name])} and {json.dumps(b.get(name))}"
    if len(logs[0]) != len(logs[1]):
        return len(logs[0]), f"one log has {len(logs[0])} lines, the other {len(logs[1])}"
    return len(logs[0]), ""
