"""GGUF files: the same logits as the model that they were written from, the same tokens, and clear errors."""

import io
import random
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("gguf", reason='reads and writes GGUF files; pip install "qkv[gguf]"')

from gguf_samples import CHAT_TEMPLATE, add_value, chat_tokenizer, tiny_model, tokenizer_metadata, write_gguf

import qkv
from qkv import cli
from qkv.store.gguf.architectures import GGUF_ARCHITECTURES, llama3_scaling
from qkv.text import Tokenizer

IDS = [[1, 40, 7, 99, 250, 3, 3, 18]]
TEXTS = ["what's the  capital?\n\nit is 12345 café 日本", " don't <|im_end|> x", ""]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama as a GGUF file."""
    return write_gguf(tmp_path_factory.mktemp("gguf") / "llama.gguf", tiny_model("llama"), "llama")


@pytest.mark.parametrize(
    ("architecture", "tied"), [("llama", True), ("llama", False), ("qwen2", True), ("qwen3", True), ("gpt2", True)]
)
def test_logits_are_those_of_the_original(architecture: str, tied: bool, tmp_path: Path) -> None:
    model = tiny_model(architecture, tied)
    loaded = qkv.load(write_gguf(tmp_path / "m.gguf", model, architecture))
    torch.testing.assert_close(loaded.logits(IDS), model.logits(IDS), rtol=0, atol=1e-5)
    assert loaded.config.head.tied is tied
    assert loaded.config.eos_token_ids == (2,)


def test_files_without_the_sizes_of_heads_are_read(tmp_path: Path) -> None:
    model = tiny_model("llama")
    changes = {"llama.attention.key_length": None, "llama.rope.dimension_count": None}
    for name, missing in (("all", changes), ("key_length", {"llama.attention.key_length": None})):
        loaded = qkv.load(write_gguf(tmp_path / f"{name}.gguf", model, "llama", changes=missing))
        torch.testing.assert_close(loaded.logits(IDS), model.logits(IDS), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("quantization", "error"), [("F16", 0.01), ("BF16", 0.05), ("Q8_0", 0.1), ("Q4_1", 1.0)])
def test_quantized_files(quantization: str, error: float, tmp_path: Path) -> None:
    model = tiny_model("llama")
    loaded = qkv.load(write_gguf(tmp_path / "m.gguf", model, "llama", quantization), dtype="float32")
    difference = (loaded.logits(IDS) - model.logits(IDS)).abs().max()
    assert 0 < difference < error


def test_without_undoing_the_order_of_llama_the_logits_differ(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unchanged = replace(GGUF_ARCHITECTURES["llama"], interleaved=False)
    monkeypatch.setitem(GGUF_ARCHITECTURES, "llama", unchanged)
    assert (qkv.load(llama).logits(IDS) - tiny_model("llama").logits(IDS)).abs().max() > 0.01


def test_import_writes_a_folder_with_tokenizer_and_chat_template(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_qkv: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run_command(["import", str(llama)]) == 0
    assert cli.run_command(["import", str(llama), "--out", "other"]) == 0
    assert cli.run_command(["info", str(llama)]) == 0
    first, again = qkv.load(llama), qkv.load("llama")
    assert torch.equal(first.logits(IDS), again.logits(IDS))
    assert again.tokenizer.config["chat_template"] == CHAT_TEMPLATE
    assert Path("other/config.json").exists()
    assert "qkv import MODEL FOLDER" in run_qkv(["import", str(tmp_path / "llama")], 2).err


def test_the_tokenizer_gives_the_ids_of_the_original(llama: Path) -> None:
    original, loaded = chat_tokenizer(), qkv.load(llama).tokenizer
    for text in TEXTS:
        assert loaded.encode(text) == original.encode(text)
        assert loaded.decode(loaded.encode(text)) == text
    assert loaded.encode("<|im_end|>", parse_special_tokens=True) == [2]
    assert loaded.encode("<|im_end|>") != [2]


@pytest.mark.parametrize(
    ("pre", "words"),
    [
        ("gpt-2", ["it", "'s", "Ġ1234", ",", "Ġ", "Ġx", "'S"]),
        ("smollm", ["it", "'s", "Ġ", "1", "2", "3", "4", ",", "Ġ", "Ġx", "'", "S"]),
        ("llama-bpe", ["it", "'s", "Ġ", "123", "4", ",", "Ġ", "Ġx", "'S"]),
        ("qwen2", ["it", "'s", "Ġ", "1", "2", "3", "4", ",", "Ġ", "Ġx", "'S"]),
    ],
)
def test_each_pre_tokenizer_splits_as_its_models_do(pre: str, words: list[str]) -> None:
    tokenizer = Tokenizer.from_gguf(tokenizer_metadata(chat_tokenizer(), pre))
    found = [word for word, _ in tokenizer.backend.pre_tokenizer.pre_tokenize_str("it's 1234,  x'S")]
    if pre == "gpt-2":
        words = [*words[:-1], "'", "S"]  # its contractions are in lower case
    assert found == words


def test_sentencepiece_tokenizers(tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    writer, lines = io.BytesIO(), ["What is the capital of France?", "It is Paris, in the year 1234."] * 20
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=writer, vocab_size=320, model_type="bpe", byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2, hard_vocab_limit=False,
    )  # fmt: skip
    original = sentencepiece.SentencePieceProcessor(model_proto=writer.getvalue())
    size = original.vocab_size()
    types = [1 + original.IsUnknown(i) + 2 * original.IsControl(i) + 5 * original.IsByte(i) for i in range(size)]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [original.IdToPiece(i) for i in range(size)],
        "tokenizer.ggml.scores": [original.GetScore(i) for i in range(size)],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    tokenizer = Tokenizer.from_gguf(metadata)
    for text in ["What is  the capital of Paris?", "été 日本 1234\nIt is"]:
        assert tokenizer.encode(text) == [1, *original.encode(text)]
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_llama3_frequencies_are_recognised() -> None:
    half, base = 64, 500_000.0
    wavelengths = 2 * torch.pi * base ** (torch.arange(half) / half)
    smooth = ((8192 / wavelengths - 1) / 3).clamp(0, 1)
    factors = 1 / ((1 - smooth) / 8 + smooth)
    assert llama3_scaling(factors, base)["factor"] == 8
    with pytest.raises(qkv.QkvError, match="only the rotary frequencies of Llama 3"):
        llama3_scaling(torch.linspace(1, 8, half), base)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"general.architecture": "mamba"}, "general.architecture = 'mamba' is not supported"),
        ({"llama.expert_count": 8}, "mixture of experts"),
        ({"llama.block_count": 3}, "tensors missing"),
        ({"llama.block_count": 10**9}, "layers"),
        ({"llama.embedding_length": 64}, "of the wrong shape"),
        ({"llama.attention.head_count": 0}, "at least 1"),
        ({"llama.attention.head_count": None}, "no llama.attention.head_count"),
        ({"llama.attention.head_count": 7}, "heads"),
        ({"llama.rope.scaling.type": "longrope"}, "longrope"),
        ({"llama.rope.dimension_count": 4}, "llama.rope.dimension_count = 4, but a head has 8 dimensions"),
        ({"tokenizer.ggml.model": "t5"}, "tokenizer.ggml.model = 't5'"),
        ({"tokenizer.ggml.pre": "unheard-of"}, "tokenizer.ggml.pre = 'unheard-of'"),
        ({"tokenizer.ggml.merges": ["x"]}, "tokenizer cannot be used"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, "token_type"),
    ],
)
def test_what_cannot_be_read_is_refused(changes: dict[str, object], words: str, tmp_path: Path, refused) -> None:
    path = tmp_path / "m.gguf"
    architecture = changes.pop("general.architecture", None)
    write_gguf(path, tiny_model("llama"), "llama", changes=changes)
    if architecture:
        path.write_bytes(path.read_bytes().replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0mamba"))
    assert str(path) in refused(path, words)


def test_files_that_are_no_gguf_files(tmp_path: Path, refused) -> None:
    refused(tmp_path / "none.gguf", "no such file")
    path = tmp_path / "m.gguf"
    for content, words in [
        (b"", "cannot be read"),
        (b"PK\x03\x04" + bytes(100), "first bytes are not GGUF"),
        (b"GGUF\0\0\0\x03" + bytes(40), "version"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60) + bytes(12) + b"\xff" * 8, "header needs bytes"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**62), "header needs bytes"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 4, 2**61), "header needs bytes"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 9, 5) + bytes(64), "array"),
    ]:
        path.write_bytes(content)
        refused(path, words)


def test_tensors_that_share_bytes_are_refused(llama: Path, tmp_path: Path, refused) -> None:
    """A small file must not unfold into a large model."""
    import gguf

    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in {"block_count": 1, "embedding_length": 8, "attention.head_count": 1}.items():
        add_value(writer, f"llama.{key}", value)
    for name in ("token_embd.weight", "output.weight"):
        writer.add_tensor(name, torch.ones(1000, 8).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    data = path.read_bytes()
    path.write_bytes(data.replace(struct.pack("<IQ", 0, 32_000), struct.pack("<IQ", 0, 0))[:-32_000])
    refused(path, "overlap")


def test_damaged_files_are_read_or_refused(llama: Path, tmp_path: Path) -> None:
    data = llama.read_bytes()
    header = data.index(b"token_embd.weight") + 1500
    path, rng, refused = tmp_path / "m.gguf", random.Random(0), []
    for _ in range(120):
        content = bytearray(data)
        place = rng.randrange(header)
        match rng.randrange(3):
            case 0:
                content[place] ^= 1 << rng.randrange(8)
            case 1:
                content[place : place + 8] = struct.pack("<Q", rng.choice([0, 1, 2**31, 2**63, 2**64 - 1]))
            case _:
                del content[rng.randrange(len(content)) :]
        path.write_bytes(content)
        try:
            qkv.load(path).logits(IDS)
        except qkv.QkvError as error:
            refused.append(str(error))
    assert len(refused) > 40
    assert all(0 < len(message) <= 4200 for message in refused)
