"""The command line: exit codes, and one line without a traceback for each error."""

import gc
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import qkv
from qkv import cli
from qkv.cli.shared import fast_imports


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    small = qkv.StackConfig(
        vocab_size=30,
        width=16,
        layers=1,
        heads=2,
        ffn_width=32,
        position="learned",
        feedforward="gelu_tanh",
        init="scaled",
    )
    qkv.new(qkv.Config(decoder=small, head=qkv.HeadConfig(kind="lm", outputs=30, tied=True))).save(path)
    return path


@pytest.fixture(autouse=True)
def wide_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wide output, so that long paths are not wrapped."""
    monkeypatch.setenv("COLUMNS", "400")


def check_error(capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, *words: str) -> None:
    assert cli.run_command(arguments) == code
    caught = capsys.readouterr()
    assert "Traceback" not in caught.err
    assert all(word in caught.err for word in words), caught.err
    assert not caught.out


BREAKS = {
    "no config": lambda f: (f / "config.json").unlink(),
    "config is no JSON": lambda f: (f / "config.json").write_text("{"),
    "config of another kind": lambda f: (f / "config.json").write_text('{"model_type": "brt"}'),
    "weights cut off": lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:500]),
    "a pickle": lambda f: (f / "model.safetensors").write_bytes(b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00."),
    "weights gone": lambda f: (f / "model.safetensors").unlink(),
    "another family": lambda f: _change(f, family="encoder"),
    "another width": lambda f: _change(f, decoder={"width": 32}),
    "an unknown field": lambda f: _change(f, decoder={"widht": 32}),
}


def _change(folder: Path, **more: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    for name, value in more.items():
        if isinstance(value, dict):
            config[name].update(value)
        else:
            config[name] = value
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("verb", ["info", "export"])
@pytest.mark.parametrize("how", BREAKS)
def test_a_broken_folder_is_one_clear_error(
    folder: Path, tmp_path: Path, how: str, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for path in folder.iterdir():
        (broken / path.name).write_bytes(path.read_bytes())
    BREAKS[how](broken)
    arguments = [verb, str(broken)] + ([str(tmp_path / "out")] if verb == "export" else [])
    check_error(capsys, arguments, 1, str(broken))
    assert not (tmp_path / "out").exists()


def test_info_describes_an_intact_folder(folder: Path, run_qkv: Any) -> None:
    shown = json.loads(run_qkv(["info", str(folder), "--json"]).out)
    assert shown["total"] == sum(p.numel() for p in qkv.load(folder).network.parameters())


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["inf", "gpt2"], 2, ["info", "Try: qkv --help"]),
        (["info"], 2, ["MODEL"]),
        (["info", "gtp2"], 2, ["gpt2"]),
        (["info", "gpt2", "--context", "0"], 2, ["--context"]),
        (["info", "gpt2", "--jsn"], 2, ["--json", "Try: qkv info --help"]),
        (["run", "gpt2", "x"], 2, ["preset", "hub id"]),
        (["data"], 2, ["files"]),
        (["data", "nothere.tsv"], 1, ["nothere.tsv"]),
    ],
)
def test_a_wrong_call_says_what_to_do(
    arguments: list[str], code: int, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    check_error(capsys, arguments, code, *words)


@pytest.mark.parametrize("verb", ["import", "export"])
def test_a_model_is_not_written_over_itself(folder: Path, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = (folder / "config.json").read_bytes()
    check_error(capsys, [verb, str(folder), str(folder)], 2, "folder of the model itself")
    assert (folder / "config.json").read_bytes() == before


def test_export_and_import_keep_the_model(folder: Path, tmp_path: Path, run_qkv: Any) -> None:
    captured = run_qkv(["export", str(folder), str(tmp_path / "hf"), "--json"])
    assert json.loads(captured.out)["class"] == "GPT2LMHeadModel"
    assert cli.run_command(["import", str(tmp_path / "hf"), str(tmp_path / "again")]) == 0
    assert qkv.load(tmp_path / "again").config.decoder == qkv.load(folder).config.decoder


@pytest.mark.parametrize("verb", ["import", "export"])
def test_a_run_and_another_model_are_not_overwritten(
    folder: Path, tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str], run_qkv: Any
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for name in ("recipe.toml", "metrics.jsonl"):
        (run / name).touch()
    check_error(capsys, [verb, str(folder), str(run)], 2, "run has a run, which would be overwritten")
    assert sorted(path.name for path in run.iterdir()) == ["metrics.jsonl", "recipe.toml"]
    assert cli.run_command(["export", str(folder), str(tmp_path / "hf")]) == 0
    if verb == "import":
        run_qkv(["import", str(tmp_path / "hf"), str(tmp_path / "again")])
        check_error(capsys, ["import", str(tmp_path / "hf"), str(tmp_path / "again")], 2, "again has a model")


def test_weights_have_the_permissions_of_other_files(folder: Path) -> None:
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert len(set(modes.values())) == 1, modes


DATA = {
    "empty.txt": b"",
    "zeros.tsv": b"a\tb\n" + b"\x00\x01\xff\n" * 50,
    "cut.jsonl.gz": gzip.compress(b'{"text": "a"}\n' * 500)[:60],
    "short.tsv": b"a\tb\n" + b"only one\n" * 40,
}


@pytest.mark.parametrize("name", DATA)
def test_data_that_cannot_be_used_is_an_error(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / name).write_bytes(DATA[name])
    assert cli.run_command(["data", str(tmp_path / name)]) in (0, 1)
    caught = capsys.readouterr()
    assert "Traceback" not in caught.err
    assert name in caught.out + caught.err


def test_data_prints_fields_and_lengths(tmp_path: Path, run_qkv: Any) -> None:
    (tmp_path / "t.tsv").write_text("source\ttarget\nhello\thallo\nbroken\nworld\twelt\n", encoding="utf-8")
    seen = json.loads(run_qkv(["data", str(tmp_path / "t.tsv"), "--json"]).out)
    assert seen["examples"] == 2
    assert [field["name"] for field in seen["fields"]] == ["source", "target"]
    assert "t.tsv:3" in run_qkv(["data", str(tmp_path / "t.tsv")]).out


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--columns", "zz"], ["--columns", "field=value"]),
        (["--columns", "text=sorce"], ["sorce", "source", "target"]),
        (["--max-length", "1"], ["--max-length"]),
        (["--format", "tvs"], ["tsv"]),
    ],
)
def test_data_reports_wrong_options(
    more: list[str], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.tsv").write_text("source\ttarget\na\tb\n", encoding="utf-8")
    check_error(capsys, ["data", str(tmp_path / "t.tsv"), *more], 2, *words)


def test_data_accepts_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_qkv: Any) -> None:
    (tmp_path / "t.tsv").write_text("source\ttarget\na\tb\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert "t.tsv" in run_qkv(["data", "."]).out


def test_a_file_given_twice_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.tsv").write_text("source\ttarget\na\tb\n", encoding="utf-8")
    check_error(capsys, ["data", str(tmp_path / "t.tsv"), str(tmp_path / "t.tsv")], 2, "twice")


@pytest.mark.parametrize(("processes", "shuts_down"), [("1", True), ("2", False)])
def test_a_process_of_several_skips_the_shutdown_of_the_interpreter(processes: str, shuts_down: bool) -> None:
    """The exit code and the output are kept, but functions registered with atexit are not called."""
    program = (
        "import atexit; from qkv import cli; atexit.register(print, 'apart'); print('output'); cli.exit_process(3)"
    )
    environment = {**os.environ, "WORLD_SIZE": processes}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3
    assert done.stdout.split() == (["output", "apart"] if shuts_down else ["output"])


def test_commands_that_do_not_compile_do_not_load_the_compiler(tmp_path: Path) -> None:
    """Importing torch's compiler or sympy takes as long as all else between the shell and the first answer."""
    (tmp_path / "text.txt").write_text("to be or not to be\n" * 60, encoding="utf-8")
    recipe = "run = 'tiny'\n[data]\ntrain = 'text.txt'\nmax_length = 32\n[tokenizer]\nkind = 'char'\nvocab_size = 64\n"
    recipe += "[model]\npreset = 'gpt2'\nwidth = 16\nlayers = 1\nheads = 2\nffn_width = 16\nmax_positions = 32\n"
    recipe += "[objective]\nkind = 'causal_lm'\n[train]\nsteps = 2\nbatch_tokens = 64\nnum_workers = 0\n"
    (tmp_path / "tiny.toml").write_text(recipe, encoding="utf-8")
    commands = [["train", "tiny.toml"], ["run", "tiny", "to be", "--max-tokens", "3"]]
    program = f"import sys; from qkv.cli import run_command; codes = [run_command(words) for words in {commands}]; "
    program += "import gc; print(gc.isenabled(), gc.get_freeze_count() > 100_000); "
    needless = ["torch._dynamo", "sympy", "transformers", "scipy", "sacrebleu", "qkv.store.export_onnx"]
    program += f"print(codes, [name for name in ['torch', *{needless}] if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout.endswith("True True\n[0, 0] ['torch']\n"), done.stdout + done.stderr


@pytest.mark.parametrize(("command", "most"), [(["run", "en-fr", "One."], 180), (["eval", "en-fr", "t.tsv"], 218)])
def test_commands_import_few_modules(command: list[str], most: int, tmp_path: Path) -> None:
    """A command imports the modules that it needs: neither readers of old files nor, to evaluate, the training loop."""
    (tmp_path / "t.tsv").write_text("source\ttarget\nOne.\tUn.\n", encoding="utf-8")
    program = f"import sys; from qkv.cli import run_command; assert run_command({command}) == 0; "
    program += "print(len([name for name in sys.modules if name.startswith('qkv')]))"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert int(done.stdout.split()[-1]) <= most, done.stdout + done.stderr


def test_commands_that_run_no_model_do_not_load_torch(tmp_path: Path) -> None:
    """Importing torch takes longer than all that these commands do."""
    commands = [["--help"], ["init", "--help"], ["inof"], ["info", "gtp2"], ["info", "presets"], ["info", "gpt2"]]
    program = f"import sys; from qkv.cli import run_command; codes = [run_command(words) for words in {commands}]; "
    program += "print(codes, 'torch' in sys.modules); import qkv; qkv.build; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout.endswith("[0, 0, 2, 2, 0, 0] False\nTrue\n"), done.stdout + done.stderr


def test_fast_imports_exclude_no_objects_once_torch_is_imported() -> None:
    assert callable(qkv.build)  # imports torch
    frozen = gc.get_freeze_count()
    with fast_imports():
        assert gc.isenabled()
    assert gc.get_freeze_count() == frozen


@pytest.mark.parametrize("command", [["data", "a\0b"], ["init", "language", "a\0b"], ["eval", "x", "a\0b"]])
def test_a_name_that_cannot_be_a_path(command: list[str], run_qkv: Any) -> None:
    assert "contains a NUL character" in run_qkv(command, 2).err


@pytest.mark.parametrize("command", [["x" * 100_000], ["info", "bert-tiny", "--" + "x" * 100_000]])
def test_a_long_argument_is_cut(command: list[str], run_qkv: Any) -> None:
    assert len(run_qkv(command, 2).err) < 700
