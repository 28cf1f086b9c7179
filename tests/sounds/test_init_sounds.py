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
            path.write_bytes(encode(tone(hertz, 1.5, seed=number)))
            rows.append(
                f"{path.relative_to(folder)}\tsay {name} now\t{name}\tspeaker {number}\t0.1\t{1.1 + number / 100}"
            )
    (folder / "clips.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder / ("clips" if kind == "folder" else "clips.tsv")


@pytest.mark.parametrize(("verb", "kind"), [("classify", "folder"), ("classify", "table"), ("transcribe", "table")])
def test_the_recipe_of_init_trains(verb: str, kind: str, tmp_path: Path, run_qkv: Any) -> None:
    data, out = write_data(tmp_path, kind), tmp_path / "recipe.toml"
    run_qkv(["init", verb, str(data), "--out", str(out)])
    recipe = read(out)
    assert recipe.model.overrides["audio"] == {"rate": 16_000, "mels": 80, "stride": 4}
    assert recipe.data.max_length == (60 if kind == "folder" else 50)
    cache = f"data.cache_dir={tmp_path / 'cache'}"
    run_qkv(["train", str(out), f"run={tmp_path / 'run'}", cache, "data.valid_fraction=0.3", "model.width=16", *SHORT])
    model = qkv.load(tmp_path / "run")
    found = getattr(model, verb)(tmp_path / "clips" / "yes" / "0.wav")
    assert found.label in ("yes", "no") if verb == "classify" else found.duration == 1.5


def test_sounds_that_are_too_short_for_their_transcripts_are_an_error(tmp_path: Path, run_qkv: Any) -> None:
    data, out = write_data(tmp_path, "table"), tmp_path / "recipe.toml"
    data.write_text(data.read_text(encoding="utf-8").replace("now", "now " * 40), encoding="utf-8")
    run_qkv(["init", "transcribe", str(data), "--out", str(out)])
    settings = [f"run={tmp_path / 'run'}", f"data.cache_dir={tmp_path / 'cache'}", *SHORT]
    assert "too few frames for their transcripts" in run_qkv(["train", str(out), *settings], 1).err


def test_init_without_a_file_writes_an_example(tmp_path: Path, run_qkv: Any) -> None:
    run_qkv(["init", "transcribe", "--out", str(tmp_path / "a.toml")])
    assert read(tmp_path / "a.toml").data.max_length == 190
