"""One word of a recipe, `model.family`, trains a recurrent model in place of a Transformer, for every kind of task."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from prepare_samples import sample_files, sample_recipe

import qkv
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
    assert model.config.stack.recurrence == KINDS[kind]
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
    assert torch.equal(model.network(ids, ids), again.network(ids, ids))
