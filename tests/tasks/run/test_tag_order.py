"""Tags are decoded in a possible order if those of the training data are."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from qkv.tasks.prepare.prepare import prepare
from qkv.tasks.run.tag_order import is_possible, most_probable_order
from qkv.train.recipe.recipe_file import loads

CLASSES = ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")


@pytest.mark.parametrize("seed", range(8))
def test_the_most_probable_order_is_the_best_of_all_possible_ones(seed: int) -> None:
    probabilities = np.random.default_rng(seed).dirichlet(np.full(len(CLASSES), 0.5), 5)

    def probability(tags: tuple[int, ...]) -> float:
        return float(np.log(probabilities[np.arange(5), list(tags)]).sum())

    sequences = itertools.product(range(len(CLASSES)), repeat=5)
    expected = max((one for one in sequences if is_possible([CLASSES[i] for i in one])), key=probability)
    assert most_probable_order(probabilities, CLASSES).tolist() == list(expected)


RECIPE = """
data = {{train = "{file}", cache_dir = "{folder}", valid_fraction = 0.0}}
tokenizer = {{kind = "hash"}}
model = {{width = 16, layers = 1}}
objective = {{kind = "tagging"}}
train = {{steps = 1, batch_tokens = 512}}
"""


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        (["B-PER", "I-PER", "O", "B-LOC"], True),
        (["I-PER", "I-PER", "O", "I-LOC"], False),  # IOB1: an I- tag begins an entity
        (["NOUN", "VERB", "DET", "NOUN"], False),
    ],
)
def test_the_training_data_decides(tags: list[str], expected: bool, tmp_path: Path) -> None:
    record = json.dumps({"tokens": ["a", "b", "c", "d"], "tags": tags})
    (tmp_path / "tags.jsonl").write_text(f"{record}\n" * 50)
    prepared = prepare(loads(RECIPE.format(file=tmp_path / "tags.jsonl", folder=tmp_path / "cache")))
    assert prepared.config.head.tags_in_order == expected
