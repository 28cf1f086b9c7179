"""What an experiment runs with: its settings, a seed, a scratch folder, and the training loop of `qkv train`.

trained = experiment.train("post-norm", {**RECIPE, "model.norm_placement": "post"})
trained.run_end.metrics["loss"]
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkv.models import Network
from qkv.progress import OnStage
from qkv.tasks.train import TrainingResult, train
from qkv.train.recipe.recipe_file import loads
from qkv.train.recipe.schema import Recipe
from qkv.train.recipe.toml import format_value
from qkv.train.run.curves import RunCurves, read_curves
from qkv.train.run.folder import RunFolder
from qkv.train.run.load import load_model
from qkv.train.watch import RunEnd, StepReport, Watcher


@dataclass(frozen=True)
class Experiment:
    """One run of a claim's experiment, with one seed."""

    settings: Any
    seed: int
    folder: Path  # a scratch folder, which is removed after the experiment
    data: Path | None = None  # the files that --data names
    progress: OnStage = lambda stage, done, total: None

    def write_lines(self, name: str, lines: Iterable[str]) -> str:
        """Write a data file into the scratch folder and return its path."""
        path = self.folder / name
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return str(path)

    def write_records(self, name: str, records: Iterable[Mapping[str, Any]]) -> str:
        """Write a JSONL file into the scratch folder and return its path."""
        return self.write_lines(name, map(json.dumps, records))

    def write_texts(self, name: str, texts: Iterable[str]) -> str:
        """Write texts as a JSONL file into the scratch folder and return its path."""
        return self.write_records(name, ({"text": text} for text in texts))

    def train(self, name: str, keys: Mapping[str, Any], watcher: Watcher | None = None) -> TrainingResult:
        """Train a recipe, given by keys with dots. `name` names the run in the scratch folder and on the display."""
        return train(self.recipe(name, keys), watch=watcher or ShowProgress(name, self.progress))

    def recipe(self, name: str, keys: Mapping[str, Any]) -> Recipe:
        """The recipe of a run. Unless `keys` change it, it runs on a CPU and evaluates at its end only, on all data."""
        defaults = {
            "run": str(self.folder / "runs" / name.replace("/", "-").replace(" ", "-")),
            "data.cache_dir": str(self.folder / "cache"),
            "train.seed": self.seed,
            "train.device": "cpu",
            "train.eval_every": 1_000_000_000,
            "train.save_every": 1_000_000_000,
            "train.max_eval_fraction": 1.0,  # no decision by the clock: a seed has one result
        }
        return loads("\n".join(f"{key} = {format_value(value)}" for key, value in {**defaults, **keys}.items()))

    def curves(self, name: str) -> RunCurves:
        """The learning curves of a run that `train` has run."""
        return read_curves(name, Path(self.recipe(name, {}).run))

    def snapshots(self, name: str) -> Iterator[tuple[int, Network]]:
        """The steps and networks of the checkpoints of a run that `train` has run with the keys of `save_steps`."""
        checkpoints = RunFolder(self.recipe(name, {}).run).checkpoints
        for step in checkpoints.steps():
            yield step, load_model(checkpoints.open_step(step).folder).network


def save_steps(every: int) -> dict[str, int]:
    """Recipe keys that save a checkpoint every few steps, and keep all of them."""
    return {"train.save_every": every, "train.keep_checkpoints": 1_000_000}


class ShowProgress(Watcher):
    """Reports the steps of a training run to a progress bar."""

    def __init__(self, name: str, progress: OnStage) -> None:
        self.name, self.progress = name, progress

    def on_step(self, report: StepReport) -> None:
        """Report the spent fraction of the budget."""
        self.progress(self.name, int(1000 * report.fraction_done), 1000)

    def on_end(self, end: RunEnd) -> None:
        """Report the end."""
        self.progress(self.name, 1000, 1000)
