"""Trackers: a run's numbers in TensorBoard, Weights & Biases or trackio. Each is an extra of its name.

    watchers = trackers(["tensorboard"], folder, recipe)

They see what every watcher sees. A tracker that cannot begin is an error; one that fails on the way (a network that
goes away) is reported once and left out from there on: training is worth more than its picture.
"""

import logging
import secrets
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from qkv.errors import QkvError, UsageError, nearest
from qkv.train.watch import End, EvalReport, Sample, Start, StepReport, Watcher

log = logging.getLogger("qkv")

PROJECT = "qkv"
"""What runs are gathered under where a tracker has projects."""


def trackers(names: Iterable[str], folder: Path, recipe: Mapping[str, Any]) -> list[Watcher]:
    """The trackers of these names for the run in `folder`; `recipe` is shown beside its numbers."""
    made: list[Watcher] = []
    for name in names:
        if name not in TRACKERS:
            raise UsageError(f"train.track: there is no tracker {name!r}; {nearest(name, TRACKERS)}")
        made.append(TRACKERS[name](folder, recipe))
    return made


class Tracker(Watcher):
    """What trackers share: which numbers there are, and that a failing one does not stop a run."""

    name = ""
    package = ""

    def __init__(self, folder: Path, recipe: Mapping[str, Any]) -> None:
        self.folder, self.recipe = folder, recipe
        self.failed = False
        try:
            self.module = import_module(self.package)
        except ImportError as error:
            raise QkvError(f'{self.name} is not installed ({error}): pip install "qkv[{self.name}]"') from error

    def begin(self, start: Start) -> None:
        """Open the run."""

    def send(self, step: int, numbers: dict[str, float]) -> None:
        """Numbers of a step."""

    def tell(self, step: int, what: str, text: str) -> None:
        """Something to read. Most trackers have no place for it."""

    def finish(self) -> None:
        """Close the run."""

    def start(self, start: Start) -> None:
        try:
            self.begin(start)
        except Exception as error:
            raise QkvError(f"{self.name} could not begin: {error}; leave it out with train.track=[]") from error

    def step(self, report: StepReport) -> None:
        numbers = {"loss": report.loss, "lr": report.lr, "grad_norm": report.grad_norm, "tokens": report.tokens}
        numbers |= {"tokens_per_second": report.tokens_per_second, "epoch": report.epoch}
        self._try("send", report.step, {f"train/{name}": float(value) for name, value in numbers.items()})

    def evaluated(self, report: EvalReport) -> None:
        self._try("send", report.step, {f"valid/{name}": float(value) for name, value in report.metrics.items()})
        for sample in report.samples:
            self.sampled(report.step, sample)

    def sampled(self, step: int, sample: Sample) -> None:
        text = f"{sample.source} → {sample.written}"
        if sample.expected:
            text += f" (expected {sample.expected})"
        self._try("tell", step, "sample", text)

    def note(self, step: int, text: str) -> None:
        self._try("tell", step, "note", text)

    def end(self, end: End) -> None:
        self._try("finish")

    def _try(self, what: str, *arguments: Any) -> None:
        if self.failed:
            return
        try:
            getattr(self, what)(*arguments)
        except Exception as error:
            self.failed = True
            log.warning("%s failed and is left out from here on: %s", self.name, error)


class TensorBoard(Tracker):
    """Files below the run's folder, for `tensorboard --logdir RUN`."""

    name, package = "tensorboard", "torch.utils.tensorboard"

    def begin(self, start: Start) -> None:
        # What was written after the step that a run goes on from is taken back.
        purge = start.step + 1 if start.step else None
        self.writer = self.module.SummaryWriter(str(self.folder / "tensorboard"), purge_step=purge, flush_secs=10)

    def send(self, step: int, numbers: dict[str, float]) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)

    def tell(self, step: int, what: str, text: str) -> None:
        self.writer.add_text(what, text.replace("\n", "\n\n"), step)  # it is read as Markdown

    def evaluated(self, report: EvalReport) -> None:
        super().evaluated(report)
        self._try("_flush")

    def _flush(self) -> None:
        self.writer.flush()

    def finish(self) -> None:
        self.writer.close()


class WeightsAndBiases(Tracker):
    """A run at wandb.ai, or wherever that package is set up to send it. A continued run stays one run."""

    name, package = "wandb", "wandb"

    def begin(self, start: Start) -> None:
        kept = self.folder / "wandb.id"
        if not kept.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            kept.write_text(secrets.token_hex(8), encoding="utf-8")
        self.run = self.module.init(
            project=PROJECT,
            name=self.folder.name,
            id=kept.read_text(encoding="utf-8").strip(),
            resume="allow",
            dir=str(self.folder),
            config=dict(self.recipe),
        )

    def send(self, step: int, numbers: dict[str, float]) -> None:
        self.run.log(numbers, step=step)

    def finish(self) -> None:
        self.run.finish()


class Trackio(Tracker):
    """A run in trackio's local database, for `trackio show`."""

    name, package = "trackio", "trackio"

    def begin(self, start: Start) -> None:
        self.module.init(project=PROJECT, name=self.folder.name, resume="allow", config=dict(self.recipe))

    def send(self, step: int, numbers: dict[str, float]) -> None:
        self.module.log(numbers, step=step)

    def finish(self) -> None:
        self.module.finish()


TRACKERS: dict[str, type[Tracker]] = {kind.name: kind for kind in (TensorBoard, WeightsAndBiases, Trackio)}
