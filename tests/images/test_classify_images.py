"""A classifier of images: trained from a folder, run, evaluated and served."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from image_files import Image, colour_file, io

import qkv
from qkv.errors import UsageError
from qkv.images.mixing import mix_images

COLOURS = {"red": (200, 40, 40), "green": (40, 200, 40), "blue": (40, 40, 200)}
RECIPE = """
run = "{run}"
[data]
train = "{data}"
valid_fraction = 0.2
cache_dir = "{cache}"
max_length = 16
augment = {augment}
[model]
width = 16
layers = 1
heads = 2
ffn_width = 32
dropout = 0.0
{model}
[model.image]
size = 8
patch = 4
{image}
[objective]
kind = "classification"
{objective}
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


def write_folder(folder: Path, count: int = 20) -> Path:
    for number in range(count):
        for name, colour in COLOURS.items():
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / f"{number}.png").write_bytes(colour_file(colour, seed=number, size=10))
    return folder


def train(folder: Path, **choices: Any) -> qkv.Model:
    values = {"steps": 60, "augment": [], "model": "", "image": "", "objective": "", "workers": 0, **choices}
    paths = {"run": folder / "run", "data": folder / "pictures", "cache": folder / "cache"}
    (folder / "recipe.toml").write_text(RECIPE.format(**paths, **values), encoding="utf-8")
    return qkv.train(folder / "recipe.toml")


@pytest.mark.parametrize("kind", ["mixup", "cutmix", "both"])
def test_mixed_images_have_the_weights_of_their_classes(kind: str) -> None:
    keys = np.arange(200).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    black, white = np.zeros((200, 16, 12), np.uint8), np.full((200, 16, 12), 255, np.uint8)
    mixed, weights = mix_images(white, black, (4, 4), kind, keys)
    assert np.abs(mixed.mean((1, 2)) / 255 - weights).max() < 0.003
    assert 0.4 < weights.mean() < 0.6
    is_cut = np.isin(mixed, [0, 255]).all((1, 2))
    assert {"mixup": is_cut.mean() < 0.05, "cutmix": is_cut.all(), "both": 0.3 < is_cut.mean() < 0.7}[kind]
    again, _ = mix_images(white[5:7], black[5:7], (4, 4), kind, keys[5:7])
    assert (again == mixed[5:7]).all(), "an image does not depend on the rest of the batch"


def test_training_with_mixed_images(tmp_path: Path) -> None:
    write_folder(tmp_path / "pictures")
    model = train(tmp_path, objective='mix_images = "both"', steps=80)
    assert model.evaluate(str(tmp_path / "pictures")).metrics["accuracy"] > 0.9


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, qkv.Model]:
    folder = tmp_path_factory.mktemp("classifier")
    write_folder(folder / "pictures")
    train(folder, augment='["flip", "shift"]')
    return folder, qkv.load(folder / "run")


def test_a_folder_trains_a_classifier(trained: tuple[Path, qkv.Model]) -> None:
    folder, model = trained
    assert model.config.head.labels == ("blue", "green", "red")
    assert [one.kind for one in model.config.front_ends] == ["patches"]
    assert model.config.stack.vocab_size == 2, "only [PAD] and [CLS]"
    path = folder / "pictures" / "green" / "0.png"
    for value in (str(path), path, path.read_bytes(), Image.open(io.BytesIO(path.read_bytes()))):
        assert model.classify(value).label == "green"
    found = model.run([str(folder / "pictures" / name / "1.png") for name in COLOURS])
    assert [one.label for one in found] == list(COLOURS)
    evaluation = model.evaluate(str(folder / "pictures"))
    assert evaluation.metrics["accuracy"] > 0.9
    assert evaluation.num_records == 60


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("missing.png", "image 1: the file 'missing.png' cannot be read: No such file"),
        (b"hello", "image 1: the file is not an image"),
        (3.5, "must be an image"),
    ],
)
def test_wrong_images_are_refused(value: Any, message: str, trained: tuple[Path, qkv.Model]) -> None:
    with pytest.raises(UsageError, match=message):
        trained[1].classify([value])


def test_the_commands_run_and_evaluate_it(trained: tuple[Path, qkv.Model], run_qkv: Any) -> None:
    folder = trained[0]
    path = folder / "pictures" / "blue" / "3.png"
    done = run_qkv(["run", str(folder / "run"), str(path)])
    assert done.out.startswith("blue\t")
    assert not done.err
    shown = json.loads(run_qkv(["eval", str(folder / "run"), "--json"]).out)
    assert shown["metrics"]["accuracy"] > 0.9


@pytest.mark.parametrize("choices", [{"image": 'stem = "conv"'}, {"model": '[model.head]\npool = "mean"'}])
def test_choices_of_the_model(choices: dict[str, str], tmp_path: Path) -> None:
    write_folder(tmp_path / "pictures", 4)
    model = train(tmp_path, steps=2, **choices)
    assert model.config.front_ends[0].stem == ("conv" if "image" in choices else "linear")


def test_a_damaged_picture_is_named_and_counted(tmp_path: Path) -> None:
    write_folder(tmp_path / "pictures", 4)
    (tmp_path / "pictures" / "red" / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(qkv.QkvError, match=r"not an image: 1 in .*bad.png"):
        train(tmp_path, steps=2)


def test_workers_give_the_same_weights(tmp_path: Path) -> None:
    weights = []
    for workers in (0, 2):
        folder = tmp_path / str(workers)
        write_folder(folder / "pictures", 6)
        model = train(folder, steps=4, augment='["flip", "rand", "erase"]', workers=workers)
        weights.append(model.network.state_dict())
    assert all(torch.equal(one, weights[1][name]) for name, one in weights[0].items())


def test_an_evaluation_leaves_out_pictures_that_cannot_be_decoded(
    trained: tuple[Path, qkv.Model], tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "pictures", 3)
    (folder / "red" / "bad.png").write_bytes(b"no picture")
    found = trained[1].evaluate(str(folder))
    assert found.num_records == 9
    assert "1 of 10 records left out" in " ".join(found.notes)
    assert "bad.png" in " ".join(found.notes)
