"""The watchers of a run: the log of its metrics, and a group that passes events to several watchers."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from qkv.errors import shorten
from qkv.train.run.folder import RunFolder
from qkv.train.watch import EvalReport, RunEnd, RunStart, StepReport, Watcher

MAX_LOGGED_SAMPLES = 4
"""The number of predictions that the log keeps of each evaluation."""
MAX_SAMPLE_CHARACTERS = 500


def _forward_to_all(event: str) -> Callable[..., None]:
    def forward(group: "WatcherGroup", *arguments: Any) -> None:
        for watcher in group.watchers:
            getattr(watcher, event)(*arguments)

    return forward


class WatcherGroup(Watcher):
    """A watcher that passes every event to several watchers."""

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        self.watchers = watchers

    on_start = _forward_to_all("on_start")
    on_stage = _forward_to_all("on_stage")
    on_step = _forward_to_all("on_step")
    on_eval_progress = _forward_to_all("on_eval_progress")
    on_evaluate = _forward_to_all("on_evaluate")
    on_sample = _forward_to_all("on_sample")
    on_note = _forward_to_all("on_note")
    on_end = _forward_to_all("on_end")


class MetricsLog(Watcher):
    """Writes metrics.jsonl, and the recipe when the run starts."""

    def __init__(self, folder: RunFolder, recipe: str, flops_per_token: int | None = None) -> None:
        self.folder = folder
        self.recipe = recipe
        self.flops_per_token = flops_per_token  # training FLOPs; None: a part of the model does not state its FLOPs

    def on_start(self, start: RunStart) -> None:
        """Write the recipe, log the cost of the model if the run is new, and log the notes so far."""
        self.folder.write_recipe(self.recipe)
        if not start.step and not any(record["kind"] == "model" for record in self.folder.log_records()):
            costs = {"parameters": start.parameters, "flops_per_token": self.flops_per_token}
            self.folder.append_log({"kind": "model", "step": 0, **costs})
        for note in start.notes:
            self.on_note(start.step, note)

    def on_step(self, report: StepReport) -> None:
        """Log the numbers of a step."""
        kept = ("step", "loss", "lr", "grad_norm", "tokens", "seconds", "epoch")
        self.folder.append_log({"kind": "step", **{name: getattr(report, name) for name in kept}})

    def on_evaluate(self, report: EvalReport) -> None:
        """Log the metrics, and some of the samples."""
        subset = {"subset": report.subset} if report.subset else {}
        final = {"final": asdict(report.final)} if report.final is not None else {}
        values = {"step": report.step, "seconds": report.seconds, **report.metrics, **subset, **final}
        self.folder.append_log({"kind": "eval", **values})
        for sample in report.samples[:MAX_LOGGED_SAMPLES]:
            texts = {"source": sample.model_input or sample.source, "prediction": sample.prediction}
            texts["expected"] = sample.expected
            shown = {name: shorten(text, MAX_SAMPLE_CHARACTERS) for name, text in texts.items()}
            self.folder.append_log({"kind": "sample", "step": report.step, **shown})
        self.folder.sync_log()

    def on_note(self, step: int, text: str) -> None:
        """Log a note."""
        self.folder.append_log({"kind": "note", "step": step, "text": text})

    def on_end(self, end: RunEnd) -> None:
        """Log the end of a run that a signal stopped; a finished run is logged after its model is written."""
        if end.reason == "signal":
            self.log_end(end)

    def log_end(self, end: RunEnd) -> None:
        """Log why and when the run ended."""
        self.folder.append_log({"kind": "end", "step": end.step, "seconds": end.seconds, "reason": end.reason})
        self.folder.sync_log()
