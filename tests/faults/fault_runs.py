"""Tiny runs for the fault tests, and comparisons of their results."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from prepare_samples import sample_files, sample_recipe

from qkv.tasks.train import TrainingResult, open_recipe, train
from qkv.train.checkpoint.reader import Checkpoint
from qkv.train.recipe import recipe_file
from qkv.train.recipe.schema import Recipe
from qkv.train.run.folder import RunFolder
from qkv.train.watch import StepReport, Watcher

STEPS = 10
BOTH = {"dropout": 0.1, "width": 16, "heads": 2, "layers": 1, "ffn_width": 32}


def tiny(folder: Path, name: str = "run", kind: str = "seq2seq", **sections: dict[str, Any]) -> Recipe:
    """A recipe of ten quick steps, with everything on that a careless resume would lose."""
    if not (folder / "pairs.tsv").exists():
        sample_files(folder)
    train_keys = {
        "steps": STEPS,
        "batch_tokens": 512,
        "micro_batch_tokens": 256,
        "num_workers": 1,
        "ema_decay": 0.9,
        "log_every": 1,
        "save_every": 5,
        "eval_every": 4,
        "eval_examples": 4,
        "lr": 1e-2,
        "num_threads": 1,
        "device": "cpu",
    }
    recipe = sample_recipe(
        folder,
        kind,
        data={"max_length": 96, **sections.pop("data", {})},
        tokenizer={"kind": "char", "vocab_size": 120, **sections.pop("tokenizer", {})},
        model={"overrides": BOTH, **sections.pop("model", {})},
        train={**train_keys, **sections.pop("train", {})},
        **sections,
    )
    return replace(recipe, run=str(folder / name))


def changed(recipe: Recipe, name: str, **keys: Any) -> Recipe:
    """The same in another folder, with other keys of [train]."""
    return replace(recipe, run=str(Path(recipe.run).parent / name), train=replace(recipe.train, **keys))


def written(recipe: Recipe) -> Path:
    """The recipe as a file beside its run."""
    path = Path(recipe.run + ".toml")
    recipe_file.write(recipe, path)
    return path


class Crash(Exception):
    """An error that nothing catches."""


class CrashAfter(Watcher):
    """Ends a run in the middle of things, once a step was taken."""

    def __init__(self, step: int) -> None:
        self.at = step

    def on_step(self, report: StepReport) -> None:
        if report.step >= self.at:
            raise Crash


def go_on(run: str | Path, *changes: str, **options: Any) -> TrainingResult:
    """What `qkv train RUN` does."""
    return train(open_recipe(run, changes), **options)


def newest(run: str | Path) -> Checkpoint:
    found = RunFolder(run).checkpoints.newest()
    assert found is not None
    return found


def difference(one: Checkpoint, other: Checkpoint) -> str:
    """The first thing in which two checkpoints differ: tensors bit by bit, the place in the data, progress."""
    if one.tensor_names() != other.tensor_names():
        return f"other tensors: {set(one.tensor_names()) ^ set(other.tensor_names())}"
    for name in one.tensor_names():
        a, b = one.read_tensor(name), other.read_tensor(name)
        if a.dtype != b.dtype or not torch.equal(a, b):
            return name
    for what in ("data", "scaler", "num_micro_batches", "invariants"):
        if one.state[what] != other.state[what]:
            return what
    for what in sorted({*one.state["progress"], *other.state["progress"]} - {"seconds"}):
        if one.state["progress"].get(what) != other.state["progress"].get(what):
            return f"progress: {what}"
    return ""


def log_of(run: str | Path, *kinds: str) -> list[dict[str, Any]]:
    """Return the records of a run's log, without times."""
    return [
        {name: value for name, value in line.items() if name != "seconds"}
        for line in RunFolder(run).log_records()
        if line["kind"] in (kinds or ("step", "eval"))
    ]


def notes_of(run: str | Path) -> str:
    return "\n".join(line["text"] for line in RunFolder(run).log_records() if line["kind"] == "note")


def files_of(run: str | Path) -> dict[str, bytes]:
    """The model's own files."""
    return {name: (Path(run) / name).read_bytes() for name in ("model.safetensors", "config.json", "tokenizer.json")}


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
