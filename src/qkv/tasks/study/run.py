"""Train the runs of a study: tune the variants, then one run for each variant and seed. Finished runs are kept.

    study = create(Path("runs/study"), StudyPlan(recipe="base.toml", vary={"model.feedforward": ("relu", "relu2")}))
    result = run_study(study)

A study can be killed at any moment: `run_study` continues the interrupted run, and trains the missing ones.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from qkv.errors import QkvError, UsageError, suggest_name
from qkv.plugins import child_environment
from qkv.progress import OnStage
from qkv.tasks.study.engine import run_missing
from qkv.tasks.study.match import match_variants
from qkv.tasks.study.plan import BASE, Cell, Study, is_better
from qkv.tasks.study.result import Finished, StudyResult, make_result
from qkv.tasks.train import open_recipe, train
from qkv.train.loop import StoppedBySignal
from qkv.train.progress import lower_is_better
from qkv.train.run.curves import read_curves
from qkv.train.run.folder import RunFolder
from qkv.train.watch import RunEnd, StepReport, Watcher

LOCK = ".study.lock"


def run_study(study: Study, *, jobs: int = 1, progress: OnStage | None = None) -> StudyResult:
    """Train the missing runs of a study, and return its result. With several jobs, runs are parallel processes."""
    lock = FileLock(study.folder / LOCK)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise QkvError(f"{study.folder}: another process runs this study; wait for it, or stop it") from None
    try:
        match_variants(study, progress)
        tune_variants(study, jobs, progress)
        finished = run_cells(study, study.cells(), jobs, progress)
    finally:
        lock.release()
    return make_result(study, finished)


def read_study(study: Study) -> StudyResult:
    """The result of the runs that are finished."""
    return make_result(study, {cell.name: found for cell in study.cells() if (found := read_cell(study, cell))})


def tune_variants(study: Study, jobs: int, progress: OnStage | None) -> None:
    """Choose the best of the tuned values for each variant, on a seed that does not count."""
    tried = study.tuning_cells()
    cells = [cell for variant, pairs in tried.items() if not study.variants[variant].tuned for _, cell in pairs]
    finished = run_cells(study, cells, jobs, progress)
    is_lower = lower_is_better(study.plan.metric)
    for name, pairs in tried.items():
        if (variant := study.variants[name]).tuned:
            continue
        best: tuple[str, ...] = ()
        best_value = nan
        for values, cell in pairs:
            value = finished[cell.name].metrics.get(study.plan.metric, nan)
            if is_better(is_lower, value, best_value):
                best, best_value = values, value
        if not best:
            raise QkvError(f"{name}: no run of --tune gave a finite {study.plan.metric}; try other values")
        study.update(replace(variant, tuned=best))


def run_cells(study: Study, cells: list[Cell], jobs: int, progress: OnStage | None) -> dict[str, Finished]:
    """Train the runs that are not finished, and return the measurements of all of them."""
    by_name = {cell.name: cell for cell in cells}
    done = {name: found for name, cell in by_name.items() if (found := read_cell(study, cell))}
    train_one: Callable[[Study, Cell, OnStage | None], None] = train_here if jobs == 1 else train_in_process

    def run(name: str) -> Finished:
        if progress is not None:
            progress(f"{name} ({len(done) + 1} of {len(by_name)})", 0, 1000)
        cell = by_name[name]
        try:
            train_one(study, cell, progress)
        except QkvError as error:
            if isinstance(error, UsageError | StoppedBySignal) or not RunFolder(study.folder / name).has_progress:
                raise
            write_failure(study, cell, str(error))
        found = read_cell(study, cell)
        if found is None:
            raise QkvError(f"{study.folder / name}: the run ended without a model; see its metrics.jsonl")
        return found

    run_missing(by_name, done, run, lambda name: None, jobs=jobs)
    return {name: done[name] for name in by_name}


def train_here(study: Study, cell: Cell, progress: OnStage | None) -> None:
    """Train a run in this process, or continue it."""
    watcher = None if progress is None else ShowFraction(cell.name, progress)
    train(open_recipe(study.folder / BASE, cell.overrides), watch=watcher)


def train_in_process(study: Study, cell: Cell, progress: OnStage | None) -> None:
    """Train a run in a process of its own, or continue it. Its output is in a file beside the run."""
    command = [sys.executable, "-m", "qkv", "train", str(study.folder / BASE), *cell.overrides, "--json"]
    log = study.folder / f"{cell.name}.log"
    environment = {**child_environment(), "OMP_NUM_THREADS": str(study.plan.threads)}
    with log.open("w", encoding="utf-8") as file:
        done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, env=environment, check=False)
    if done.returncode > 128 or done.returncode < 0:
        raise StoppedBySignal(
            abs(done.returncode) % 128, f"{cell.name} was stopped; continue with qkv study {study.folder}"
        )
    if done.returncode:
        last = log.read_text(encoding="utf-8").strip().splitlines()[-1:]
        raise QkvError("".join(last).removeprefix("qkv: ") or f"exit code {done.returncode}; see {log}")
    log.unlink()


def read_cell(study: Study, cell: Cell) -> Finished | None:
    """The measurements of a run; None if it is not finished."""
    folder = RunFolder(study.folder / cell.name)
    if not folder.is_run:
        return None
    failure = folder.path / "failure.txt"
    records = folder.log_records()
    steps = [record for record in records if record.get("kind") == "step"]
    last: dict[str, Any] = steps[-1] if steps else {}
    size = (int(last.get("step", 0)), int(last.get("tokens", 0)), float(last.get("seconds", 0.0)))
    if failure.exists():
        return Finished({}, *size, failure=failure.read_text(encoding="utf-8").strip())
    ended = records and records[-1].get("kind") == "end" and records[-1].get("reason") != "signal"
    if not ended or not folder.has_model:
        return None
    curves = read_curves(cell.name, folder.path)
    metrics = {name: (curves.kept.get(name) or points)[-1][1] for name, points in curves.validation.items()}
    if study.plan.metric not in metrics:
        raise UsageError(
            f"the runs of this study have no metric {study.plan.metric!r}; {suggest_name(study.plan.metric, metrics)}"
        )
    return Finished(metrics, *size)


def write_failure(study: Study, cell: Cell, why: str) -> None:
    """Note why a run failed, so that it is not tried again: delete the file to try again."""
    (study.folder / cell.name / "failure.txt").write_text(f"{why}\n", encoding="utf-8")


class ShowFraction(Watcher):
    """Reports the spent fraction of a run's budget to a progress bar."""

    def __init__(self, name: str, progress: OnStage) -> None:
        self.name, self.progress = name, progress

    def on_step(self, report: StepReport) -> None:
        """Report the spent fraction of the budget."""
        self.progress(self.name, int(1000 * report.fraction_done), 1000)

    def on_end(self, end: RunEnd) -> None:
        """Report the end."""
        self.progress(self.name, 1000, 1000)


def default_threads(jobs: int) -> int:
    """The CPU threads of each run if `jobs` runs are parallel."""
    return max(1, len(os.sched_getaffinity(0)) // jobs)


def write_result(result: StudyResult, folder: Path) -> Path:
    """Write results.json, and return its path."""
    path = folder / "results.json"
    path.write_text(
        json.dumps(result.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8"
    )
    return path
