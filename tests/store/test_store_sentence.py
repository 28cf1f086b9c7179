"""Sentence-transformers folders: reading and writing them; unsupported modules are refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import qkv
from qkv.api import Model
from qkv.errors import QkvError

KIND = "sentence_transformers.models."
MEAN = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False, "word_embedding_dimension": 8}


@pytest.fixture
def make(model, tmp_path):
    """Make a folder with these modules. The Transformer is in a sub-folder or in the folder itself."""

    def folder(pooling: dict, *more: str, inner: str = "") -> Path:
        out = tmp_path / "sentences"
        model.export(out / inner)
        (out / "1_Pooling").mkdir()
        (out / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
        modules = [("Transformer", inner), ("Pooling", "1_Pooling"), *((kind, f"2_{kind}") for kind in more)]
        text = json.dumps([{"idx": i, "path": path, "type": KIND + kind} for i, (kind, path) in enumerate(modules)])
        (out / "modules.json").write_text(text)
        return out

    return folder


@pytest.mark.parametrize(
    ("pooling", "how"),
    [
        (MEAN, "mean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "first"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode": ["cls"]}, "first"),
    ],
)
def test_the_pooling_is_read(make, pooling, how):
    head = qkv.load(make(pooling)).config.head
    assert (head.kind, head.pool, head.normalize) == ("embed", how, False)


def test_normalising_is_read(make):
    assert qkv.load(make(MEAN, "Normalize")).config.head.normalize is True


def test_the_transformer_may_be_in_a_sub_folder(make, model, tokenizer):
    folder = make(MEAN, "Normalize", inner="0_Transformer")
    tokenizer.save(folder / "0_Transformer")
    loaded = qkv.load(folder)
    vectors = loaded.embed(["one", "two and more"])
    ids = torch.tensor([loaded.tokenizer.encode("one")])
    expected = torch.nn.functional.normalize(model.hidden(ids).mean(dim=1), dim=-1)
    assert (vectors[0] - expected[0]).abs().max() < 1e-6


@pytest.mark.parametrize(
    "pooling",
    [
        {"pooling_mode_max_tokens": True},
        {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
        {"pooling_mode": "weightedmean"},
        {"pooling_mode": ["mean", "max"]},
        {"pooling_mode": 5},
        {},
    ],
    ids=["max", "two", "weighted", "two named", "number", "none"],
)
def test_a_pooling_that_is_not_supported(make, pooling, refused):
    refused(make(pooling), "1_Pooling", "pooling", "mean")


def test_a_module_that_is_not_supported(make, refused):
    refused(make(MEAN, "Dense"), "modules.json", "'Dense'")


@pytest.mark.parametrize(
    "content",
    [b"{", b"{}", b"[1]", b'"x"', b"", b"\xff\xfe\x80"],
    ids=["cut", "object", "numbers", "text", "empty", "binary"],
)
def test_modules_that_cannot_be_read(make, content, refused):
    folder = make(MEAN)
    (folder / "modules.json").write_bytes(content)
    refused(folder, "modules.json")


@pytest.mark.parametrize("part", ["0_Transformer", "1_Pooling"])
def test_a_missing_part_is_named(make, refused, part):
    folder = make(MEAN, inner="0_Transformer")
    (folder / part / "config.json").unlink()
    refused(folder, part)


def test_paths_of_modules_stay_inside_the_folder(make, model, tmp_path, refused):
    folder = make(MEAN, inner="0_Transformer")
    model.export(tmp_path / "elsewhere")
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = "../elsewhere"
    (folder / "modules.json").write_text(json.dumps(modules))
    refused(folder, str(folder / "elsewhere"))


def test_the_head_parameter_has_precedence_over_the_modules(make):
    head = qkv.HeadConfig(kind="tag", outputs=3, bias=True)
    assert qkv.load(make(MEAN), head=head).config.head == head


def embedder(model, tokenizer, pool: str, normalize: bool):
    head = qkv.HeadConfig(kind="embed", pool=pool, normalize=normalize)
    config = replace(model.config, head=head)
    network = qkv.new(config).network
    network.load_state_dict(model.network.state_dict(), strict=False)
    return Model(config, network, tokenizer, [])


@pytest.mark.parametrize(("pool", "normalize"), [("mean", True), ("first", False)])
def test_an_exported_embedder_computes_the_same_vectors_in_sentence_transformers(
    model, tokenizer, tmp_path, pool, normalize
):
    library = pytest.importorskip("sentence_transformers", reason="compared with it where it is installed")
    made, texts = embedder(model, tokenizer, pool, normalize), ["one", "two and more"]
    for _ in range(2):  # a second export replaces the first
        assert made.export(tmp_path / "out") == "SentenceTransformer"
    theirs = library.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert (torch.tensor(theirs.encode(texts)) - made.embed(texts)).abs().max() < 1e-6
    again = qkv.load(tmp_path / "out")
    assert again.config.head == made.config.head
    assert torch.equal(again.embed(texts), made.embed(texts))


def test_saving_another_model_into_the_folder_removes_the_modules(model, tokenizer, tmp_path):
    embedder(model, tokenizer, "mean", True).export(tmp_path / "out")
    model.export(tmp_path / "out")
    assert qkv.load(tmp_path / "out").config.head == model.config.head
    assert not (tmp_path / "out" / "1_Pooling").exists()


def test_an_embedder_that_hugging_face_cannot_express_names_what_can(tokenizer, tmp_path):
    stack = qkv.StackConfig(
        vocab_size=tokenizer.vocab_size, width=8, layers=1, heads=2, ffn_width=8, feedforward="swiglu"
    )
    made = qkv.new(qkv.Config(encoder=stack, head=qkv.HeadConfig(kind="embed")))
    with pytest.raises(QkvError, match=r"--format onnx.*qkv init TASK FILE --shape exportable"):
        made.export(tmp_path / "out")
    assert not (tmp_path / "out").exists()
