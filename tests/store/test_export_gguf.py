"""GGUF files that qkv writes: the same logits when they are read again, and the same tokens in llama.cpp."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("gguf", reason='reads and writes GGUF files; pip install "qkv[gguf]"')

from gguf_samples import tiny_model

import qkv
from qkv.blocks import RotaryScaling
from qkv.store.gguf.gguf_file import GgufFile

IDS = [[1, 40, 7, 99, 250, 3, 3, 18]]
TEXTS = ["what's the  capital?\n\nit is 12345 café 日本", " don't <|im_end|> x", ""]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> qkv.Model:
    """A small language model with the default architecture, which learned sentences that repeat."""
    folder = tmp_path_factory.mktemp("trained")
    lines = [
        f"{who} {does} {what}, and then it's {hour} o'clock.\n"
        for who in ("Anna", "Ben", "Carla")
        for does in ("buys", "sees")
        for what in ("bread", "a red book", "the old house")
        for hour in range(1, 13)
    ]
    (folder / "text.txt").write_text("".join(lines))
    (folder / "recipe.toml").write_text(
        f'[data]\ntrain = "{folder}/text.txt"\nmax_length = 64\ncache_dir = "{folder}/cache"\n'
        '[tokenizer]\nvocab_size = 300\n[model]\nwidth = 32\nlayers = 2\n[objective]\nkind = "causal_lm"\n'
        "[train]\nsteps = 40\nbatch_tokens = 512\nlr = 0.01\neval_examples = 4\n"
    )
    return qkv.train(folder / "recipe.toml", run=str(folder / "run"))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gpt2"])
def test_a_written_file_has_the_same_logits_and_tokens(architecture: str, tied: bool, tmp_path: Path) -> None:
    model = tiny_model(architecture, tied or architecture == "gpt2")
    assert model.export(tmp_path / "m.gguf", dtype="f32") == architecture
    again = qkv.load(tmp_path / "m.gguf")
    assert torch.equal(again.logits(IDS), model.logits(IDS))
    assert again.config.head == model.config.head
    assert again.config.eos_token_ids == model.config.eos_token_ids
    assert again.tokenizer.config["chat_template"] == model.tokenizer.config["chat_template"]
    for text in TEXTS:
        assert again.tokenizer.encode(text, parse_special_tokens=True) == model.tokenizer.encode(
            text, parse_special_tokens=True
        )


@pytest.mark.parametrize(("dtype", "error"), [("f16", 0.002), ("bf16", 0.02), ("q8_0", 0.05), ("q4_0", 0.5)])
def test_other_types_are_close(dtype: str, error: float, tmp_path: Path) -> None:
    model = tiny_model("llama")
    model.export(tmp_path / "m.gguf", dtype=dtype)
    again = qkv.load(tmp_path / "m.gguf", dtype="float32")
    assert 0 < (again.logits(IDS) - model.logits(IDS)).abs().max() < error


@pytest.mark.parametrize(
    "scaling", [RotaryScaling(kind="linear", factor=2.0), RotaryScaling(kind="llama3", factor=8.0)]
)
def test_scaled_rotary_frequencies_are_kept(scaling: RotaryScaling, tmp_path: Path) -> None:
    model = tiny_model("llama")
    config = replace(model.config, decoder=replace(model.config.decoder, rotary_scaling=scaling))
    scaled = qkv.new(config, tokenizer=model.tokenizer, seed=1)
    scaled.export(tmp_path / "m.gguf", dtype="f32")
    again = qkv.load(tmp_path / "m.gguf")
    assert again.config.decoder.rotary_scaling.factor == pytest.approx(scaling.factor)
    torch.testing.assert_close(again.logits(IDS), scaled.logits(IDS), rtol=0, atol=1e-5)


def test_ids_without_a_token_are_unused(tmp_path: Path) -> None:
    model = tiny_model("llama")
    head = replace(model.config.head, outputs=320)
    config = replace(model.config, decoder=replace(model.config.decoder, vocab_size=320), head=head)
    qkv.new(config, tokenizer=model.tokenizer).export(tmp_path / "m.gguf")
    metadata = GgufFile(tmp_path / "m.gguf").metadata
    assert len(metadata["tokenizer.ggml.tokens"]) == 320
    assert metadata["tokenizer.ggml.token_type"][-1] == 5


def other_tokenizer(kind: str, **options: Any) -> qkv.Tokenizer:
    return qkv.Tokenizer.train(kind, iter(["a text of some words"] * 9), 300, **options)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"decoder": {"position": "alibi"}}, "GGUF files hold language models"),
        ({"tokenizer": None}, "no tokenizer"),
        ({"tokenizer": other_tokenizer("char")}, "not byte-level BPE"),
        ({"tokenizer": other_tokenizer("byte-bpe", lowercase=True)}, "in its own way"),
        ({"config": {"eos_token_ids": ()}}, "no end token"),
        ({"config": {"eos_token_ids": (1, 2, 3)}}, "at most two"),
        ({"dtype": "q5_k"}, "unknown dtype 'q5_k'"),
        ({"decoder": {"width": 40, "head_dim": 10}, "dtype": "q8_0"}, "not whole blocks of 32"),
    ],
)
def test_what_a_file_cannot_hold_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    model = tiny_model("llama")
    decoder = replace(model.config.decoder, **changes.get("decoder", {}))
    config = replace(model.config, decoder=decoder, **changes.get("config", {}))
    changed = qkv.new(config, tokenizer=changes.get("tokenizer", model.tokenizer))
    with pytest.raises(qkv.QkvError, match=words):
        changed.export(tmp_path / "m.gguf", dtype=changes.get("dtype", "f16"))
    assert not list(tmp_path.iterdir())


def test_the_command_chooses_the_format_by_the_name(tmp_path: Path, run_qkv: Any) -> None:
    tiny_model("llama").save(tmp_path / "model")
    shown = run_qkv(["export", str(tmp_path / "model"), str(tmp_path / "m.gguf"), "--dtype", "q8_0"]).out
    assert f"llama-server --model {tmp_path / 'm.gguf'}" in shown
    assert qkv.load(tmp_path / "m.gguf").config.decoder.width == 32


@pytest.mark.parametrize("dtype", ["f32", "f16", "q8_0", "q4_0"])
def test_llama_cpp_generates_the_same_tokens(trained: qkv.Model, dtype: str, tmp_path: Path) -> None:
    """With f32, these are the tokens of the model itself; with other types, those of the file as qkv reads it."""
    llama_cpp = pytest.importorskip("xllamacpp", reason="runs the file in llama.cpp; pip install xllamacpp")
    trained.export(tmp_path / "m.gguf", dtype=dtype)
    params = llama_cpp.CommonParams()
    params.model.path = str(tmp_path / "m.gguf")
    params.n_ctx, params.n_parallel, params.warmup, params.cpuparams.n_threads = 256, 1, False, 1
    server = llama_cpp.Server(params)
    model = trained if dtype == "f32" else qkv.load(tmp_path / "m.gguf", dtype="float32")
    for prompt in ("Anna sees", "Ben buys the old", "Carla", "and then it's 1"):
        options = {"prompt": prompt, "max_tokens": 24, "temperature": 0, "logprobs": 1, "cache_prompt": False}
        answer = server.handle_completions(options)
        (choice,) = (json.loads(answer) if isinstance(answer, str) else answer)["choices"]
        ours = model.generate(prompt, max_tokens=24)
        assert [token["id"] for token in choice["logprobs"]["content"]][: len(ours.ids)] == ours.ids
        assert choice["text"] == ours.text
