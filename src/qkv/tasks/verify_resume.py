"""Check on the user's machine, with the user's recipe, that killing and resuming a run does not change its result.

The recipe is trained for a few steps twice, in separate processes: once without interruption, and once killed with
SIGKILL between two checkpoints and resumed. Weights, optimizer state and log must be bit-for-bit identical.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from qkv.errors import QkvError, UsageError
from qkv.plugins import child_environment, import_inherited
from qkv.tasks.train import open_recipe, train
from qkv.train.checkpoint.reader import Checkpoint
from qkv.train.recipe import recipe_file
from qkv.train.recipe.schema import BUDGETS, Recipe
from qkv.train.run.folder import RunFolder
from qkv.train.watch import StepReport, Watcher

TIMEOUT_SECONDS = 1800.0  # maximum time of one run
MIN_STEPS = 4  # enough to save a checkpoint, continue, be killed, and resume
IGNORED_LOG_KEYS = ("seconds", "kind", "tokens_per_second")


@dataclass(frozen=True)
class ResumeReport:
    """The result of the check."""

    identical: bool
    steps: int
    killed_after: int  # the last step of the second run before it was killed, which is after its newest checkpoint
    num_tensors: int
    num_log_lines: int
    difference: str  # a description of the first difference; empty if there is none


def verify_resume(
    recipe: str,
    overrides: Sequence[str],
    folder: Path,
    *,
    steps: int = 12,
    progress: Callable[[str], None] | None = None,
) -> ResumeReport:
    """Train, kill, resume, and compare. The two runs stay in `folder`, as `whole` and `killed`."""
    if steps < MIN_STEPS:
        raise UsageError(f"steps = {steps} is too few: save, kill and resume need at least {MIN_STEPS}; raise it")
    report_stage = progress or (lambda text: None)
    save = max(1, steps // 3)
    file, whole, killed = folder / "recipe.toml", folder / "whole", folder / "killed"
    recipe_file.import_plugins_of(recipe, overrides)
    recipe_file.write(make_short_recipe(recipe, overrides, steps, save), file)
    report_stage(f"training {steps} steps")
    wait_for_process(start_process("qkv", "train", file, f"run={whole}"))
    chosen = newest_checkpoint(whole).state["progress"]["precision"]  # measured; the second run must not measure again
    recipe_file.write(recipe_file.read(str(file), [f"train.precision={chosen}"]), file)
    report_stage(f"training again, killed after step {save + 1}")
    wait_for_process(start_process(__name__, file, killed, save), expect_kill=True)
    step = RunFolder(killed).log_records()[-1]["step"]
    report_stage("resuming")
    wait_for_process(start_process("qkv", "train", killed))
    report_stage("comparing")
    tensors, difference = compare_checkpoints(newest_checkpoint(whole), newest_checkpoint(killed))
    lines, log_difference = compare_logs(whole, killed)
    difference = log_difference or difference  # the log names the first step that differs, so it is preferred
    return ResumeReport(not difference, steps, step, tensors, lines, difference)


def make_short_recipe(name: str, overrides: Sequence[str], steps: int, save_every: int) -> Recipe:
    """The recipe with a limit of a few steps; model, data and precision stay the same."""
    few = [*(f"train.{name}=0" for name in BUDGETS), f"train.steps={steps}", "train.patience=0", "train.trackers=[]"]
    often = [f"train.save_every={save_every}", "train.log_every=1", f"train.eval_every={steps}"]
    often.append("train.eval_examples=8")
    return recipe_file.read(name, [*overrides, *few, *often])


class KillAfterCheckpoint(Watcher):
    """Kills its own process with SIGKILL at the step after a checkpoint."""

    def __init__(self, run: Path, save_step: int) -> None:
        self.checkpoints, self.save_step = RunFolder(run).checkpoints, save_step

    def on_step(self, report: StepReport) -> None:
        """Wait for the checkpoint, then kill this process."""
        if report.step > self.save_step:
            while self.save_step not in self.checkpoints.steps():  # the checkpoint is written in the background
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)


def start_process(module: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a run in another process."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    environment = child_environment()
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)


def wait_for_process(process: subprocess.Popen[str], *, expect_kill: bool = False) -> None:
    """Wait until a run ends; if it does not end as expected, raise an error with its last output."""
    try:
        _, output = process.communicate(timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        _, output = process.communicate()
        raise QkvError(
            f"a run took longer than {TIMEOUT_SECONDS:.0f} seconds and was stopped; try fewer --steps, or a smaller "
            f"model. Its last output:\n{output.strip()[-2000:]}"
        ) from None
    if process.returncode != (-signal.SIGKILL if expect_kill else 0):
        raise QkvError(
            f"a run failed with exit code {process.returncode}; correct what its last output says, and try again:\n"
            f"{output.strip()[-2000:]}"
        )


def newest_checkpoint(run: Path) -> Checkpoint:
    """The last checkpoint of a run."""
    found = RunFolder(run).checkpoints.newest()
    if found is None:
        raise QkvError(
            f"{run}: the run ended without a checkpoint, which should not happen; please report this with "
            f"{RunFolder(run).path / 'metrics.jsonl'}"
        )
    return found


def compare_checkpoints(one: Checkpoint, other: Checkpoint) -> tuple[int, str]:
    """The number of tensors in two checkpoints, and a description of the first difference between them."""
    if one.step != other.step:
        return 0, f"one run ended at step {one.step}, the other at {other.step}"
    names = sorted({*one.tensor_names(), *other.tensor_names()})
    for name in names:
        if name not in one.tensor_names() or name not in other.tensor_names():
            return 0, f"{name} is in one checkpoint only"
        a, b = one.read_tensor(name), other.read_tensor(name)
        if not torch.equal(a.view(torch.uint8) if a.ndim else a, b.view(torch.uint8) if b.ndim else b):
            wrong = int((a != b).sum())
            most = float((a.double() - b.double()).abs().max())
            return len(names), f"{name}: {wrong:,} of {a.numel():,} numbers differ, by up to {most:.3g}"
    return len(names), ""


def compare_logs(one: Path, other: Path) -> tuple[int, str]:
    """The number of steps in two logs, and a description of the first difference between them."""
    logs = [[line for line in RunFolder(run).log_records() if line.get("kind") == "step"] for run in (one, other)]
    for a, b in zip(*logs, strict=False):
        for name in a:
            if name not in IGNORED_LOG_KEYS and a[name] != b.get(name):
                one_has, other_has = json.dumps(a[name]), json.dumps(b.get(name))
                return len(logs[0]), f"at step {a.get('step')} of the log, {name} is {one_has} and {other_has}"
    if len(logs[0]) != len(logs[1]):
        return len(logs[0]), f"one log has {len(logs[0])} lines, the other {len(logs[1])}"
    return len(logs[0]), ""


if __name__ == "__main__":  # the run that kills itself
    file, run, save = sys.argv[1:]
    import_inherited()
    train(open_recipe(file, [f"run={run}"]), watch=KillAfterCheckpoint(Path(run), int(save)))
