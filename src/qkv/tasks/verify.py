"""Proof that a run survives being killed, on the user's own recipe and machine.

The recipe is trained for a few steps twice, in processes of their own: once straight through, once killed with
SIGKILL between two checkpoints and continued. Weights, the optimizer's state and the log must be the same, bit for
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

from qkv.errors import QkvError, UsageError
from qkv.tasks.training import open_recipe, train
from qkv.train import recipe_file
from qkv.train.checkpoint_read import Checkpoint
from qkv.train.recipe import Recipe
from qkv.train.run_folder import RunFolder
from qkv.train.watch import StepReport, Watcher

PATIENCE = 1800.0
"""Seconds that a run of a few steps may take."""
LEAST = 4
"""Steps: to save, to go on, to die, to go on."""
NOT_COMPARED = ("seconds", "kind", "tokens_per_second")


@dataclass(frozen=True)
class Verified:
    """What came of it."""

    same: bool
    steps: int
    killed_after: int  # the step that the second run had come to; its newest checkpoint was older
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
    if steps < LEAST:
        raise UsageError(f"steps = {steps}: at least {LEAST} are needed to save, die and go on")
    tell = progress or (lambda text: None)
    save = max(1, steps // 3)
    file, whole, killed = folder / "recipe.toml", folder / "whole", folder / "killed"
    recipe_file.write(shortened(recipe, overrides, steps, save), file)
    tell(f"training {steps} steps")
    finish(start("qkv", "train", file, f"run={whole}"))
    tell(f"training again, killed after step {save + 1}")
    finish(start(__name__, file, killed, save), killed=True)
    step = RunFolder(killed).records()[-1]["step"]
    tell("going on")
    finish(start("qkv", "train", killed))
    tell("comparing")
    tensors, difference = compare(last(whole), last(killed))
    lines, told = compare_logs(whole, killed)
    difference = told or difference  # the log knows when it began
    return Verified(not difference, steps, step, tensors, lines, difference)


def shortened(name: str, overrides: Sequence[str], steps: int, save: int) -> Recipe:
    """A recipe for a few steps: the same model, data and arithmetic."""
    few = [f"train.steps={steps}", "train.minutes=0", "train.epochs=0", "train.patience=0", "train.track=[]"]
    often = [f"train.save_every={save}", "train.log_every=1", f"train.eval_every={steps}", "train.eval_examples=8"]
    return recipe_file.read(name, [*overrides, *few, *often])


class Killer(Watcher):
    """Kills its own process, without a word, at the step after a checkpoint."""

    def __init__(self, run: Path, save: int) -> None:
        self.checkpoints, self.save = RunFolder(run).checkpoints, save

    def step(self, report: StepReport) -> None:
        if report.step > self.save:
            while self.save not in self.checkpoints.steps():  # it is being written
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)


def start(module: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a run in a process of its own."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str], *, killed: bool = False) -> None:
    """Wait for a run; raise what it said where it did not end as it should."""
    try:
        _, said = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise QkvError(f"a run of a few steps did not end within {PATIENCE:.0f} seconds") from None
    if process.returncode != (-signal.SIGKILL if killed else 0):
        raise QkvError(f"a run ended with exit code {process.returncode}:\n{said.strip()[-2000:]}")


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
                one_has, other_has = json.dumps(a[name]), json.dumps(b.get(name))
                return len(logs[0]), f"at step {a.get('step')} of the log, {name} is {one_has} and {other_has}"
    if len(logs[0]) != len(logs[1]):
        return len(logs[0]), f"one log has {len(logs[0])} lines, the other {len(logs[1])}"
    return len(logs[0]), ""


if __name__ == "__main__":  # the run that is to die
    file, run, save = sys.argv[1:]
    train(open_recipe(file, [f"run={run}"]), watch=Killer(Path(run), int(save)))
