"""Folders and files without permission, and a disk that is full: an error that names the place, never a traceback.

Root may read and write everything, so as root the calls run in a process that has given up this right.
"""

import ctypes
import os
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_runs import tiny, written

import qkv
from qkv.data.readers import read
from qkv.errors import QkvError
from qkv.tasks.train import open_recipe, train
from qkv.text import Tokenizer
from qkv.train.recipe import recipe_file

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="permissions of POSIX")

CAPABILITIES_VERSION = 0x20080522
DAC_OVERRIDE, DAC_READ_SEARCH = 1, 2


def give_up_rights() -> None:
    """Let permissions apply to root, too: give up the capabilities that override them."""
    words = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice
    header = (ctypes.c_uint32 * 2)(CAPABILITIES_VERSION, 0)
    libc = ctypes.CDLL(None)
    assert libc.capget(header, words) == 0
    for index in range(3):
        words[index] &= ~(1 << DAC_OVERRIDE | 1 << DAC_READ_SEARCH)
    assert libc.capset(header, words) == 0


def error_of(call: Callable[[], object]) -> str:
    """The message of the `QkvError` that a call raises as an ordinary user; otherwise what happened."""
    source, target = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if os.geteuid() == 0:
                give_up_rights()
            call()
            message = "no error"
        except QkvError as error:
            message = str(error)
        except BaseException:
            message = traceback.format_exc()
        os.write(target, message.encode())
        os._exit(0)
    os.close(target)
    with os.fdopen(source) as lines:
        message = lines.read()
    os.waitpid(pid, 0)
    return message


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    folder = tmp_path_factory.mktemp("trained")
    train(tiny(folder, train={"num_workers": 0, "steps": 4, "save_every": 2, "eval_every": 100}))
    return folder / "run"


@pytest.fixture
def modes() -> Iterator[Callable[[Path, int], None]]:
    """Change the mode of a path until the test has ended."""
    before: list[tuple[Path, int]] = []

    def change(path: Path, mode: int) -> None:
        before.append((path, path.stat().st_mode))
        path.chmod(mode)

    yield change
    for path, mode in reversed(before):
        path.chmod(mode)


@pytest.mark.parametrize("call", [qkv.load, recipe_file.read, Tokenizer.load, lambda path: list(read(path))])
@pytest.mark.parametrize("inside", ["", "a/b"])
def test_a_folder_that_may_not_be_read(call: Callable, inside: str, tmp_path: Path, modes: Callable) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "a.txt").write_text("text\n")
    modes(tmp_path / "secret", 0)
    assert "Permission denied" in (message := error_of(lambda: call(tmp_path / "secret" / inside)))
    assert "Traceback" not in message


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "checkpoints", "recipe.toml"])
def test_a_run_with_a_part_that_may_not_be_read(name: str, trained: Path, modes: Callable) -> None:
    modes(trained / name, 0)
    for call in (lambda: qkv.load(trained), lambda: train(open_recipe(trained, ["train.steps=6"]))):
        message = error_of(call)
        assert "Traceback" not in message
        assert name in message or message == "no error"


def test_a_run_that_may_not_be_written_can_be_used_but_not_trained(trained: Path, modes: Callable) -> None:
    modes(trained, 0o555)
    modes(trained / "checkpoints", 0o555)
    assert error_of(lambda: qkv.load(trained).generate("the", max_tokens=2)) == "no error"
    assert "cannot be written (Permission denied)" in error_of(lambda: train(open_recipe(trained, ["train.steps=6"])))


@pytest.mark.parametrize("cache", ["folder/cache", "file.txt"])
def test_a_cache_that_cannot_be_made(cache: str, tmp_path: Path, modes: Callable) -> None:
    recipe = tiny(tmp_path, data={"cache_dir": str(tmp_path / cache)})
    (tmp_path / "file.txt").write_text("not a folder")
    (tmp_path / "folder").mkdir()
    modes(tmp_path / "folder", 0o555)
    message = error_of(lambda: train(recipe))
    assert "Traceback" not in message
    assert cache in message
    assert "data.cache_dir" in message


def test_places_where_nothing_may_be_written(tmp_path: Path, modes: Callable) -> None:
    recipe = written(tiny(tmp_path))
    model = qkv.new("bert-tiny")
    (tmp_path / "folder").mkdir()
    modes(tmp_path / "folder", 0o555)
    assert "Permission denied" in error_of(lambda: model.save(tmp_path / "folder" / "model"))
    assert "Permission denied" in error_of(lambda: train(open_recipe(recipe, [f"run={tmp_path}/folder/run"])))


def test_the_command_line_reports_what_the_system_refuses(monkeypatch: pytest.MonkeyPatch, run_qkv: Any) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device", "/tmp/full")

    monkeypatch.setattr("qkv.cli.make_app", lambda *arguments: fail)
    assert "qkv: /tmp/full: No space left on device" in run_qkv(["info", "bert-tiny"], 1).err
