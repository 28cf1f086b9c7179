"""Recurrent models learn: with attention, an encoder-decoder spells words that it never saw."""

import random
from pathlib import Path

import pytest

import qkv
from qkv.tasks.train import open_recipe, train

LETTERS = "abcdefgh"
RECIPE = """
run = "{folder}/run"
[data]
train = "{folder}/train.tsv"
cache_dir = "{folder}/cache"
max_length = 48
[tokenizer]
kind = "char"
vocab_size = 40
[model]
family = "{family}"
width = 64
layers = 1
dropout = 0.0
[train]
steps = 250
batch_tokens = 1024
lr = 1e-2
schedule = "linear"
eval_every = 250
eval_examples = 50
"""


def words(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return ["".join(draw.choice(LETTERS) for _ in range(draw.randint(2, 5))) for _ in range(count)]


UNSEEN = sorted(set(words(300, seed=2)) - set(words(1500, seed=1)))[:60]


@pytest.mark.parametrize("family", ["gru"])
def test_a_recurrent_model_learns_to_spell_words_that_it_never_saw(family: str, tmp_path: Path) -> None:
    lines = ["source\ttarget", *(f"{word}\t{word.upper()}" for word in words(1500, seed=1))]
    (tmp_path / "train.tsv").write_text("\n".join(lines) + "\n")
    (tmp_path / "recipe.toml").write_text(RECIPE.format(folder=tmp_path, family=family))
    end = train(open_recipe(tmp_path / "recipe.toml")).run_end
    model = qkv.load(end.folder)
    said = [result.text for result in model.generate_lines(UNSEEN, max_tokens=12)]
    right = sum(answer == word.upper() for answer, word in zip(said, UNSEEN, strict=True))
    assert right >= 0.8 * len(UNSEEN), f"{right} of {len(UNSEEN)}"
