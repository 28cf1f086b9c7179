"""`qkv init` with images: the recipe that it writes trains."""

from pathlib import Path
from typing import Any

import pytest
from image_files import colour_file

import qkv
from qkv.train.recipe.recipe_file import read

SHORT = ["train.steps=1", "train.minutes=0", "train.eval_examples=2", "train.device=cpu", "train.num_threads=1"]
SMALL = ["model.width=16", "model.image.size=16"]
TABLES = {
    "classify": "file\tkind\n{a}\tred\n{b}\tblue\n",
    "describe": "image\tcaption\n{a}\ta red one\n{b}\ta blue one\n",
    "ask": "image\tsecond_image\tquestion\tanswer\n{a}\t{b}\twhich is red?\tfirst\n{b}\t{a}\twhich is red?\tsecond\n",
}


def write_data(folder: Path, task: str) -> Path:
    for name, colour in (("red", (200, 0, 0)), ("blue", (0, 0, 200))):
        (folder / "pictures" / name).mkdir(parents=True)
        for number in range(6):
            (folder / "pictures" / name / f"{number}.png").write_bytes(colour_file(colour, number, 20))
    if task == "folder":
        return folder / "pictures"
    header, first, second = TABLES[task].strip().split("\n")
    names = [(f"pictures/red/{n}.png", f"pictures/blue/{n}.png") for n in range(6)]
    lines = [line.format(a=a, b=b) for a, b in names for line in (first, second)]
    (folder / f"{task}.tsv").write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return folder / f"{task}.tsv"


@pytest.mark.parametrize("task", ["folder", *TABLES])
def test_the_recipe_of_init_trains(task: str, tmp_path: Path, run_qkv: Any) -> None:
    data, out = write_data(tmp_path, task), tmp_path / "recipe.toml"
    verb = "classify" if task == "folder" else task
    run_qkv(["init", verb, str(data), "--out", str(out)])
    recipe = read(out)
    assert recipe.model.overrides["image"] == {"size": 32, "patch": 4, "stem": "conv"}
    cache = f"data.cache_dir={tmp_path / 'cache'}"
    run_qkv(["train", str(out), f"run={tmp_path / 'run'}", cache, "data.valid_fraction=0.3", *SHORT, *SMALL])
    model = qkv.load(tmp_path / "run")
    assert model.config.front_ends[0].size == 16
    picture = tmp_path / "pictures" / "red" / "0.png"
    value = (picture, "which?") if verb == "ask" else picture
    assert getattr(model, verb)([value])


@pytest.mark.parametrize("task", ["describe", "ask"])
def test_init_without_a_file_writes_an_example(task: str, tmp_path: Path, run_qkv: Any) -> None:
    run_qkv(["init", task, "--out", str(tmp_path / "a.toml")])
    assert read(tmp_path / "a.toml").data.max_source_length == {"describe": 66, "ask": 98}[task]
