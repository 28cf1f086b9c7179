"""Bundled models: found by name everywhere, a user's folder wins with a note, and `qkv models` lists them."""

import json
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

import qkv
from qkv.cli import run_command
from qkv.errors import UsageError
from qkv.store import hub
from qkv.store.hub import resolve_folder
from qkv.store.model_card import read_card
from qkv.tasks.model_list import list_models
from qkv.text import Tokenizer

ROOT = Path(__file__).parents[2]
CARD = "# upper\n\n| | |\n|---|---|\n| task | lower → upper |\n| scores | BLEU 12.3 |\n| licence | CC BY 2.0 FR |\n"


@pytest.fixture
def boxed(monkeypatch, tmp_path) -> Path:
    """A folder of bundled models with one small decoder, and a working directory without folders."""
    tokenizer = Tokenizer.train("byte", iter([]), vocab_size=260, special_tokens=["pad", "bos", "eos"], template="eos")
    stack = qkv.StackConfig(vocab_size=260, width=8, layers=1, heads=2, ffn_width=16, position="rotary")
    head = qkv.HeadConfig(kind="lm", outputs=260, tied=True)
    config = qkv.Config(encoder=stack, decoder=stack, head=head, decoder_start_token_id=1, eos_token_ids=(2,))
    folder = tmp_path / "bundled" / "upper"
    qkv.new(config, tokenizer=tokenizer).save(folder, int8=True)
    (folder / "README.md").write_text(CARD)
    monkeypatch.setattr(hub, "BUNDLED", tmp_path / "bundled")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return folder


def test_a_name_in_the_box_is_found(boxed):
    assert resolve_folder("upper") == boxed
    model = qkv.load("upper")
    assert model.notes == []
    assert model.config.family == "seq2seq"


def test_a_folder_of_the_same_name_wins_and_a_note_says_so(boxed):
    qkv.new("bert-tiny").save("upper")
    model = qkv.load("upper")
    assert model.config.family == "encoder"
    assert "your folder ./upper; to use the bundled model upper instead" in model.notes[0]


def test_a_run_of_the_same_name_is_mentioned(boxed):
    Path("runs/upper").mkdir(parents=True)
    (note,) = qkv.load("upper").notes
    assert "runs/upper" in note


def test_paths_are_never_names_of_the_box(boxed):
    with pytest.raises(UsageError, match="no such folder"):
        resolve_folder("./upper")
    assert hub.find_bundled("models/upper") is None
    assert hub.bundled_notes("models/upper") == []


@pytest.mark.parametrize("command", [["run", "uper", "x"], ["info", "uper"], ["bench", "uper"], ["doctor", "uper"]])
def test_a_misspelt_name_gets_the_nearest_one(boxed, command, run_qkv):
    assert "did you mean 'upper'?" in run_qkv(command, 2).err


def test_commands_take_the_name(boxed, run_qkv):
    assert run_command(["run", "upper", "abc", "--max-tokens", "2"]) == 0
    assert "upper" in run_qkv(["info", "upper"]).out
    Path("pairs.tsv").write_text("source\ttarget\nabc\tABC\n")
    assert json.loads(run_qkv(["eval", "upper", "pairs.tsv", "--metric", "chrf", "--json"]).out)["model"] == "upper"


def test_models_lists_the_box_and_the_runs(boxed, run_qkv):
    run = Path("runs/[b]mine")
    run.mkdir(parents=True)
    (run / "recipe.toml").write_text('[objective]\nkind = "causal_lm"\n')
    records = [{"kind": "step", "step": 70}, {"kind": "eval", "step": 50, "perplexity": 9.5, "loss": 2.25}]
    (run / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    (Path("runs/damaged")).mkdir()
    (Path("runs/damaged") / "recipe.toml").write_text("[objective\n")
    (Path("runs/damaged") / "checkpoints/step-7").mkdir(parents=True)
    (Path("runs/failed")).mkdir()  # in the preparation, before the first step
    (Path("runs/failed") / "recipe.toml").write_text('[objective]\nkind = "causal_lm"\n')
    (Path("runs/failed") / ".lock.json").write_text("{}")
    upper, mine, damaged = list_models()
    assert (upper.name, upper.task, upper.scores, upper.licence) == (
        "upper",
        "lower → upper",
        "BLEU 12.3",
        "CC BY 2.0 FR",
    )
    assert upper.bytes == (boxed / "model.safetensors").stat().st_size
    assert damaged.state == "not readable"
    assert (mine.task, mine.scores, mine.state) == ("causal_lm", "perplexity 9.5, loss 2.250", "step 70")
    shown = run_qkv(["models"]).out
    texts = ("bundled", "upper", "BLEU 12.3", "CC BY 2.0 FR", "runs/[b]mine", "step 70")
    assert all(text in shown for text in texts)
    captured = run_qkv(["models", "--json"])
    assert [one["name"] for one in json.loads(captured.out)] == ["upper", "runs/[b]mine", "runs/damaged"]


def test_an_empty_box_is_no_error(monkeypatch, tmp_path, run_qkv):
    monkeypatch.setattr(hub, "BUNDLED", tmp_path / "none")
    monkeypatch.chdir(tmp_path)
    assert "bundled: none" in run_qkv(["models"]).out


def test_a_folder_without_a_card_has_no_facts(tmp_path):
    assert read_card(tmp_path) == {}


def test_the_package_contains_every_file_of_the_box():
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["qkv"]
    package = ROOT / "src" / "qkv"
    files = [path.relative_to(package).as_posix() for path in (package / "bundled").rglob("*") if path.is_file()]
    assert all(any(fnmatch(name, pattern) for pattern in patterns) for name in files)
    assert any(fnmatch("bundled/en-fr/model.safetensors", pattern) for pattern in patterns)
