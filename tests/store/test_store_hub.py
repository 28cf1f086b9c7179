"""A hub id is downloaded, a path is not. A fake huggingface_hub stands in, so no test needs a network."""

import builtins
import sys
import types

import pytest

import qkv
from qkv.store.hub import DOWNLOAD_PATTERNS


class Hub:
    """A fake huggingface_hub that records the arguments of its calls."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[str]]] = []
        self.answer: object = RuntimeError("no such repository\nand a second line")

    def snapshot_download(self, name, allow_patterns):
        self.asked.append((name, allow_patterns))
        if isinstance(self.answer, Exception):
            raise self.answer
        return str(self.answer)


@pytest.fixture
def hub(monkeypatch, tmp_path) -> Hub:
    stand_in = Hub()
    module = types.ModuleType("huggingface_hub")
    module.snapshot_download = stand_in.snapshot_download
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    monkeypatch.chdir(tmp_path)
    return stand_in


def test_a_hub_id_is_downloaded_and_read(hub, own, model, same):
    hub.answer = own
    assert same("someone/some-model", model)
    assert [name for name, _ in hub.asked] == ["someone/some-model"]


def test_neither_pickles_nor_code_are_downloaded(hub, own):
    hub.answer = own
    qkv.load("someone/some-model")
    assert hub.asked == [("someone/some-model", DOWNLOAD_PATTERNS)]
    assert not [p for p in DOWNLOAD_PATTERNS if p in ("*", "*.*") or p.endswith((".bin", ".py", ".pt", ".pkl"))]


def test_a_local_folder_has_precedence_over_the_hub(hub, model, tmp_path, same):
    model.save(tmp_path / "someone" / "some-model")
    assert same("someone/some-model", model)
    assert hub.asked == []


def test_a_misspelt_path_beside_folders_is_not_looked_up_on_the_hub(hub, tmp_path, refused):
    (tmp_path / "runs").mkdir()
    refused("runs/dats", "runs/dats", "no such folder")
    assert hub.asked == []


def test_a_similar_folder_is_suggested(tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "dates").mkdir(parents=True)
    (tmp_path / "dates.toml").touch()
    refused("dates", "no such folder; did you mean runs/dates?")
    refused("runs/datse", "no such folder; did you mean runs/dates?")
    assert "did you mean" not in refused("datse.tml", "no such folder"), "a file is no model"


@pytest.mark.parametrize(
    "name",
    [
        "model",
        "./owner/model",
        "/owner/model",
        "../owner/model",
        "a/b/c",
        "owner/",
        "owner/mo del",
        "~/model",
        "owner\\model",
    ],
)
def test_a_name_that_is_no_hub_id_is_not_looked_up_on_the_hub(hub, name, refused):
    refused(name, "no such folder")
    assert hub.asked == []


def test_an_error_of_the_hub_becomes_one_line(hub, refused):
    text = refused("someone/some-model", "someone/some-model", "no such repository")
    assert "second line" not in text


def test_a_broken_folder_from_the_hub_is_refused(hub, tmp_path, refused):
    (tmp_path / "fetched").mkdir()
    hub.answer = tmp_path / "fetched"
    refused("someone/some-model", "no config.json")


def test_without_the_extra_the_error_says_what_to_install(monkeypatch, tmp_path, refused):
    real = builtins.__import__

    def without(name, *args, **more):
        if name.split(".")[0] == "huggingface_hub":
            raise ImportError(name)
        return real(name, *args, **more)

    monkeypatch.delitem(sys.modules, "huggingface_hub", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.chdir(tmp_path)
    refused("someone/some-model", "someone/some-model", 'pip install "qkv[hub]"')
