"""The config of a run: modern stacks, presets at other sizes, checkpoints under new heads, and what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from prepare_samples import sample_files, sample_recipe

from qkv.blocks import HeadConfig, StackConfig
from qkv.data import Loader
from qkv.data.objectives.table import OBJECTIVES
from qkv.errors import QkvError, UsageError
from qkv.models import Config, build
from qkv.models.tables.presets import PRESETS, find_preset
from qkv.sounds.config import GriffinLimConfig
from qkv.store import write_model
from qkv.tasks.prepare.model import (
    ModelRequirements,
    build_config,
    build_network,
    default_num_heads,
    ignored_notes,
    override_stack,
)
from qkv.tasks.prepare.prepare import prepare
from qkv.text import Tokenizer
from qkv.train.recipe.schema import ModelSection, ObjectiveSection, Recipe

TOKENIZER = Tokenizer.train("byte", iter([]), 300, special_tokens=["pad", "bos", "eos", "mask", "cls", "sep"])


def recipe_of(kind: Any = "seq2seq", **model: Any) -> Recipe:
    return Recipe(objective=ObjectiveSection(kind=kind), model=ModelSection(**model))


def config_of(kind: Any = "seq2seq", wanted: ModelRequirements | None = None, **model: Any) -> Config:
    back_ends = (GriffinLimConfig(),) if kind == "speech" else ()
    return build_config(
        recipe_of(kind, **model), wanted or ModelRequirements(TOKENIZER, ("no", "yes"), back_ends=back_ends)
    )


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_a_modern_model_for_every_objective(kind: str) -> None:
    config = config_of(kind)
    assert config.family == OBJECTIVES[kind].families[0]
    assert config.head.kind == OBJECTIVES[kind].head
    assert config.stack.vocab_size == TOKENIZER.vocab_size
    assert (config.stack.position, config.stack.norm, config.stack.norm_placement) == ("rotary", "rmsnorm", "pre")
    assert config.share_embeddings == (config.family == "seq2seq")
    build(config, device="meta")


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_one_word_makes_the_model_of_every_objective_recurrent(kind: str) -> None:
    keys = {"width": 60, "heads": 4, "ffn_width": 100, "position": "rotary", "norm_placement": "post", "dropout": 0.2}
    config = config_of(kind, family="gru", overrides=keys)
    plain = config_of(kind, overrides={"width": 60})
    assert config.family == plain.family
    assert config.head.kind == plain.head.kind
    assert (config.stack.block, config.stack.width, config.stack.layers) == ("gru", 60, 2)
    assert config.stack.dropout == 0.2
    build(config, device="meta")
    assert ignored_notes(recipe_of(kind, family="gru", overrides=keys)) == [
        'model.family = "gru" ignores model.ffn_width, model.heads, model.norm_placement, model.position, which only '
        "Transformers have"
    ]
    assert ignored_notes(recipe_of(kind, overrides=keys)) == []


def test_a_recurrent_model_takes_the_keys_that_apply_to_it() -> None:
    keys = {"recurrent_attention": "none", "encoder": {"layers": 3, "block": "lstm"}, "embedding_scale": "none"}
    config = config_of(family="gru", overrides=keys)
    assert config.encoder is not None
    assert config.decoder is not None
    assert (config.encoder.block, config.encoder.layers) == ("lstm", 3)
    assert (config.decoder.block, config.decoder.recurrent_attention) == ("gru", "none")
    assert config.decoder.embedding_scale == "none"


def test_a_recurrent_classifier_reads_the_whole_text() -> None:
    assert config_of("classification", family="lstm").head.pool == "mean"
    assert config_of("classification").head.pool == "first"
    assert config_of("classification", family="lstm", overrides={"head": {"pool": "last"}}).head.pool == "last"


def test_a_preset_is_no_recurrent_model() -> None:
    with pytest.raises(UsageError, match=r"model.preset = 'gpt2' has a decoder, but model.family = 'lstm'"):
        config_of("causal_lm", family="lstm", preset="gpt2")


def test_changes_reach_every_stack_or_one() -> None:
    config = config_of(overrides={"width": 128, "layers": 3, "encoder": {"layers": 5}, "dropout": 0.3})
    assert config.encoder is not None
    assert config.decoder is not None
    assert (config.encoder.layers, config.decoder.layers) == (5, 3)
    assert config.encoder.width == config.decoder.width == 128
    assert config.encoder.dropout == 0.3


def test_choices_that_follow_from_others() -> None:
    plain = config_of(overrides={"width": 96, "feedforward": "gelu", "norm": "layernorm"}).stack
    assert (plain.ffn_width, plain.norm_affine) == (384, "gain_bias")
    scaling = {"kind": "linear", "factor": 2.0}
    assert config_of(overrides={"rotary_scaling": scaling}).stack.rotary_scaling is not None


@given(st.integers(1, 200).map(lambda n: 2 * n))
def test_heads_divide_every_even_width_into_pairs(width: int) -> None:
    assert width % default_num_heads(width) == 0
    assert width // default_num_heads(width) % 2 == 0


def test_what_no_stack_can_be_names_the_section() -> None:
    with pytest.raises(UsageError, match=r"\[model\]: dropout = 2\.0 must be below 1"):
        config_of("causal_lm", overrides={"dropout": 2.0})
    with pytest.raises(UsageError, match=r"\[model\]: encoder and decoder must have the same width"):
        config_of(overrides={"encoder": {"width": 64}}, share_embeddings=False)
    with pytest.raises(UsageError, match=r"\[model.head\]"):
        config_of("classification", overrides={"head": {"dropout": 1.0}})


def test_a_vocabulary_below_the_tokenizers_is_refused_and_one_above_is_kept() -> None:
    assert config_of("causal_lm", overrides={"vocab_size": 320}).head.outputs == 320
    with pytest.raises(UsageError, match=r"\[model\] vocab_size = 100 is too small: the tokenizer has 262 ids"):
        config_of("causal_lm", overrides={"vocab_size": 100})


# -------------------------------------------------------------------- presets


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_takes_the_tokenizers_size_and_ids(name: str) -> None:
    family = find_preset(name).family
    kind = {"encoder": "masked_lm", "decoder": "causal_lm", "seq2seq": "seq2seq"}[family]
    config = config_of(kind, preset=name)
    assert config.stack.vocab_size == config.head.outputs == TOKENIZER.vocab_size
    assert (config.pad_token_id, config.decoder_start_token_id, config.eos_token_ids) == (
        TOKENIZER.special_tokens.pad,
        TOKENIZER.special_tokens.bos,
        (TOKENIZER.special_tokens.eos,),
    )
    given = replace(find_preset(name).stack, vocab_size=TOKENIZER.vocab_size)
    assert config.stack == given  # and nothing else of it changes
    assert config.head.tied == find_preset(name).head.tied


def test_a_preset_at_another_size_is_the_published_one_of_that_size() -> None:
    small, medium = find_preset("gpt2"), find_preset("gpt2-medium")
    assert override_stack(small.stack, {"width": 1024, "layers": 24, "heads": 16}, "model") == medium.stack
    base, large = find_preset("bert-base"), find_preset("bert-large")
    assert override_stack(base.stack, {"width": 1024, "layers": 24, "heads": 16}, "model") == large.stack


def test_what_followed_from_a_changed_field_follows_again() -> None:
    stack = override_stack(find_preset("gpt2").stack, {"width": 96, "heads": 8}, "model")
    assert (stack.head_dim, stack.kv_heads, stack.ffn_width) == (12, 8, 384)
    grouped = override_stack(find_preset("llama-1.1b").stack, {"width": 1024, "heads": 16}, "model")
    assert grouped.kv_heads == 4  # a choice of its own stays
    windowed = override_stack(find_preset("modernbert-base").stack, {"layers": 4}, "model")
    assert windowed.sliding_window_layers == (1, 2)
    assert windowed.num_layer_groups == 4


def test_a_preset_under_another_head() -> None:
    config = config_of("classification", preset="bert-tiny", overrides={"head": {"pool": "mean"}})
    assert (config.head.kind, config.head.labels, config.head.pool) == ("classify", ("no", "yes"), "mean")
    assert config_of("next_sentence", preset="bert-tiny").head.next_sentence_classes == 2
    assert config_of("masked_lm", preset="bert-tiny").head.next_sentence_classes == 0


def test_untied_and_unshared_when_asked() -> None:
    config = config_of(tie_embeddings=False, share_embeddings=False)
    assert not config.head.tied
    assert not config.share_embeddings


def test_a_decoder_classifies_by_its_last_token() -> None:
    assert config_of("classification", family="decoder").head.pool == "last"
    assert config_of("classification", preset="gpt2").head.pool == "last"


@pytest.mark.parametrize(
    ("kind", "preset"), [("causal_lm", "bert-tiny"), ("seq2seq", "gpt2"), ("masked_lm", "t5-small")]
)
def test_a_preset_of_another_family_is_refused(kind: str, preset: str) -> None:
    with pytest.raises(UsageError, match=f"model.preset = '{preset}' has an? .* but objective.kind = '{kind}' needs"):
        config_of(kind, preset=preset)


def test_a_preset_that_contradicts_the_family_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'bert-base' has an encoder, but model.family = 'decoder'; leave one"):
        config_of("classification", preset="bert-base", family="decoder")


def test_a_preset_that_is_none() -> None:
    with pytest.raises(UsageError, match="did you mean 'gpt2'"):
        config_of("causal_lm", preset="gtp2")


# -------------------------------------------------------------------- checkpoints


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sample files, and a small trained encoder with its tokenizer in `bert`."""
    path = tmp_path_factory.mktemp("trained")
    sample_files(path)
    prepared = prepare(sample_recipe(path, "masked_lm"))
    write_model(path / "bert", prepared.config, prepared.build_network(), prepared.tokenizer)
    return path


def test_a_checkpoint_goes_on_under_a_new_head(folder: Path) -> None:
    recipe = sample_recipe(
        folder, "classification", model={"from_": str(folder / "bert"), "overrides": {"dropout": 0.3}}
    )
    prepared = prepare(recipe)
    network = prepared.build_network()
    before = dict(prepare(sample_recipe(folder, "masked_lm")).build_network().named_parameters())
    same = [name for name, one in network.named_parameters() if name in before and not name.startswith("head.")]
    assert same
    for name, one in network.named_parameters():
        if name in same:
            assert torch.equal(one, before[name]), name
    assert prepared.config.head.labels == ("bad", "good")
    assert network.config.stack.dropout == 0.3
    assert next(module.p for module in network.modules() if isinstance(module, torch.nn.Dropout)) == 0.3
    assert any("newly initialised" in note for note in prepared.notes)


def test_a_checkpoint_keeps_its_head_where_it_fits(folder: Path) -> None:
    recipe = sample_recipe(
        folder, "masked_lm", model={"from_": str(folder / "bert"), "overrides": {"head": {"dropout": 0.2}}}
    )
    prepared = prepare(recipe)
    before = dict(prepare(sample_recipe(folder, "masked_lm")).build_network().named_parameters())
    for name, one in prepared.build_network().named_parameters():
        assert torch.equal(one, before[name]), name
    assert prepared.config.head.dropout == 0.2


def test_a_checkpoint_keeps_its_head_but_not_its_calibration(folder: Path, tmp_path: Path) -> None:
    first = prepare(sample_recipe(folder, "classification"))
    fitted = replace(first.config, head=replace(first.config.head, temperature=4.0, threshold=0.9))
    network = first.build_network()
    write_model(tmp_path / "sure", fitted, network, first.tokenizer)
    again = prepare(sample_recipe(folder, "classification", model={"from_": str(tmp_path / "sure"), "overrides": {}}))
    assert (again.config.head.temperature, again.config.head.threshold) == (1.0, 0.0)
    after = dict(again.build_network().named_parameters())
    assert all(torch.equal(one, after[name]) for name, one in network.named_parameters())


def test_a_checkpoint_keeps_its_shape_and_a_note_says_so(folder: Path) -> None:
    overrides = {"width": 64, "layers": 9, "dropout": 0.3}
    recipe = sample_recipe(folder, "masked_lm", model={"from_": str(folder / "bert"), "overrides": overrides})
    prepared = prepare(replace(recipe, train=replace(recipe.train, lr=2e-3)))
    stack = prepared.config.stack
    assert (stack.width, stack.dropout) == (32, 0.3)
    shape = (
        f"the model has the shape of {folder / 'bert'}: width = 32 instead of 64, layers = {stack.layers} instead of 9"
    )
    assert shape in prepared.notes
    assert any("train.lr = 0.002 suits a new model" in note for note in prepared.notes)
    prepared.build_network()


def test_a_checkpoint_without_shape_keys_has_no_note_of_its_shape(folder: Path) -> None:
    recipe = sample_recipe(folder, "masked_lm", model={"from_": str(folder / "bert"), "overrides": {"width": 32}})
    notes = prepare(replace(recipe, train=replace(recipe.train, lr=1e-4))).notes
    assert not any("shape" in note or "train.lr" in note for note in notes)


def test_a_misspelt_field_of_a_checkpoint_is_an_error(folder: Path) -> None:
    with pytest.raises(UsageError, match="no field 'widht'; did you mean 'width'"):
        prepare(sample_recipe(folder, "masked_lm", model={"from_": str(folder / "bert"), "overrides": {"widht": 64}}))


def test_a_checkpoint_of_another_family_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"has an encoder, but objective.kind = 'causal_lm' needs a decoder"):
        prepare(sample_recipe(folder, "causal_lm", model={"from_": str(folder / "bert"), "overrides": {}}))


def test_a_tokenizer_that_does_not_belong_to_the_checkpoint(folder: Path, tmp_path: Path) -> None:
    text = iter([" ".join(f"word{n}" for n in range(2000))])
    roles = ["pad", "unk", "cls", "sep", "mask"]
    Tokenizer.train("word", text, 1000, special_tokens=roles, template="bert", min_frequency=1).save(tmp_path)
    recipe = sample_recipe(
        folder, "masked_lm", model={"from_": str(folder / "bert"), "overrides": {}}, tokenizer={"from_": str(tmp_path)}
    )
    with pytest.raises(QkvError, match="do not belong together"):
        prepare(recipe)


def test_a_checkpoint_without_a_tokenizer(folder: Path, tmp_path: Path) -> None:
    stack = StackConfig(vocab_size=300, width=16, layers=1, heads=2, ffn_width=32, position="rotary")
    config = Config(encoder=stack, head=HeadConfig(kind="mlm", outputs=300))
    write_model(tmp_path / "bare", config, build(config), None)
    with pytest.raises(QkvError, match=r"set tokenizer\.from"):
        prepare(sample_recipe(folder, "masked_lm", model={"from_": str(tmp_path / "bare"), "overrides": {}}))


def test_the_networks_weights_do_not_depend_on_who_drew_before(folder: Path) -> None:
    recipe = sample_recipe(folder, "masked_lm")
    config = prepare(recipe).config
    first = build_network(recipe, config)
    torch.rand(7)
    state = torch.get_rng_state()
    second = build_network(recipe, config)
    assert torch.equal(next(first.parameters()), next(second.parameters()))
    assert torch.equal(state, torch.get_rng_state())  # and nobody else's numbers are disturbed


# -------------------------------------------------------------------- positions


def test_rows_longer_than_the_positions_of_a_model(folder: Path) -> None:
    model = {"preset": "gpt2", "overrides": {"width": 32, "layers": 1, "heads": 2, "max_positions": 64}}
    with pytest.raises(UsageError, match=r"an example has 256 tokens, but this model has only 64 positions"):
        prepare(sample_recipe(folder, "causal_lm", model=model))
    prepare(sample_recipe(folder, "causal_lm", model=model, data={"max_length": 64}))


def test_a_model_without_a_type_for_the_second_text(folder: Path) -> None:
    model = {"overrides": {"width": 32, "layers": 1, "token_types": 1}}
    with pytest.raises(UsageError, match="gives the second of two texts the token type 1"):
        prepare(sample_recipe(folder, "classification", "two.jsonl", model=model))
    model["overrides"]["token_types"] = 0  # none at all is a choice
    prepare(sample_recipe(folder, "classification", "two.jsonl", model=model))


def test_a_decoder_begins_in_training_as_it_will_when_it_is_run(folder: Path, tmp_path: Path) -> None:
    """BART's decoder begins with the end token, whatever the tokenizer's start is."""
    first = prepare(sample_recipe(folder, "denoising"))
    config = replace(first.config, decoder_start_token_id=first.tokenizer.special_tokens.eos)
    write_model(tmp_path / "bart", config, first.build_network(), first.tokenizer)
    for kind in ("denoising", "seq2seq"):
        prepared = prepare(sample_recipe(folder, kind, model={"from_": str(tmp_path / "bart"), "overrides": {}}))
        batch = next(iter(Loader(prepared.train_data)))
        assert (
            int(batch.inputs.ids[0, 0]) == prepared.config.decoder_start_token_id == first.tokenizer.special_tokens.eos
        )


def test_long_rows_of_short_texts_need_few_positions(folder: Path) -> None:
    model = {"preset": "bart-base", "overrides": {"width": 32, "layers": 1, "heads": 2, "max_positions": 64}}
    prepared = prepare(sample_recipe(folder, "seq2seq", model=model))  # rows of 256, texts of about 10
    assert prepared.train_data.max_lengths[0] > prepared.config.stack.max_positions
