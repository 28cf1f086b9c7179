"""A classifier of sounds: trained from a folder, run and evaluated."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sound_files import encode, tone

import qkv
from qkv.errors import UsageError

PITCHES = {"low": 300, "middle": 900, "high": 2_500}
RECIPE = """
run = "{run}"
[data]
train = "{data}"
valid_fraction = 0.2
cache_dir = "{cache}"
max_length = 40
layout = "{layout}"
augment = {augment}
[model]
width = 16
layers = 1
heads = 2
ffn_width = 32
dropout = 0.0
[model.head]
pool = "mean"
dense = "none"
[model.audio]
mels = 16
stride = 4
[objective]
kind = "classification"
[train]
steps = {steps}
batch_tokens = 256
lr = 0.01
device = "cpu"
num_threads = 1
num_workers = {workers}
eval_every = 100
log_every = 20
"""


def write_folder(folder: Path, count: int = 12) -> Path:
    for number in range(count):
        for name, hertz in PITCHES.items():
            (folder / name).mkdir(parents=True, exist_ok=True)
            samples = tone(hertz * (1 + number % 3 / 40), 0.2 + 0.05 * (number % 4), seed=number)
            (folder / name / f"{number}.wav").write_bytes(encode(samples))
    return folder


def train(folder: Path, **choices: Any) -> qkv.Model:
    values = {"steps": 40, "augment": [], "layout": "packed", "workers": 0, **choices}
    paths = {"run": folder / "run", "data": folder / "clips", "cache": folder / "cache"}
    (folder / "recipe.toml").write_text(RECIPE.format(**paths, **values), encoding="utf-8")
    return qkv.train(folder / "recipe.toml")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, qkv.Model]:
    folder = tmp_path_factory.mktemp("classifier")
    write_folder(folder / "clips")
    train(folder)
    return folder, qkv.load(folder / "run")


def test_a_folder_trains_a_classifier(trained: tuple[Path, qkv.Model]) -> None:
    folder, model = trained
    assert model.config.head.labels == ("high", "low", "middle")
    path = folder / "clips" / "high" / "0.wav"
    for value in (str(path), path, path.read_bytes(), tone(2_500), torch.from_numpy(tone(2_500)).numpy()):
        assert model.classify(value).label == "high"
    found = model.run([str(folder / "clips" / name / "1.wav") for name in PITCHES])
    assert [one.label for one in found] == list(PITCHES)
    assert model.evaluate(str(folder / "clips")).metrics["accuracy"] > 0.9
    assert [one.label for one in model.classify([tone(300), tone(900)])] == ["low", "middle"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("missing.wav", "audio 1: the file 'missing.wav' cannot be read: No such file"),
        (b"hello", "audio 1: the file is not a sound"),
        (np.array([0.0, np.nan]), "not numbers"),
        (3.5, "must be a sound, not a number; give a path, the bytes of a file, or an array of samples"),
    ],
    ids=str,
)
def test_wrong_sounds_are_refused(value: Any, message: str, trained: tuple[Path, qkv.Model]) -> None:
    with pytest.raises(UsageError, match=message):
        trained[1].classify([value])


def test_the_commands_run_and_evaluate_it(trained: tuple[Path, qkv.Model], run_qkv: Any) -> None:
    folder = trained[0]
    done = run_qkv(["run", str(folder / "run"), str(folder / "clips" / "low" / "3.wav")])
    assert done.out.startswith("low\t")
    assert not done.err
    shown = json.loads(run_qkv(["eval", str(folder / "run"), "--json"]).out)
    assert shown["metrics"]["accuracy"] > 0.9


def test_a_damaged_sound_is_named_and_counted(tmp_path: Path) -> None:
    write_folder(tmp_path / "clips", 4)
    (tmp_path / "clips" / "low" / "bad.wav").write_bytes(b"RIFF")
    with pytest.raises(qkv.QkvError, match=r"not a sound: 1 in .*bad.wav"):
        train(tmp_path, steps=2)


def test_workers_give_the_same_weights(tmp_path: Path) -> None:
    weights = []
    for workers in (0, 2):
        folder = tmp_path / str(workers)
        write_folder(folder / "clips", 6)
        weights.append(train(folder, steps=4, layout="padded", workers=workers).network.state_dict())
    assert all(torch.equal(one, weights[1][name]) for name, one in weights[0].items())
