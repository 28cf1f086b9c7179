"""Atomic writes: after any failure, the file is either the old one or the new one."""

import os
import stat
import tracemalloc
from pathlib import Path

import pytest

from qkv.errors import UsageError
from qkv.files import partial_path, read_bytes, replace_folder, to_path, write_atomically


def test_a_file_is_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_atomically(path, "één\n")
    assert path.read_bytes() == "één\n".encode()
    write_atomically(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    write_atomically(path, "old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert partial_path(path).exists()


def test_a_file_gets_the_permissions_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "a", "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


@pytest.mark.parametrize("fails", [False, True])
def test_a_folder_is_replaced_or_stays(fails: bool, tmp_path: Path) -> None:
    old, new = tmp_path / "step", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    (new / "file").touch()
    phases = []

    def on_phase(name: str) -> None:
        phases.append(name)
        if fails and name == "rename":
            raise OSError(5, "Input/output error")

    if fails:
        with pytest.raises(OSError, match="Input/output"):
            replace_folder(new, old, on_phase)
        assert not any(old.iterdir())
        assert phases == ["aside", "rename"]
    else:
        assert replace_folder(new, old, on_phase) == tmp_path / ".step.replaced"
        assert (old / "file").exists()
        assert phases == ["aside", "rename", "renamed"]


def test_reading_a_small_file_needs_little_memory(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    tracemalloc.start()
    read_bytes(tmp_path / "a.json")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


@pytest.mark.parametrize("name", [3, None, b"runs/a", ["runs/a"]])
def test_a_value_that_is_no_path_is_named(name: object) -> None:
    with pytest.raises(UsageError, match=r"a path must be a text or a pathlib\.Path, got "):
        to_path(name)  # type: ignore[arg-type]
