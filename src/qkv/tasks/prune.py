"""Delete the checkpoints of finished runs. Their models stay, but these runs can no longer be continued."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from qkv.files import report_write_errors
from qkv.train.run.folder import RunFolder


@dataclass(frozen=True)
class PrunableRun:
    """A finished run, and the size of its checkpoints."""

    run: str
    bytes: int


def find_prunable(runs: Path = Path("runs")) -> list[PrunableRun]:
    """The finished runs in a folder that have checkpoints, without runs that were continued since."""
    folders = sorted(path for path in runs.iterdir() if path.is_dir()) if runs.is_dir() else []
    found = [PrunableRun(str(folder), checkpoint_bytes(folder)) for folder in folders if is_finished(RunFolder(folder))]
    return [one for one in found if one.bytes]


def is_finished(run: RunFolder) -> bool:
    """Whether a run has a model, and no checkpoint that is newer."""
    if not run.is_run or not run.has_model:
        return False
    ends = [one for one in run.log_records() if one.get("kind") == "end" and one.get("reason") != "signal"]
    return bool(ends) and max(run.checkpoints.steps(), default=0) <= int(ends[-1]["step"])


def checkpoint_bytes(folder: Path) -> int:
    """The size of the checkpoints of a run."""
    return sum(path.stat().st_size for path in (folder / "checkpoints").rglob("*") if path.is_file())


def prune(run: str) -> None:
    """Delete the checkpoints of a run. If it is being trained, an error says so."""
    folder = RunFolder(run)
    with folder.lock(), report_write_errors(folder.checkpoints.folder):
        shutil.rmtree(folder.checkpoints.folder)
