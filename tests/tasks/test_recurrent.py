"""One word of a recipe, `model.family`, trains a recurrent model in place of a Transformer, for every kind of task."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from prepare_samples import sample_files, sample_recipe

import qkv
from qkv.blocks import Inputs
from qkv.errors import QkvError, UsageError
from qkv.inside import logit_attribution, logit_lens, rollout, vocabulary_effect, zero_ablate
from qkv.tasks.train import train

KINDS = {"seq2seq": "lstm", "causal_lm": "gru", "classification": "rnn", "tagging": "lstm"}
TEXT = "The cat runs near Paris."


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The run of each objective. Its recipe has the keys of a Transformer."""
    folder = tmp_path_factory.mktemp("recurrent")
    sample_files(folder)
    keys = {"width": 16, "layers": 1, "heads": 2, "ffn_width": 32, "position": "rotary", "norm": "layernorm"}
    found = {}
    for kind, family in KINDS.items():
        model = {"family": family, "overrides": keys}
        recipe = sample_recipe(folder, kind, model=model, train={"eval_examples": 4, "device": "cpu"})
        found[kind] = Path(train(replace(recipe, run=str(folder / kind))).run_end.folder)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_is_a_model_folder_that_answers(runs: dict[str, Path], kind: str) -> None:
    model = qkv.load(runs[kind])
    assert model.config.stack.block == KINDS[kind]
    answers: dict[str, Any] = {
        "seq2seq": lambda: model.generate(TEXT, max_tokens=5),
        "causal_lm": lambda: model.generate(TEXT, max_tokens=5),
        "classification": lambda: model.classify(TEXT),
        "tagging": lambda: model.tag(TEXT),
    }
    first, second = answers[kind](), answers[kind]()
    assert first == second
    note = f'model.family = "{KINDS[kind]}" ignores model.ffn_width, model.heads, model.position,'
    assert note in (runs[kind] / "metrics.jsonl").read_text().replace('\\"', '"')


def test_the_saved_weights_are_the_trained_ones(runs: dict[str, Path], tmp_path: Path) -> None:
    model = qkv.load(runs["seq2seq"])
    model.save(tmp_path / "copy")
    again = qkv.load(tmp_path / "copy")
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(model.network(Inputs(ids, source=Inputs(ids))), again.network(Inputs(ids, source=Inputs(ids))))


def test_a_text_is_completed_while_it_is_typed(runs: dict[str, Path]) -> None:
    """The state cannot be taken back, so a deleted letter makes the model read the text again."""
    model = qkv.load(runs["causal_lm"])
    for typed in ("The cat ", "The cat r", "The cat runs ", "The cat runs n", "The c", "The cat "):
        kept = model.complete(typed, top=2, max_tokens=3).suggestions
        fresh = qkv.Model(model.config, model.network, model.tokenizer).complete(typed, top=2, max_tokens=3)
        assert [one.text for one in kept] == [one.text for one in fresh.suggestions]


def test_words_are_aligned_with_and_without_attention(runs: dict[str, Path]) -> None:
    model = qkv.load(runs["seq2seq"])
    plain = replace(model.config, decoder=replace(model.config.decoder, recurrent_attention="none"))
    for one in (model, qkv.Model(plain, qkv.new(plain).network, model.tokenizer)):
        links = one.translate(TEXT, align=True, max_tokens=20).alignment
        assert links
        assert all(link.source in TEXT for link in links)


@pytest.mark.parametrize("format", ["hf", "onnx", "ctranslate2"])
def test_other_formats_are_refused(runs: dict[str, Path], tmp_path: Path, format: str) -> None:
    with pytest.raises(QkvError, match=f"the format {format} is for Transformers, and this model has LSTM layers"):
        qkv.load(runs["seq2seq"]).export(tmp_path / "out", format)
    assert not (tmp_path / "out").exists()


def test_info_and_the_model_card_name_the_layers(runs: dict[str, Path], run_qkv: Any) -> None:
    shown = run_qkv(["info", str(runs["seq2seq"])]).out
    assert "1 LSTM + 1 LSTM layers · width 16" in shown
    assert "state per sequence" in shown
    assert "A model of LSTM layers, encoder-decoder" in (runs["seq2seq"] / "README.md").read_text()


def test_what_reads_blocks_is_refused_and_a_trace_has_states(runs: dict[str, Path]) -> None:
    model = qkv.load(runs["causal_lm"])
    found = model.trace(TEXT)
    assert list(found.values) == ["decoder.0.state", "logits"]
    for call in (
        lambda: logit_lens(model.network, found),
        lambda: logit_attribution(model.network, found),
        lambda: rollout(model.network, found),
        lambda: vocabulary_effect(model.network, 0, 0),
        lambda: model.look(TEXT),
        lambda: model.look_at_mask([TEXT]),
    ):
        with pytest.raises(
            UsageError, match=r"this model has GRU layers; trace its own sites instead: decoder.0.state"
        ):
            call()


def test_states_can_be_edited_and_the_attention_cannot(runs: dict[str, Path]) -> None:
    model = qkv.load(runs["seq2seq"])
    plain, edited = (
        model.trace(TEXT, target="THE", edits=edits)["logits"] for edits in ([], [zero_ablate("decoder.0.state")])
    )
    assert not torch.equal(plain, edited)
    with pytest.raises(UsageError, match="cannot be edited; edit the states"):
        model.trace(TEXT, target="THE", edits=[zero_ablate("decoder.0.cross_pattern")])
