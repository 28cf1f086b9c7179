"""An exported CTranslate2 folder generates the same tokens as qkv; unsupported settings are refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import qkv
from qkv.blocks import RotaryScaling
from qkv.decode import GenerationOptions, generate, score
from qkv.errors import QkvError
from qkv.store.export_ctranslate2 import unsupported_settings, write_ctranslate2
from qkv.text import Tokenizer

ctranslate2 = pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")

VOCAB, START, END = 40, 2, 1
PROMPTS = [[5, 6, 7, 8, 9, 10], [9, 4], [12, 11, 10]]
NEW = 14

MODERN = {"position": "rotary", "norm": "rmsnorm", "norm_affine": "gain", "bias": "none", "feedforward": "swiglu"}
T5 = {
    **MODERN,
    "position": "t5",
    "norm_eps": 1e-6,
    "feedforward": "geglu_tanh",
    "score_scale": "none",
    "head_dim": 12,
    "relative_buckets": 8,
    "relative_max_distance": 10,
}
SEQ2SEQ: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "2017": (
        {"norm_placement": "post", "feedforward": "relu", "embedding_scale": "sqrt"},
        {"tied": True, "share_embeddings": True},
    ),
    "marian": (
        {"position": "sinusoidal_split", "norm_placement": "post", "feedforward": "silu", "embedding_scale": "sqrt"},
        {"tied": True, "bias": True, "share_embeddings": True},
    ),
    "bart": (
        {"position": "learned", "position_offset": 2, "norm_placement": "post", "embedding_norm": "extra"},
        {"tied": True, "bias": True},
    ),
    "t5": (T5, {"tied": True, "scale": "rsqrt"}),
    "rotary": ({**MODERN, "kv_heads": 2}, {}),
    "no positions": ({"position": "none", "norm_affine": "none"}, {}),
    "shared layers": ({"num_layer_groups": 1}, {}),
}
DECODERS: dict[str, dict[str, Any]] = {
    "gpt2": {"position": "learned", "feedforward": "gelu_tanh"},
    "llama": {**MODERN, "kv_heads": 2},
    "qwen2": {**MODERN, "bias": "qkv"},
    "qwen3": {**MODERN, "qk_norm": "head", "head_dim": 8},
    "neox": {"position": "rotary", "rotary_fraction": 0.5, "residual": "parallel"},
    "stretched": {**MODERN, "rotary_scaling": RotaryScaling(kind="linear", factor=4.0)},
    "alibi": {"position": "alibi", "norm_affine": "gain"},
}


def make_model(
    encoder: dict[str, Any] | None, decoder: dict[str, Any], *, share_embeddings: bool = False, **head: Any
) -> qkv.Model:
    """A model with large random weights, so that every weight changes the output."""
    size = {"vocab_size": VOCAB, "width": 16, "layers": 2, "heads": 4, "ffn_width": 24, "max_positions": 32}
    sides = {"decoder": qkv.StackConfig(**{**size, **decoder})}
    if encoder is not None:
        sides["encoder"] = qkv.StackConfig(**{**size, **encoder})
    config = qkv.Config(
        **sides,
        head=qkv.HeadConfig(kind="lm", outputs=VOCAB, **head),
        share_embeddings=share_embeddings,
        decoder_start_token_id=START,
        eos_token_ids=(END,),
    )
    model = qkv.new(config, seed=3)
    with torch.no_grad():
        for number, parameter in enumerate(model.network.parameters()):
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)) * 0.3)
    return model


def generate_with_ctranslate2(
    folder: Path, prompts: list[list[int]], *, seq2seq: bool, beam: int = 1
) -> list[list[int]]:
    """The ids that CTranslate2 generates with an exported folder."""
    name = next(name for name in ("shared_vocabulary.json", "vocabulary.json") if (folder / name).exists())
    names = json.loads((folder / name).read_text(encoding="utf-8"))
    sequences = [[names[i] for i in prompt] for prompt in prompts]
    if seq2seq:
        translator = ctranslate2.Translator(str(folder), device="cpu", compute_type="float32", intra_threads=1)
        results = translator.translate_batch(sequences, beam_size=beam, min_decoding_length=0, max_decoding_length=NEW)
        return [[names.index(token) for token in result.hypotheses[0]] for result in results]
    generator = ctranslate2.Generator(str(folder), device="cpu", compute_type="float32", intra_threads=1)
    results = generator.generate_batch(
        sequences, beam_size=beam, min_length=0, max_length=NEW, include_prompt_in_result=False
    )
    return [list(result.sequences_ids[0]) for result in results]


def generate_with_qkv(model: qkv.Model, **options: Any) -> list[list[int]]:
    return [result.ids for result in generate(model.network, PROMPTS, GenerationOptions(max_tokens=NEW, **options))]


def score_with_ctranslate2(folder: Path, *, seq2seq: bool) -> list[list[float]]:
    """CTranslate2's log-probabilities of the tokens of each prompt, which is also the source of an encoder-decoder."""
    name = next(name for name in ("shared_vocabulary.json", "vocabulary.json") if (folder / name).exists())
    names = json.loads((folder / name).read_text(encoding="utf-8"))
    sequences = [[names[i] for i in prompt] for prompt in PROMPTS]
    if seq2seq:
        engine = ctranslate2.Translator(str(folder), device="cpu", compute_type="float32", intra_threads=1)
        return [result.log_probs[:-1] for result in engine.score_batch(sequences, sequences)]  # without the end token
    engine = ctranslate2.Generator(str(folder), device="cpu", compute_type="float32", intra_threads=1)
    return [result.log_probs for result in engine.score_batch(sequences)]


def score_with_qkv(model: qkv.Model) -> list[list[float]]:
    if model.config.family == "seq2seq":
        sequences = score(model.network, PROMPTS, PROMPTS)
    else:
        sequences = score(model.network, [prompt[:1] for prompt in PROMPTS], [prompt[1:] for prompt in PROMPTS])
    return [[token.logprob for token in sequence] for sequence in sequences]


def check_equal_output(model: qkv.Model, folder: Path) -> None:
    seq2seq = model.config.family == "seq2seq"
    assert generate_with_ctranslate2(folder, PROMPTS, seq2seq=seq2seq) == generate_with_qkv(model)
    for ours, theirs in zip(score_with_qkv(model), score_with_ctranslate2(folder, seq2seq=seq2seq), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)


@pytest.mark.parametrize("name", SEQ2SEQ)
def test_an_encoder_decoder_gives_the_same_scores_and_tokens(name: str, tmp_path: Path) -> None:
    stack, more = SEQ2SEQ[name]
    model = make_model(stack, stack, **more)
    assert write_ctranslate2(tmp_path / "out", model.config, model.network, None) == "Translator"
    check_equal_output(model, tmp_path / "out")


def test_encoder_and_decoder_may_have_different_configs(tmp_path: Path) -> None:
    model = make_model(
        {"layers": 3, "heads": 2, "position": "learned"}, {"norm_placement": "post", "feedforward": "relu"}
    )
    model.export(tmp_path / "out", format="ctranslate2")
    check_equal_output(model, tmp_path / "out")


def test_beam_search_gives_the_same_tokens(tmp_path: Path) -> None:
    """All beams have the same length, because qkv and CTranslate2 stop by different rules."""
    stack, _ = SEQ2SEQ["2017"]
    model = make_model(stack, stack, bias=True)
    with torch.no_grad():
        model.network.head.out.bias[END] = -1e4
    write_ctranslate2(tmp_path / "out", model.config, model.network, None)
    ours = generate_with_qkv(model, beam=4)
    assert ours != generate_with_qkv(model)
    assert generate_with_ctranslate2(tmp_path / "out", PROMPTS, seq2seq=True, beam=4) == ours


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_gives_the_same_scores_and_tokens(name: str, tmp_path: Path) -> None:
    model = make_model(None, DECODERS[name])
    assert write_ctranslate2(tmp_path / "out", model.config, model.network, None) == "Generator"
    check_equal_output(model, tmp_path / "out")


def test_other_weights_generate_other_tokens(tmp_path: Path) -> None:
    """Negative control: a change to one row of one matrix is detected."""
    model = make_model(None, DECODERS["llama"])
    write_ctranslate2(tmp_path / "out", model.config, model.network, None)
    with torch.no_grad():
        model.network.decoder.blocks[0].attention.qkv.weight[0] += 1.0
    with pytest.raises(AssertionError):
        check_equal_output(model, tmp_path / "out")


def test_the_vocabulary_is_that_of_the_tokenizer(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train("byte", iter([]), vocab_size=260, special_tokens=["pad", "eos", "bos"], template="eos")
    stack = qkv.StackConfig(
        vocab_size=264, width=16, layers=1, heads=2, ffn_width=16, position="learned", max_positions=32
    )
    roles = tokenizer.special_tokens
    config = qkv.Config(
        decoder=stack,
        head=qkv.HeadConfig(kind="lm", outputs=264),
        decoder_start_token_id=roles.bos,
        eos_token_ids=(roles.eos,),
    )
    model = qkv.new(config, tokenizer=tokenizer)
    model.export(tmp_path / "out", format="ctranslate2")
    vocabulary = json.loads((tmp_path / "out" / "vocabulary.json").read_text(encoding="utf-8"))
    spelled = {i: token for token, i in tokenizer.backend.get_vocab().items()}
    assert vocabulary == [spelled.get(i, f"<id_{i}>") for i in range(264)]
    theirs = json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))
    assert theirs["eos_token"] == spelled[roles.eos]
    assert (tmp_path / "out" / "tokenizer.json").exists()
    assert Tokenizer.load(tmp_path / "out").encode("hé") == tokenizer.encode("hé")


def test_a_second_export_replaces_the_first(tmp_path: Path) -> None:
    stack, more = SEQ2SEQ["2017"]
    first, second = make_model(stack, stack, **more), make_model(None, DECODERS["gpt2"])
    first.export(tmp_path, format="ctranslate2")
    second.export(tmp_path, format="ctranslate2")
    assert not (tmp_path / "shared_vocabulary.json").exists()
    assert generate_with_ctranslate2(tmp_path, PROMPTS, seq2seq=False) == generate_with_qkv(second)


def test_half_precision_is_kept(tmp_path: Path) -> None:
    model = make_model(None, DECODERS["gpt2"])
    model.export(tmp_path / "full", format="ctranslate2")
    model.network.bfloat16()
    model.export(tmp_path / "half", format="ctranslate2")
    full, half = ((tmp_path / name / "model.bin").stat().st_size for name in ("full", "half"))
    assert half < 0.7 * full


# ── Unsupported settings ────────────────────────────────────────────────────────────────────────────────────────────

REFUSED: dict[str, dict[str, Any]] = {
    "norm": {"norm": "none"},
    "norm_placement": {"norm_placement": "sandwich"},
    "embedding_norm": {"embedding_norm": "replaces_first"},
    "embedding_width": {"embedding_width": 8},
    "token_types": {"token_types": 2},
    "sliding_window": {"sliding_window": 4},
    "rotary_scaling": {**MODERN, "rotary_scaling": RotaryScaling(kind="llama3", factor=8.0)},
    "qk_norm": {"qk_norm": "head"},
    "residual": {**MODERN, "residual": "parallel"},
}


@pytest.mark.parametrize("field", REFUSED)
def test_an_unsupported_setting_is_refused_by_name(field: str, tmp_path: Path) -> None:
    model = make_model(None, REFUSED[field])
    with pytest.raises(QkvError, match=rf"CTranslate2 does not support this model: decoder\.{field}"):
        write_ctranslate2(tmp_path / "out", model.config, model.network, None)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("field", ["position", "qk_norm"])
def test_some_settings_are_supported_only_in_a_decoder(field: str) -> None:
    settings = {"position": {"position": "alibi"}, "qk_norm": {**MODERN, "qk_norm": "head"}}[field]
    assert unsupported_settings(make_model(None, settings).config) == []
    found = unsupported_settings(make_model(settings, settings).config)
    assert [problem.split(" ")[0] for problem in found] == [f"encoder.{field}", f"decoder.{field}"]


def test_one_error_names_all_unsupported_settings() -> None:
    stack = qkv.StackConfig(
        vocab_size=9, width=8, layers=1, heads=2, ffn_width=8, norm_placement="sandwich", sliding_window=3
    )
    config = qkv.Config(decoder=stack, head=qkv.HeadConfig(kind="lm", outputs=9))
    found = " ".join(unsupported_settings(config))
    assert all(name in found for name in ("eos_token_ids = ()", "decoder.norm_placement", "decoder.sliding_window"))


@pytest.mark.parametrize("family", ["encoder", "decoder"])
def test_models_that_do_not_generate_are_refused(family: str, tmp_path: Path) -> None:
    stack = qkv.StackConfig(vocab_size=9, width=8, layers=1, heads=2, ffn_width=8)
    model = qkv.new(qkv.Config(**{family: stack}, head=qkv.HeadConfig(kind="classify", outputs=2)))
    with pytest.raises(QkvError, match="classify head"):
        model.export(tmp_path / "out", format="ctranslate2")


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(QkvError, match=r"qkv\[ctranslate2\]"):
        make_model(None, DECODERS["gpt2"]).export(tmp_path / "out", format="ctranslate2")
