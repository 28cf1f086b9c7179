"""Kill a run many times while it saves, and check its folder each time.

    python tests/faults/kill_many.py 200          kill 200 times, print a table

One run, in one folder: a process saves checkpoint after checkpoint, is killed (SIGKILL) at a phase of saving or at any
moment, and another goes on from the newest checkpoint. Every fourth time two processes save together, and one of them
is killed. After each kill the folder must hold, under the names of checkpoints, only complete ones; the newest must
load bit by bit; and no step that was once complete may be lost.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from qkv.train.checkpoint.folder import SAVE_PHASES, Checkpoint, CheckpointFolder
from qkv.train.checkpoint.slices import TensorSlice

ROWS, COLUMNS, TENSORS = 64, 1024, 8  # 2 MB: enough for a kill to fall into the middle of it
KEEP = 2
FIRST_ALONE = SAVE_PHASES[SAVE_PHASES.index("manifest") :]  # phases that only the first process comes to


@dataclass(frozen=True)
class Outcome:
    """One kill and what it left."""

    where: str  # the phase, or "any moment"
    ranks: int
    step: int  # of the newest checkpoint
    left: int  # hidden folders that were half-written or half-removed
    problem: str = ""  # what was wrong; nothing, one hopes


def tensors_of(step: int, version: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(1000 * step + version)
    return {f"layer.{n}": torch.randn(ROWS, COLUMNS, generator=draw) for n in range(TENSORS)}


def pieces_of(tensors: dict[str, torch.Tensor], rank: int, ranks: int) -> dict[str, list[TensorSlice]]:
    """Each process holds its share of the rows."""
    share = ROWS // ranks
    rows = slice(rank * share, (rank + 1) * share)
    return {name: [TensorSlice(t[rows], (rank * share, 0), tuple(t.shape))] for name, t in tensors.items()}


def problem_of(checkpoint: Checkpoint | None, at_least: int) -> str:
    """What is wrong with the newest checkpoint, if anything."""
    if checkpoint is None:
        return "" if at_least == 0 else f"no checkpoint, and step {at_least} was complete"
    if checkpoint.step < at_least:
        return f"step {checkpoint.step}, and step {at_least} was complete"
    expected = tensors_of(checkpoint.step, checkpoint.state["version"])
    wrong = [name for name, tensor in expected.items() if not torch.equal(checkpoint.read_tensor(name), tensor)]
    return f"step {checkpoint.step}: {wrong} differ" if wrong else ""


def save_until_killed(folder: Path, rank: int, ranks: int, on_phase: Callable[[str], None], say: int) -> None:
    """What the victim does. Every step is saved twice, so that saving over an older one is killed as well."""
    checkpoints = CheckpointFolder(
        folder, max_to_keep=KEEP, rank=rank, world_size=ranks, on_phase=on_phase, timeout_seconds=20
    )
    newest = checkpoints.newest()
    step = newest.step + 1 if newest else 1
    while True:
        for version in (0, 1):
            checkpoints.save(
                step, pieces_of(tensors_of(step, version), rank, ranks), {"version": version}, best=step % 3 == 0
            )
            checkpoints.wait_for_save()
            os.write(say, step.to_bytes(4, "little"))
        step += 1


def forked(work: Callable[[], None]) -> int:
    """A process that does `work`, without loading torch a second time."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
    except BaseException as error:
        sys.stderr.write(f"the victim failed by itself: {error!r}\n")
    finally:
        os._exit(1)


def kill_once(folder: Path, where: str, ranks: int, complete: int, draw: random.Random) -> tuple[Outcome, int]:
    """Kill a run once; the outcome, and the newest step that is known to be complete."""
    hear, say = os.pipe()
    countdown = draw.randint(1, 3)
    victim = 0 if where in FIRST_ALONE else draw.randrange(ranks)

    def on_phase(name: str) -> None:
        nonlocal countdown
        if name == where:
            countdown -= 1
            if countdown == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def work(rank: int) -> Callable[[], None]:
        at_phase = on_phase if rank == victim else lambda name: None
        return lambda: save_until_killed(folder, rank, ranks, at_phase, say)

    CheckpointFolder(folder, max_to_keep=KEEP).recover()  # before any of several processes saves
    pids = [forked(work(rank)) for rank in range(ranks)]
    if where == "any moment":
        time.sleep(draw.uniform(0, 0.25))
        os.kill(pids[victim], signal.SIGKILL)
    _, status = os.waitpid(pids[victim], 0)
    others = [pid for pid in pids if pid != pids[victim]]
    for pid in others:  # which wait for one that is gone
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    os.close(say)
    with os.fdopen(hear, "rb") as heard:
        told = heard.read()
    complete = max([complete, *(int.from_bytes(told[i : i + 4], "little") for i in range(0, len(told) - 3, 4))])

    left = len(list(folder.glob(".step-*"))) if folder.exists() else 0
    checkpoints = CheckpointFolder(folder, max_to_keep=KEEP)
    checkpoints.recover()
    newest = checkpoints.newest()
    problem = f"passed over: {checkpoints.skipped}" if checkpoints.skipped else problem_of(newest, complete)
    if not problem and list(folder.glob(".step-*")):
        problem = "something half-made is still there"
    if not problem and os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
        problem = "it ended before it was killed"
    return Outcome(where, ranks, newest.step if newest else 0, left, problem), complete


def kill_many(kills: int, seed: int = 0) -> list[Outcome]:
    """Kill a run `kills` times: at each phase in turn, and every other time at a random moment."""
    draw = random.Random(seed)
    outcomes, complete = [], 0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(kills):
            where = "any moment" if number % 2 else SAVE_PHASES[number // 2 % len(SAVE_PHASES)]
            ranks = 2 if number % 8 >= 6 else 1
            outcome, complete = kill_once(Path(folder) / "checkpoints", where, ranks, complete, draw)
            outcomes.append(outcome)
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kills", type=int, nargs="?", default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one line for each kill instead of the table")
    options = parser.parse_args()
    torch.set_num_threads(1)
    began = time.monotonic()
    outcomes = kill_many(options.kills, options.seed)
    if options.json:
        print(json.dumps([asdict(outcome) for outcome in outcomes]))
        return 0
    print(f"{'killed at':12} processes  kills  left half-made  wrong")
    counts = Counter((outcome.where, outcome.ranks) for outcome in outcomes)
    for where, ranks in sorted(counts, key=lambda key: ([*SAVE_PHASES, "any moment"].index(key[0]), key[1])):
        these = [o for o in outcomes if (o.where, o.ranks) == (where, ranks)]
        left, wrong = sum(bool(o.left) for o in these), sum(bool(o.problem) for o in these)
        print(f"{where:12} {ranks:9}  {len(these):5}  {left:14}  {wrong:5}")
    problems = [outcome for outcome in outcomes if outcome.problem]
    for outcome in problems:
        print(outcome)
    print(
        f"{len(outcomes)} kills in {time.monotonic() - began:.0f} s, {outcomes[-1].step} steps saved, "
        f"{len(problems)} with a problem"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
