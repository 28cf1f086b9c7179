"""What is exported reloads in transformers and in qkv, to the same numbers.

For every architecture and head: a folder that transformers wrote, read by us, exported again, and read by both. Then
models that were never anyone else's: small ones with fresh weights, shaped like each preset. What no public layout can
express is refused, and the error names the fields.
"""

from dataclasses import replace

import pytest
import torch
from reference_models import FLOAT32, apart, cases, disturb, pair, transformers

import qkv
from qkv.blocks import HeadConfig, StackConfig
from qkv.models.tables import presets

UNUSED = ("cls.predictions.bias",)  # beside an output matrix that is not tied, transformers uses decoder.bias
CONTACTS = tuple(f"{prefix}contact_head.regression.{part}" for prefix in ("", "esm.") for part in ("weight", "bias"))
FIXED = (
    *("encoder.embed_positions.weight", "decoder.embed_positions.weight"),  # Marian's sinusoids, made anew
    *("rotary_embeddings.inv_freq", "esm.rotary_embeddings.inv_freq"),
)


def reload(folder, cls):
    """The exported folder as transformers reads it: nothing that it uses missing, nothing left over."""
    model, report = getattr(transformers, cls).from_pretrained(folder, output_loading_info=True)
    report["missing_keys"] = set(report["missing_keys"]) - {*UNUSED, *CONTACTS, *FIXED}
    assert {name: found for name, found in report.items() if found} == {}
    return model.eval()


def said(model, two):
    """All that transformers says of one text."""
    text = two.texts[0]
    inputs = {"input_ids": text.ids[None]}
    if text.source is not None:
        inputs = {"input_ids": text.source[None], "decoder_input_ids": text.ids[None]}
    elif two.config.head.kind == "choice":
        inputs = {"input_ids": text.ids[None, None]}
    with torch.no_grad():
        return {name: value for name, value in model(**inputs).items() if isinstance(value, torch.Tensor)}


@pytest.mark.parametrize("case", cases())
def test_transformers_reads_an_exported_folder_to_the_same_numbers(case, tmp_path):
    two = pair(case)
    cls = two.ours(torch.float32).export(tmp_path / "out")
    again = reload(tmp_path / "out", cls)
    weights, reread = two.theirs.state_dict(), again.state_dict()
    both = (weights.keys() & reread.keys()) - {*UNUSED, *CONTACTS, *FIXED}
    assert len(both) > 5
    assert [name for name in both if not torch.equal(weights[name], reread[name])] == []
    first, second = said(two.theirs, two), said(again, two)
    assert first.keys() == second.keys()
    for name in first:  # some processors add up in another order where a file's bytes lie otherwise in memory
        torch.testing.assert_close(first[name], second[name], rtol=1e-5, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("case", cases())
def test_qkv_reads_an_exported_folder_to_the_same_model(case, tmp_path):
    model = pair(case).ours(torch.float32)
    model.export(tmp_path / "out")
    again = qkv.load(tmp_path / "out")
    assert again.config == model.config
    assert again.notes == []
    first, second = (dict(m.network.named_parameters()) for m in (model, again))
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


# ── Models that were never anyone else's ─────────────────────────────────────────────────────────────────────────


def shrunk(stack: StackConfig) -> StackConfig:
    """The same choices at a size for tests."""
    grouped, wide = stack.kv_heads != stack.heads, stack.head_dim * stack.heads != stack.width
    return replace(
        stack,
        vocab_size=40,
        width=16,
        layers=3,
        heads=4,
        kv_heads=2 if grouped else 4,
        head_dim=6 if wide else 4,
        ffn_width=21,
        num_layer_groups=3,
        max_positions=24,
        sliding_window=min(stack.sliding_window, 3),
        sliding_window_layers=tuple(layer for layer in stack.sliding_window_layers if layer < 3),
    )


def small(name: str) -> qkv.Config:
    """A preset's choices at a size for tests."""
    config = presets.find_preset(name)
    return replace(
        config,
        encoder=config.encoder and shrunk(config.encoder),
        decoder=config.decoder and shrunk(config.decoder),
        head=replace(config.head, outputs=40),
        pad_token_id=None if config.pad_token_id is None else 1,
        decoder_start_token_id=None if config.decoder_start_token_id is None else 2,
        eos_token_ids=(3,) if config.eos_token_ids else (),
    )


PUBLIC = sorted(name for name in presets.PRESETS if presets.find_preset(name).architecture)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_new_model_exported_says_the_same_in_transformers(name, tmp_path):
    model = qkv.new(small(name), seed=1)
    disturb(model.network)
    theirs = reload(tmp_path / "out", model.export(tmp_path / "out"))
    ids = torch.randint(4, 40, (2, 9), generator=torch.Generator().manual_seed(0))
    source = ids.flip(1) if model.config.family == "seq2seq" else None
    with torch.no_grad():
        if source is None:
            answer = theirs(input_ids=ids)
        else:
            answer = theirs(input_ids=source, decoder_input_ids=ids)
    expected = answer["prediction_logits"] if "prediction_logits" in answer else answer["logits"]
    assert expected.std() > 0.1
    assert apart(model.logits(ids, source=source), expected) < FLOAT32


@pytest.mark.parametrize("name", PUBLIC)
def test_a_new_model_exported_is_the_same_model_in_qkv(name, tmp_path):
    model = qkv.new(small(name), seed=1)
    model.export(tmp_path / "out")
    again = qkv.load(tmp_path / "out")
    assert again.config == model.config
    first, second = (dict(m.network.named_parameters()) for m in (model, again))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("scale", ["none", "rsqrt"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("name", ["t5-small", "t5-v1.1-small"])
def test_every_pairing_of_a_tied_and_a_scaled_head(name, tied, scale, tmp_path):
    """T5's layout says both with one key, mT5's never scales: what is written must still mean what it meant."""
    base = small(name)
    model = qkv.new(replace(base, head=replace(base.head, tied=tied, scale=scale)))
    disturb(model.network)
    theirs = reload(tmp_path / "out", model.export(tmp_path / "out"))
    ids = torch.arange(4, 12)[None]
    with torch.no_grad():
        expected = theirs(input_ids=ids.flip(1), decoder_input_ids=ids).logits
    assert apart(model.logits(ids, source=ids.flip(1)), expected) < FLOAT32
    assert apart(qkv.load(tmp_path / "out").logits(ids, source=ids.flip(1)), expected) < FLOAT32


def test_half_precision_is_exported_as_what_it_is(tmp_path):
    model = qkv.new(small("llama-1.1b"), dtype=torch.bfloat16)
    cls = model.export(tmp_path / "out")
    theirs = getattr(transformers, cls).from_pretrained(tmp_path / "out", dtype="auto")
    assert {p.dtype for p in theirs.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("cls", ["BertForSequenceClassification", "GPT2ForSequenceClassification"])
def test_class_names_travel(cls, tmp_path):
    base = small("bert-base" if cls.startswith("Bert") else "gpt2")
    pooling = {"dense": "tanh", "bias": True, "dropout": 0.1} if cls.startswith("Bert") else {"pool": "last"}
    head = HeadConfig(kind="classify", labels=("bad", "good"), **pooling)
    model = qkv.new(replace(base, head=head))
    assert model.export(tmp_path / "out") == cls
    assert reload(tmp_path / "out", cls).config.id2label == {0: "bad", 1: "good"}
    assert qkv.load(tmp_path / "out").config.head.labels == ("bad", "good")


def test_a_two_class_model_is_exported_as_a_classifier(tmp_path):
    """BERT's next-sentence head has the same shape; nobody would look for a classifier under its names."""
    head = HeadConfig(kind="classify", outputs=2, dense="tanh", bias=True)
    model = qkv.new(replace(small("bert-base"), head=head))
    assert model.export(tmp_path / "out") == "BertForSequenceClassification"


@pytest.mark.parametrize(("name", "cls"), [("llama-1.1b", "LlamaForCausalLM"), ("mistral-7b", "MistralForCausalLM")])
def test_the_layout_that_a_model_came_from_is_tried_first(name, cls, tmp_path):
    """Without its window, Mistral is Llama: either layout would do."""
    base = small(name)
    assert qkv.new(replace(base, decoder=replace(base.decoder, sliding_window=0))).export(tmp_path / "out") == cls


UNPUBLISHED = {
    "sandwich": ({"norm_placement": "sandwich"}, "norm_placement"),
    "alibi": ({"position": "alibi"}, "position"),
    "shared layers": ({"num_layer_groups": 1}, "num_layer_groups"),
    "no position": ({"position": "none"}, "position"),
    "parallel": ({"residual": "parallel"}, "residual"),
    "narrow embedding": ({"embedding_width": 8}, "embedding_width"),
}


@pytest.mark.parametrize("change", UNPUBLISHED)
def test_what_no_layout_can_express_is_refused_by_name(change, tmp_path):
    fields, named = UNPUBLISHED[change]
    base = small("gpt2")
    head = replace(base.head, tied=False)
    model = qkv.new(replace(base, decoder=replace(base.decoder, **fields), head=head))
    with pytest.raises(qkv.QkvError, match=named):
        model.export(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_window_in_the_embedding_is_refused_by_name(tmp_path):
    base = small("bert-base")
    model = qkv.new(replace(base, encoder=replace(base.encoder, embedding_window=2)))
    with pytest.raises(qkv.QkvError, match="embedding_window"):
        model.export(tmp_path / "out")


def test_what_only_training_reads_does_not_stand_in_the_way(tmp_path):
    """Llama's layout has no place for dropout or for how weights started, and needs none to say the same."""
    base = small("llama-1.1b")
    model = qkv.new(replace(base, decoder=replace(base.decoder, dropout=0.1, ffn_dropout=0.2, init="scaled")))
    assert model.export(tmp_path / "out") == "LlamaForCausalLM"
    ids = torch.arange(4, 13)[None]
    assert torch.equal(qkv.load(tmp_path / "out").logits(ids), model.logits(ids))


def test_two_fields_that_do_not_fit_are_both_named(tmp_path):
    base = small("llama-1.1b")
    model = qkv.new(replace(base, decoder=replace(base.decoder, norm_placement="sandwich", score_scale="none")))
    with pytest.raises(qkv.QkvError, match=r"norm_placement.*score_scale|score_scale.*norm_placement"):
        model.export(tmp_path / "out")


def test_the_2017_transformer_has_no_public_layout(tmp_path):
    """Marian lays sines before cosines, the paper by turns: saying so is better than exporting other numbers."""
    with pytest.raises(qkv.QkvError, match="position"):
        qkv.new(small("transformer-base")).export(tmp_path / "out")


def test_an_unknown_format_is_refused(tmp_path):
    with pytest.raises(qkv.UsageError, match="hf"):
        qkv.new(small("gpt2")).export(tmp_path / "out", format="hff")
