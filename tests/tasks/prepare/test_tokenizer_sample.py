"""The tokenizer of a large corpus is trained on a sample that is stated, seeded and spread over all of the text."""

import gzip
from pathlib import Path

import pytest

from qkv.tasks.prepare import tokenizer as module
from qkv.tasks.prepare.sources import open_sources
from qkv.tasks.prepare.tokenizer import estimate_chars, load_or_train_tokenizer, sample_fractions, training_texts
from qkv.train.recipe.recipe_file import loads

NUM_LINES = 4000


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rows = "".join(f'{{"text": "line number {n} of many"}}\n' for n in range(NUM_LINES))
    (tmp_path / "a.jsonl").write_text(rows)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(rows.encode()))
    monkeypatch.setattr(module, "PROBE_CHARS", 5000)
    monkeypatch.setattr(module, "MAX_TRAINING_CHARS", 20_000)

    def make(name: str = "a.jsonl"):
        data = f'[data]\ntrain = "{tmp_path / name}"\nvalid_fraction = 0.0\n'
        return loads(f'{data}[objective]\nkind = "causal_lm"\n[train]\nsteps = 1\n[tokenizer]\nvocab_size = 300\n')

    return make


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_the_size_of_the_text_is_estimated(recipe, name):
    (source,) = open_sources(recipe(name)).train.values()
    exact = sum(map(len, training_texts([source], [1.0])))
    assert estimate_chars(source) == pytest.approx(exact, rel=0.3)
    assert sample_fractions([source])[0] == pytest.approx(20_000 / exact, rel=0.3)


def test_a_sample_is_spread_over_the_text_and_always_the_same(recipe):
    (source,) = open_sources(recipe()).train.values()
    sample = list(training_texts([source], [0.1]))
    assert sample == list(training_texts([source], [0.1]))
    numbers = [int(text.split()[2]) for text in sample]
    assert len(numbers) == pytest.approx(NUM_LINES / 10, rel=0.3)
    assert sum(number < NUM_LINES // 2 for number in numbers) == pytest.approx(len(numbers) / 2, rel=0.3)


def test_the_sample_is_stated_each_time_the_tokenizer_is_used(recipe, tmp_path, monkeypatch):
    sources = list(open_sources(recipe()).train.values())
    notes = [load_or_train_tokenizer(recipe(), sources, tmp_path / "cache")[1] for _ in range(2)]
    assert notes[0] == notes[1]
    assert "trained on a sample of " in notes[0]
    assert "% of the text (seed 0)" in notes[0]
    monkeypatch.setattr(module, "MAX_TRAINING_CHARS", 10**9)
    assert load_or_train_tokenizer(recipe(), sources, tmp_path / "other")[1].endswith("trained on the data")
