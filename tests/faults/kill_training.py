"""Kill training runs many times at random moments, and compare the results with an undisturbed run.

    python tests/faults/kill_training.py 200          kill 200 times, print a table

A tiny recipe is trained once without disturbance. Then it is trained in a process that is killed (SIGKILL) at a random
moment: while its data is prepared, in a step, while it saves, while its model is written. Another process goes on, and
is killed as well, until one gets through. Its weights, the optimizer's state, the log and the model's files must be
those of the undisturbed run, bit for bit; then the next run begins, until there were kills enough.
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
from dataclasses import asdict, dataclass, replace
from pathlib import Path

if __name__ == "__main__":  # as pytest has it in its path
    sys.path.append(str(Path(__file__).parent.parent / "tasks"))

import torch
from fault_runs import changed, difference, files_of, go_on, log_of, newest, tiny, train

from qkv.errors import QkvError
from qkv.train.recipe.schema import Recipe
from qkv.train.run.folder import RunFolder

STEPS, SAVE = 24, 2
PLACES = ("preparing", "before the first checkpoint", "between checkpoints", "while saving", "after the last step")


@dataclass(frozen=True)
class Outcome:
    """One kill."""

    where: str
    step: int  # of the newest checkpoint that it left
    problem: str = ""


@dataclass(frozen=True)
class Finished:
    """A run that got through in the end."""

    kills: int
    difference: str  # from the undisturbed one; nothing, one hopes


def recipe_in(folder: Path) -> Recipe:
    keys = {
        "steps": STEPS,
        "save_every": SAVE,
        "eval_every": 8,
        "keep_checkpoints": 2,
        "final": "best",
        "metric": "loss",
    }
    return tiny(folder, "whole", train=keys)


def forked(recipe: Recipe, said: Path) -> int:
    """A process that trains, without loading torch a second time. Its exit code says whether it got through."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        with said.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            begun = RunFolder(recipe.run).is_run
            go_on(recipe.run) if begun else train(recipe)
        code = 0
    except BaseException as error:
        said.write_text(repr(error))
    finally:
        os._exit(code)


def place_of(run: Path) -> tuple[str, int]:
    """Where a run was when it was killed, as far as its folder tells."""
    steps = RunFolder(run).checkpoints.steps()
    if not (run / "env.json").exists():
        return PLACES[0], 0
    if any((run / "checkpoints").glob(".step-*.writing")):
        return PLACES[3], max(steps, default=0)
    if not steps:
        return PLACES[1], 0
    return (PLACES[4] if max(steps) == STEPS else PLACES[2]), max(steps)


def kill_training(kills: int, seed: int = 0) -> tuple[list[Outcome], list[Finished]]:
    """Kill so many times."""
    draw = random.Random(seed)
    outcomes: list[Outcome] = []
    finished: list[Finished] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe = recipe_in(folder)
        train(changed(recipe, "warm up"))
        began = time.monotonic()
        train(recipe)
        whole = time.monotonic() - began
        here, number = 0, 0  # kills of this run, and its number
        while len(outcomes) < kills:
            run = folder / f"killed{number}"
            own = replace(
                changed(recipe, run.name), data=replace(recipe.data, cache_dir=str(folder / f"cache{number}"))
            )
            pid = forked(own, folder / "said.txt")
            time.sleep(draw.uniform(0, draw.choice((0.2, 0.8)) * whole))  # the beginning has dangers of its own
            os.kill(pid, signal.SIGKILL)
            ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if ended == -signal.SIGKILL:
                where, step = place_of(run)
                outcomes.append(Outcome(where, step))
                here += 1
            elif ended:
                outcomes.append(Outcome("it ended by itself", 0, (folder / "said.txt").read_text()))
                number, here = number + 1, 0
            else:
                finished.append(Finished(here, told(Path(recipe.run), run)))
                number, here = number + 1, 0
        if here:
            try:
                go_on(run) if RunFolder(run).is_run else train(own)
                finished.append(Finished(here, told(Path(recipe.run), run)))
            except QkvError as error:
                finished.append(Finished(here, str(error)))
    return outcomes, finished


def told(whole: Path, run: Path) -> str:
    """In what a run differs from the undisturbed one."""
    found = difference(newest(whole), newest(run))
    if not found and log_of(whole, "step") != log_of(run, "step"):
        found = "the log"
    if not found and files_of(whole) != files_of(run):
        found = "the model's files"
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kills", type=int, nargs="?", default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one line for each kill and run instead of the table")
    options = parser.parse_args()
    torch.set_num_threads(1)
    began = time.monotonic()
    outcomes, finished = kill_training(options.kills, options.seed)
    if options.json:
        print(json.dumps({"kills": list(map(asdict, outcomes)), "finished": list(map(asdict, finished))}))
        return 0
    counts = Counter(outcome.where for outcome in outcomes)
    for where in (*PLACES, "it ended by itself"):
        print(f"{where:30} {counts[where]:5} kills")
    problems = [*(o for o in outcomes if o.problem), *(f for f in finished if f.difference)]
    for problem in problems:
        print(problem)
    kills = [run.kills for run in finished]
    print(
        f"{len(outcomes)} kills in {time.monotonic() - began:.0f} s; {len(finished)} runs got through, killed "
        f"{sum(kills) / max(len(kills), 1):.1f} times on average and {max(kills, default=0)} at most; "
        f"{len(problems)} with a problem, the others are the undisturbed run bit for bit"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
