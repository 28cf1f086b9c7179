"""Pictures as codes, and models that draw what a text describes."""

import base64
import json
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from image_files import Image, colour_file, encode, picture

import qkv
from qkv.errors import UsageError
from qkv.images.codec import ImageCodes, fit_codebook, nearest, used_fraction
from qkv.images.config import ImageCodesConfig
from qkv.images.files import split_patches

RECIPE = """
run = "{folder}/run"
[data]
train = "{folder}/captions.tsv"
valid_fraction = 0.2
max_length = 18
cache_dir = "{folder}/cache"
[tokenizer]
kind = "word"
vocab_size = 20
min_frequency = 1
image_codes = 8
[model]
width = 32
layers = 1
heads = 2
ffn_width = 64
dropout = 0.0
[model.image]
size = 16
patch = 4
[objective]
kind = "drawing"
caption_dropout = 0.2
[train]
steps = 60
batch_tokens = 512
lr = 0.01
device = "cpu"
num_threads = 1
eval_every = 100
log_every = 30
"""
COLOURS = {"red": (200, 40, 40), "blue": (40, 40, 200)}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, qkv.Model]:
    folder = tmp_path_factory.mktemp("drawer")
    rows = ["caption\timage"]
    for number in range(20):
        for name, colour in COLOURS.items():
            file = encode(np.full((16, 16, 3), colour, np.uint8)) if number else colour_file(colour, size=16)
            (folder / f"{name}{number}.png").write_bytes(file)
            rows.append(f"all is {name}{' now' * (number % 3)}\t{name}{number}.png")
    (folder / "captions.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    (folder / "recipe.toml").write_text(RECIPE.format(folder=folder), encoding="utf-8")
    qkv.train(folder / "recipe.toml")
    return folder, qkv.load(folder / "run")


def test_a_model_draws_what_a_text_describes(trained: tuple[Path, qkv.Model]) -> None:
    model = trained[1]
    assert model.config.task == "draw"
    for name, colour in COLOURS.items():
        drawn = model.draw(f"all is {name}")
        assert drawn.image.size == (16, 16)
        assert np.abs(np.asarray(drawn.image).mean((0, 1)) - colour).max() < 30
        assert len(drawn.codes) == 16
        assert np.asarray(Image.open(BytesIO(base64.b64decode(drawn.b64_json)))).shape == (16, 16, 3)
    one, other = (model.draw("all is red", temperature=5.0, seed=seed).codes for seed in (1, 2))
    assert one != other
    with pytest.raises(UsageError, match="text 1 is empty"):
        model.draw(" ")


def test_guidance_strengthens_what_the_text_changes(trained: tuple[Path, qkv.Model], run_qkv: Any) -> None:
    folder, model = trained
    assert model.draw("all is red", guidance=1.0).codes == model.draw("all is red").codes
    assert model.draw(["all is red", "all is blue"], guidance=3.0)[1].codes == model.draw("all is blue").codes
    words = [model.draw(text, guidance=0.0).codes for text in ("all is red", "all is blue")]
    assert words[0] == words[1], "with guidance 0, the text has no effect"
    one, same = (model.draw("all is red", guidance=2.0, temperature=2.0, seed=5).codes for _ in range(2))
    assert one == same
    run_qkv(["run", str(folder / "run"), "all is red", "--guidance", "2", "--out", str(folder / "guided.png")])
    back_end = replace(model.config.back_ends[0], caption_dropout=0.0)
    other = qkv.Model(replace(model.config, back_ends=(back_end,)), model.network, model.tokenizer)
    with pytest.raises(UsageError, match="has only learned pictures with captions"):
        other.draw("all is red", guidance=2.0)


def test_a_server_draws_as_openai_does(trained: tuple[Path, qkv.Model]) -> None:
    serving = pytest.importorskip("serving", reason="starlette is not installed")
    model = trained[1]
    with serving.client({"drawer": model}, gather_seconds=0.0) as server:

        def ask(**fields: Any) -> Any:
            return server.post("/v1/images/generations", json={"prompt": "all is red", **fields})

        found = ask(n=3, seed=4, size="16x16").json()
        assert found["data"][2]["b64_json"] == model.draw("all is red", temperature=1.0, seed=6).b64_json
        assert len(found["data"]) == 3
        likeliest = ask(temperature=0, guidance=2.0).json()["data"][0]["b64_json"]
        assert likeliest == model.draw("all is red", guidance=2.0).b64_json
        assert "draws pictures of 16x16" in ask(size="1024x1024").text
        assert ask(n=2, temperature=0).status_code == ask(response_format="url").status_code == 400


def test_the_commands_write_pictures_and_evaluate(trained: tuple[Path, qkv.Model], run_qkv: Any) -> None:
    folder = trained[0]
    out = folder / "out.png"
    assert run_qkv(["run", str(folder / "run"), "all is blue", "--out", str(out)]).out == f"wrote {out}: 1 picture\n"
    assert Image.open(out).size == (16, 16)
    run_qkv(["run", str(folder / "run"), "all is blue", "--out", str(out), "--count", "6"])
    assert Image.open(out).size == (64, 32)
    metrics = json.loads(run_qkv(["eval", str(folder / "run"), "--json"]).out)["metrics"]
    assert metrics["code_accuracy"] > 0.8
    assert "pictures are PNG files" in run_qkv(["run", str(folder / "run"), "a", "--out", "x.jpg"], 2).err


def test_other_models_do_not_draw(run_qkv: Any) -> None:
    with pytest.raises(UsageError, match=r"m\.draw needs a model that draws pictures"):
        qkv.new("bert-tiny").draw("a red circle")
    assert "are for models that draw" in run_qkv(["run", "en-fr", "Hello.", "--out", "x.png"], 2).err


def test_all_codes_are_used_and_pictures_come_back() -> None:
    images = np.stack([picture(16, 16, seed) // 32 * 32 for seed in range(6)])
    patches = split_patches(images, 4).reshape(-1, 48)
    codebook = fit_codebook(patches, 32)
    codes = nearest(torch.from_numpy(patches).float() / 255, codebook)
    assert used_fraction(codes, 32) == 1.0
    exact = fit_codebook(patches, len(patches))
    codec = ImageCodes(ImageCodesConfig(size=16, patch=4, num_codes=len(patches)))
    codec.codebook.weight.data.copy_(exact)
    drawn = codec(codec.encode(torch.from_numpy(patches[:16])))
    assert (drawn * 255).round().byte().numpy().tolist() == images[0].tolist()
