"""`qkv init` with sounds: the recipe that it writes trains."""

from pathlib import Path
from typing import Any

import pytest
from sound_files import encode, tone

import qkv
from qkv.train.recipe.recipe_file import read

SHORT = ["train.steps=1", "train.minutes=0", "train.eval_examples=2", "train.device=cpu", "train.num_threads=1"]


def write_data(folder: Path, kind: str) -> Path:
    rows = ["audio\ttext\tlabel\tspeaker\tstart\tend"]
    for name, hertz in (("yes", 300), ("no", 900)):
        (folder / "clips" / name).mkdir(parents=True)
        for number in range(6):
            path = folder / "clips" / name / f"{number}.wav"
            path.write_bytes(encode(tone(hertz, 0.5, seed=number)))
            rows.append(
                f"{path.relative_to(folder)}\tsay {name} now\t{name}\tspeaker {number}\t0.1\t{0.3 + number / 100}"
            )
    (folder / "clips.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder / ("clips" if kind == "folder" else "clips.tsv")


@pytest.mark.parametrize(("verb", "kind"), [("classify", "folder"), ("classify", "table"), ("transcribe", "table")])
def test_the_recipe_of_init_trains(verb: str, kind: str, tmp_path: Path, run_qkv: Any) -> None:
    data, out = write_data(tmp_path, kind), tmp_path / "recipe.toml"
    run_qkv(["init", verb, str(data), "--out", str(out)])
    recipe = read(out)
    assert recipe.model.overrides["audio"] == {"rate": 16_000, "mels": 80, "stride": 4}
    assert recipe.data.max_length == (30 if kind == "folder" else 20)
    cache = f"data.cache_dir={tmp_path / 'cache'}"
    run_qkv(["train", str(out), f"run={tmp_path / 'run'}", cache, "data.valid_fraction=0.3", "model.width=16", *SHORT])
    model = qkv.load(tmp_path / "run")
    found = getattr(model, verb)(tmp_path / "clips" / "yes" / "0.wav")
    assert found.label in ("yes", "no") if verb == "classify" else found.duration == 0.5


def test_init_without_a_file_writes_an_example(tmp_path: Path, run_qkv: Any) -> None:
    run_qkv(["init", "transcribe", "--out", str(tmp_path / "a.toml")])
    assert read(tmp_path / "a.toml").data.max_length == 190
