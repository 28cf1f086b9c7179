"""A recipe learns, and what it learns is to read: after training, another source gives another answer (trap 28)."""

import copy
import random
from pathlib import Path

import pytest
import torch

import qkv
from qkv.tasks.train import open_recipe, train

LETTERS = "abcdefgh"


def words(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return ["".join(draw.choice(LETTERS) for _ in range(draw.randint(2, 5))) for _ in range(count)]


UNSEEN = sorted(set(words(300, seed=2)) - set(words(1500, seed=1)))[:60]

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
width = 48
heads = 4
layers = 1
ffn_width = 96
[train]
steps = 250
batch_tokens = 1024
lr = 6e-3
schedule = "linear"
eval_every = 250
eval_examples = 50
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("learns")
    lines = ["source\ttarget", *(f"{word}\t{word.upper()}" for word in words(1500, seed=1))]
    (folder / "train.tsv").write_text("\n".join(lines) + "\n")
    (folder / "recipe.toml").write_text(RECIPE.format(folder=folder))
    end = train(open_recipe(folder / "recipe.toml")).run_end
    assert end.metrics["exact_match"] > 0.8
    return Path(end.folder)


def answers(model: qkv.Model) -> list[str]:
    return [result.text for result in model.generate_lines(UNSEEN, max_tokens=12)]


def reads_its_source(model: qkv.Model) -> float:
    """Of pairs of different sources, the share with different answers: 0 for a model that does not look."""
    said = answers(model)
    pairs = [(one, other) for place, one in enumerate(said) for other in said[:place]]
    return sum(one != other for one, other in pairs) / len(pairs)


def test_a_recipe_learns_to_spell_words_that_it_never_saw(trained: Path) -> None:
    said = answers(qkv.load(trained))
    right = sum(answer == word.upper() for answer, word in zip(said, UNSEEN, strict=True))
    assert right >= 0.8 * len(UNSEEN), f"{right} of {len(UNSEEN)}"


def test_another_source_gives_another_answer(trained: Path) -> None:
    assert reads_its_source(qkv.load(trained)) > 0.95


def test_a_model_that_ignores_its_source_is_found_out(trained: Path) -> None:
    """The same model with what it takes from its source set to nothing, as after a training that went wrong."""
    model = qkv.load(trained)
    blind = copy.deepcopy(model.network)
    with torch.no_grad():
        for block in blind.decoder.blocks:
            for parameter in block.cross.out.parameters():
                parameter.zero_()
    assert reads_its_source(qkv.Model(model.config, blind, model.tokenizer)) == 0.0
