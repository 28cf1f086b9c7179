"""A CTranslate2 folder writes what qkv writes, token for token; what it cannot express is refused by name."""

from pathlib import Path

import pytest
import torch

import qkv
from qkv.decode import Options, generate
from qkv.errors import QkvError
from qkv.store.ctranslate2 import write_ctranslate2

ctranslate2 = pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")

VOCAB, START, END = 40, 2, 1
PROMPTS = [[5, 6, 7, 8], [9, 4], [12, 11, 10]]


def model(family: str, **more: object) -> qkv.Model:
    settings = {"position": "sinusoidal_split", "norm_place": "post", "feedforward": "relu", "embedding_scale": "sqrt"}
    if family == "decoder":
        settings = {"position": "learned", "feedforward": "gelu_tanh", "max_positions": 32}
    stack = qkv.StackConfig(vocab=VOCAB, width=16, layers=2, heads=2, ffn_width=32, **{**settings, **more})
    sides = (
        {"decoder": stack} if family == "decoder" else {"encoder": stack, "decoder": stack, "shared_embedding": True}
    )
    head = qkv.HeadConfig(kind="lm", outputs=VOCAB, tied=True)
    config = qkv.Config(**sides, head=head, pad=0, start=START, end=(END,))
    made = qkv.new(config, seed=3)
    with torch.no_grad():
        for parameter in made.network.parameters():
            parameter.add_(
                torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())) * 0.3
            )
    return made


def test_an_encoder_and_decoder_translates_alike(tmp_path: Path) -> None:
    ours = model("seq2seq")
    write_ctranslate2(tmp_path / "out", ours.config, ours.network, None)
    translator = ctranslate2.Translator(str(tmp_path / "out"), device="cpu", compute_type="float32")
    names = [f"<{i}>" for i in range(VOCAB)]
    results = generate(ours.network, PROMPTS, Options(max_tokens=8))
    vocabulary = _names(tmp_path / "out", names)
    for prompt, result in zip(PROMPTS, results, strict=True):
        theirs = translator.translate_batch([[vocabulary[i] for i in prompt]], beam_size=1, max_decoding_length=8)
        assert [vocabulary.index(token) for token in theirs[0].hypotheses[0]] == result.ids


def _names(folder: Path, otherwise: list[str]) -> list[str]:
    """The tokens' names as the folder has them, by id."""
    import json

    for name in ("shared_vocabulary.json", "target_vocabulary.json", "vocabulary.json"):
        if (folder / name).exists():
            return json.loads((folder / name).read_text(encoding="utf-8"))
    return otherwise


def test_what_it_cannot_say_is_refused_by_name(tmp_path: Path) -> None:
    odd = model("decoder", norm_place="sandwich")
    with pytest.raises(QkvError, match="norm_place"):
        write_ctranslate2(tmp_path / "out", odd.config, odd.network, None)
    assert not (tmp_path / "out").exists()


def test_a_model_exports_it_by_name(tmp_path: Path) -> None:
    ours = model("decoder")
    assert ours.export(tmp_path / "out", format="ctranslate2") == "Generator"
    assert (tmp_path / "out" / "model.bin").exists()
