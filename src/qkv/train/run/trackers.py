"""Experiment trackers: TensorBoard, Weights & Biases and trackio. To install one: `pip install "qkv[tensorboard]"`.

    watchers = make_trackers(["tensorboard"], folder, recipe)

A tracker is a watcher. If it cannot start, the run fails. If it fails later (for example, because the network is down),
training continues without it, after a warning in the log.
"""

import logging
import secrets
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from qkv.errors import QkvError
from qkv.train.tables import TRACKERS
from qkv.train.watch import EvalReport, RunEnd, RunStart, Sample, StepReport, Watcher

log = logging.getLogger("qkv")

PROJECT_NAME = "qkv"
"""The name of the project, in trackers that have projects."""


def make_trackers(names: Iterable[str], folder: Path, recipe: Mapping[str, Any]) -> list[Watcher]:
    """Make the trackers with these names, for the run in `folder`. They record `recipe` as the run's config."""
    return [TRACKERS[name](folder, recipe) for name in names]


class Tracker(Watcher):
    """The base class of trackers. It names the logged numbers, and catches errors so that they do not stop a run."""

    name = ""
    package = ""

    def __init__(self, folder: Path, recipe: Mapping[str, Any]) -> None:
        self.folder, self.recipe = folder, recipe
        self.failed = False
        try:
            self.module = import_module(self.package)
        except ImportError as error:
            raise QkvError(f'{self.name} is not installed ({error}): pip install "qkv[{self.name}]"') from error

    def open_run(self, start: RunStart) -> None:
        """Open the run in the tracker."""

    def log_numbers(self, step: int, numbers: dict[str, float]) -> None:
        """Log the numbers of a step."""

    def log_text(self, step: int, what: str, text: str) -> None:
        """Log a text. The base class ignores it, because most trackers support only numbers."""

    def close_run(self) -> None:
        """Close the run in the tracker."""

    def on_start(self, start: RunStart) -> None:
        try:
            self.open_run(start)
        except Exception as error:
            raise QkvError(
                f"{self.name} could not start: {error}. To train without it, set train.trackers=[]"
            ) from error

    def on_step(self, report: StepReport) -> None:
        numbers = {"loss": report.loss, "lr": report.lr, "grad_norm": report.grad_norm, "tokens": report.tokens}
        numbers |= {"tokens_per_second": report.tokens_per_second, "epoch": report.epoch}
        self._call(self.log_numbers, report.step, {f"train/{name}": float(value) for name, value in numbers.items()})

    def on_evaluate(self, report: EvalReport) -> None:
        self._call(
            self.log_numbers, report.step, {f"valid/{name}": float(value) for name, value in report.metrics.items()}
        )
        for sample in report.samples:
            self.on_sample(report.step, sample)

    def on_sample(self, step: int, sample: Sample) -> None:
        text = f"{sample.source} → {sample.prediction}"
        if sample.expected:
            text += f" (expected {sample.expected})"
        self._call(self.log_text, step, "sample", text)

    def on_note(self, step: int, text: str) -> None:
        self._call(self.log_text, step, "note", text)

    def on_end(self, end: RunEnd) -> None:
        self._call(self.close_run)

    def _call(self, method: Callable[..., None], *arguments: Any) -> None:
        if self.failed:
            return
        try:
            method(*arguments)
        except Exception as error:
            self.failed = True
            log.warning("%s failed and is not used any more: %s", self.name, error)


class TensorBoard(Tracker):
    """Files in the run's folder, for `tensorboard --logdir RUN`."""

    name, package = "tensorboard", "torch.utils.tensorboard"

    def open_run(self, start: RunStart) -> None:
        # A resumed run drops the entries after its checkpoint.
        purge = start.step + 1 if start.step else None
        self.writer = self.module.SummaryWriter(str(self.folder / "tensorboard"), purge_step=purge, flush_secs=10)

    def log_numbers(self, step: int, numbers: dict[str, float]) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)

    def log_text(self, step: int, what: str, text: str) -> None:
        self.writer.add_text(what, text.replace("\n", "\n\n"), step)  # TensorBoard shows it as Markdown

    def on_evaluate(self, report: EvalReport) -> None:
        super().on_evaluate(report)
        self._call(self.writer.flush)

    def close_run(self) -> None:
        self.writer.close()


class WeightsAndBiases(Tracker):
    """A run at wandb.ai, or at the server in wandb's settings. A resumed run continues the same wandb run."""

    name, package = "wandb", "wandb"

    def open_run(self, start: RunStart) -> None:
        id_file = self.folder / "wandb.id"
        if not id_file.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            id_file.write_text(secrets.token_hex(8), encoding="utf-8")
        self.run = self.module.init(
            project=PROJECT_NAME,
            name=self.folder.name,
            id=id_file.read_text(encoding="utf-8").strip(),
            resume="allow",
            dir=str(self.folder),
            config=dict(self.recipe),
        )

    def log_numbers(self, step: int, numbers: dict[str, float]) -> None:
        self.run.log(numbers, step=step)

    def close_run(self) -> None:
        self.run.finish()


class Trackio(Tracker):
    """A run in trackio's local database, for `trackio show`."""

    name, package = "trackio", "trackio"

    def open_run(self, start: RunStart) -> None:
        self.module.init(project=PROJECT_NAME, name=self.folder.name, resume="allow", config=dict(self.recipe))

    def log_numbers(self, step: int, numbers: dict[str, float]) -> None:
        self.module.log(numbers, step=step)

    def close_run(self) -> None:
        self.module.finish()
