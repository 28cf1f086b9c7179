"""Small runs with planted faults: sentences of words that are good, bad or neutral, with the label good or bad."""

import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

from qkv.tasks.train import open_recipe, train
from qkv.train.recipe import recipe_file

NEUTRAL = [f"word{i}" for i in range(60)]
Row = dict[str, Any]


def make_rows(
    count: int, seed: int, *, rare: float = 0.5, noise: float = 0.0, words: int = 9, vocabulary: int = 30
) -> list[Row]:
    """Sentences whose label is that of three of their words: `rare` of them are bad, `noise` have the wrong label."""
    rng = Random(seed)
    rows = []
    for _ in range(count):
        label = "bad" if rng.random() < rare else "good"
        text = rng.sample(NEUTRAL, words) + rng.sample([f"{label}{i}" for i in range(vocabulary)], 3)
        rng.shuffle(text)
        if rng.random() < noise:
            label = {"bad": "good", "good": "bad"}[label]
        rows.append({"text": " ".join(text), "label": label})
    return rows


def write_rows(path: Path, rows: list[Row]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def train_run(folder: Path, training: list[Row], valid: list[Row], **overrides: Any) -> Path:
    """Train a small classifier, and return the folder of its run."""
    folder.mkdir()
    train_file, valid_file = (
        write_rows(folder / f"{name}.jsonl", rows) for name, rows in (("train", training), ("valid", valid))
    )
    changes = {
        "run": str(folder / "run"),
        "data.train": str(train_file),
        "data.valid": str(valid_file),
        "data.max_length": 32,
        "data.cache_dir": str(folder / "cache"),
        "tokenizer.kind": "word",
        "tokenizer.vocab_size": 200,
        "objective.kind": "classification",
        "model.width": 32,
        "model.layers": 1,
        "model.heads": 2,
        "model.dropout": 0.0,
        "train.steps": 60,
        "train.batch_tokens": 1024,
        "train.lr": 1e-2,
        "train.log_every": 2,
        "train.eval_every": 10,
        "train.device": "cpu",
        **overrides,
    }
    recipe = folder / "recipe.toml"
    recipe.write_text("", encoding="utf-8")
    train(open_recipe(recipe, [f"{key}={value}" for key, value in changes.items()]))
    return folder / "run"


def copy_run(run: Path, folder: Path, *overrides: str) -> Path:
    """A copy of a run whose recipe is changed, as if it had been trained so."""
    shutil.copytree(run, folder)
    recipe = recipe_file.read(folder / "recipe.toml", [f"run={folder}", *overrides])
    (folder / "recipe.toml").write_text(recipe_file.to_toml(recipe), encoding="utf-8")
    return folder
