"""`m.push` and `qkv push`, with the real client of huggingface_hub and a hub on this machine."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("huggingface_hub", reason='uploads models; pip install "qkv[hub]"')

from gguf_samples import tiny_model
from hub_stub import TOKEN, Hub, run_hub

import qkv
from qkv.store.model_card import hub_metadata, read_card

IDS = [[1, 40, 7, 99]]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A hub to which this process is connected."""
    from huggingface_hub import constants

    with run_hub() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server


def test_a_pushed_model_is_loaded_again(hub: Hub) -> None:
    model = tiny_model("llama")
    address = model.push("anna/tiny", private=True)
    assert address == f"{hub.url}/anna/tiny"
    assert hub.private == {"anna/tiny": True}
    assert hub.commits == ["Upload a model with qkv"]
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= hub.repositories["anna/tiny"].keys()
    assert torch.equal(qkv.load("anna/tiny").logits(IDS), model.logits(IDS))
    model.push("anna/tiny", "hf")  # the repository exists
    assert json.loads(hub.repositories["anna/tiny"]["config.json"])["model_type"] == "llama"


def test_the_command_keeps_the_card_of_a_folder(hub: Hub, tmp_path: Path, run_qkv: Any) -> None:
    tiny_model("gpt2").save(tmp_path / "model")
    card = (tmp_path / "model/README.md").read_text() + "\nTrained for a test.\n"
    (tmp_path / "model/README.md").write_text(card)
    assert "qkv.load('anna/mine')" in run_qkv(["push", str(tmp_path / "model"), "anna/mine"]).out
    assert hub.repositories["anna/mine"]["README.md"].decode() == card


def test_failures_say_what_to_do(hub: Hub, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., Any]) -> None:
    model = tiny_model("gpt2")
    with pytest.raises(qkv.UsageError, match="'tiny' is not the name of a repository; write owner/name"):
        model.push("tiny")
    monkeypatch.setenv("HF_TOKEN", "hf_of_somebody_else")
    with pytest.raises(qkv.QkvError, match=r"anna/tiny: the upload failed .*HF_TOKEN"):
        model.push("anna/tiny")
    assert not hub.repositories


def test_cards_begin_with_the_metadata_of_the_hub(tmp_path: Path) -> None:
    model = tiny_model("llama")
    model.save(tmp_path / "own")
    model.export(tmp_path / "hf")
    own, theirs = ((tmp_path / name / "README.md").read_text().split("---\n") for name in ("own", "hf"))
    assert own[:2] == ["", "library_name: qkv\npipeline_tag: text-generation\ntags:\n- qkv\n"]
    assert theirs[1].startswith("library_name: transformers\n")
    assert read_card(tmp_path / "own")["layers"] == "2"
    head = qkv.HeadConfig(kind="classify", outputs=2)
    encoder = qkv.StackConfig(vocab_size=9, width=8, layers=1, heads=2, ffn_width=8)
    assert "pipeline_tag: text-classification" in hub_metadata(qkv.Config(encoder=encoder, head=head), "encoder")
