"""Recipes with images of coloured squares, for all families: they train, and resume bit for bit."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from square_files import SquareFiles, describe_colours, file_colours, make_file

from qkv.data.load.loader import Loader
from qkv.data.modalities import MODALITIES, Modality
from qkv.data.objectives.table import OBJECTIVES, ObjectiveSpec, RecordField, register_objective
from qkv.tasks.prepare.prepare import prepare
from qkv.tasks.train import train
from qkv.train.loss.training_module import TrainingModule, make_labelled_batch
from qkv.train.recipe.recipe_file import read
from qkv.train.recipe.schema import Recipe

FAMILIES = {"seq2seq": "seq2seq", "causal_lm": "decoder", "classification": "encoder"}


def register_squares() -> list[str]:
    """The modality, and an objective with images for each family; returns the names of the objectives."""
    MODALITIES.register("squares", Modality(check=lambda value: "", show=str, payload=SquareFiles()), replace=True)
    rows = []
    for name in FAMILIES:
        spec = OBJECTIVES[name]
        field = {"seq2seq": "source", "causal_lm": "image", "classification": "text"}[name]
        image = RecordField(field, ("squares",), "squares")
        others = [one for one in spec.fields if one.name in ("target", "text", "label") and one.name != field]
        rows.append(with_fields(spec, f"{name}_squares", (image, *others)))
    return [register_objective(row, replace=True).name for row in rows]


def with_fields(spec: ObjectiveSpec, name: str, fields: tuple[RecordField, ...]) -> ObjectiveSpec:
    names = {field.name for field in fields}
    groups = (tuple(name for name in group if name in names) for group in spec.alternatives)
    alternatives = tuple(filter(None, groups))
    return replace(
        spec, name=name, fields=fields, group_by="", alternatives=alternatives, reads_documents=False, aligned_fields=()
    )


@pytest.fixture(autouse=True)
def squares() -> Iterator[None]:
    names = register_squares()
    yield
    MODALITIES.unregister("squares")
    for name in names:
        OBJECTIVES.unregister(name)


def write_data(folder: Path, count: int = 60) -> Path:
    """Images with the names of their colours, and whether most of their squares have red in their colour."""
    lines = []
    for number in range(count):
        file = make_file(1 + number % 2, 2 + number % 3, seed=number)
        colours = file_colours(file)
        text, label = (
            describe_colours(file),
            "red" if sum(colour > 3 for colour in colours) > len(colours) / 2 else "no",
        )
        lines.append(json.dumps({"squares": list(file), "target": text, "text": text, "label": label}))
    path = folder / "squares.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


RECIPE = """
run = "{run}"
[data]
train = "{data}"
max_length = 64
cache_dir = "{cache}"
columns = {{ {columns} }}
[tokenizer]
kind = "{tokenizer}"
vocab_size = 300
[model]
width = 16
layers = 1
heads = 2
ffn_width = 32
dropout = 0.1
[objective]
kind = "{name}_squares"
[train]
steps = {steps}
batch_tokens = 384
lr = 0.01
device = "cpu"
num_threads = 1
num_workers = {workers}
eval_examples = 0
eval_every = 20
save_every = 20
log_every = 1
"""
COLUMNS = {
    "seq2seq": 'source = "squares", target = "target"',
    "causal_lm": 'image = "squares", text = "text"',
    "classification": 'text = "squares", label = "label"',
}


def make_recipe(folder: Path, name: str, run: str = "run", steps: int = 8, workers: int = 0) -> Path:
    data = folder / "squares.jsonl"
    if not data.exists():
        write_data(folder)
    values = {"run": folder / run, "data": data, "cache": folder / "cache", "columns": COLUMNS[name]}
    path = folder / f"{run}.toml"
    values["tokenizer"] = "byte" if name == "classification" else "char"  # images alone have no text to learn from
    path.write_text(RECIPE.format(**values, name=name, steps=steps, workers=workers), encoding="utf-8")
    return path


def weights(run: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in run.network.state_dict().items()}


@pytest.mark.parametrize("name", FAMILIES)
def test_training_learns_from_the_images(name: str, tmp_path: Path) -> None:
    trained = train(read(make_recipe(tmp_path, name, steps=120)))
    assert trained.config.family == FAMILIES[name]
    assert [front_end.kind for front_end in trained.config.front_ends] == ["squares"]
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert sum(losses[-10:]) < 0.7 * sum(losses[:10])


@pytest.mark.parametrize("name", FAMILIES)
def test_packed_equals_padded_equals_alone_in_the_loss(name: str, tmp_path: Path) -> None:
    recipe = read(make_recipe(tmp_path, name))
    MODALITIES.register("squares", Modality(lambda value: "", str, SquareFiles(mirrors=False)), replace=True)

    def total(layout: str, batch_tokens: int) -> tuple[float, int]:
        changed: Recipe = replace(recipe, data=replace(recipe.data, layout=layout))  # type: ignore[arg-type]
        prepared = prepare(replace(changed, train=replace(recipe.train, batch_tokens=batch_tokens)))
        module = TrainingModule(prepared.build_network().double(), recipe.objective).eval()
        one, losses, count = torch.ones((), dtype=torch.float64), 0.0, 0
        with torch.no_grad():
            for batch in Loader(prepared.train_data, epochs=1):
                losses += float(module(make_labelled_batch(batch, torch.device("cpu")), one, one))
                count += len(batch.example_ids)
        return losses, count

    packed, padded = total("packed", 384), total("padded", 384)
    alone = total("padded", 128)
    assert packed[1] == padded[1] == alone[1] > 40
    assert packed[0] == pytest.approx(padded[0], rel=1e-6)
    assert alone[0] == pytest.approx(padded[0], rel=1e-6)


def test_validation_images_are_not_augmented(tmp_path: Path) -> None:
    prepared = prepare(read(make_recipe(tmp_path, "seq2seq")))
    assert prepared.valid_data is not None
    found = [stream.payloads[0].format for stream in (prepared.train_data, prepared.valid_data)]
    assert [format.mirrors for format in found] == [True, False]  # type: ignore[attr-defined]


def test_what_the_description_of_a_run_shows(tmp_path: Path) -> None:
    from qkv.tasks.describe import describe

    shown = describe(read(make_recipe(tmp_path, "seq2seq"))).first_examples[0].parts
    assert set(shown) == {"source", "input", "target"}


CHILD = """
import sys
sys.path[:0] = {folders!r}
from test_train_payloads import register_squares
from qkv.tasks.train import train
from qkv.train.recipe.recipe_file import read
register_squares()
train(read({recipe!r}))
"""


@pytest.mark.parametrize("name", FAMILIES)
def test_a_killed_run_resumes_bit_for_bit(name: str, tmp_path: Path) -> None:
    whole = weights(train(read(make_recipe(tmp_path, name, "whole", steps=70))))
    recipe = make_recipe(tmp_path, name, "killed", steps=70, workers=1)
    program = CHILD.format(folders=[str(Path(__file__).parent)], recipe=str(recipe))
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    checkpoints = tmp_path / "killed" / "checkpoints"
    deadline = time.monotonic() + 120
    while not (checkpoints.is_dir() and any(checkpoints.glob("step-*"))) and time.monotonic() < deadline:
        assert child.poll() is None, "the run ended before it was killed"
        time.sleep(0.02)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert child.returncode == -signal.SIGKILL
    resumed = weights(train(read(recipe)))
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[key], resumed[key]) for key in whole)
