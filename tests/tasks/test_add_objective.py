"""CONTRIBUTING.md, "Add an objective": its example is one file, and trains like every other objective."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prepare_samples import sample_files, sample_recipe

from qkv.data import InMemoryExamples
from qkv.data.objectives.table import OBJECTIVES
from qkv.data.stream.random_bits import EpochRng
from qkv.tasks.table import find_task
from qkv.tasks.train import train
from qkv.text import Tokenizer

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"


@pytest.fixture
def copying() -> Iterator[Any]:
    """The example's class, with its row in the table for the duration of a test."""
    section = PAGE.read_text(encoding="utf-8").split("## Add an objective\n")[1].split("\n## ")[0]
    (file,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    made: dict[str, Any] = {"__name__": "copying"}
    exec(file, made)
    yield made["Copying"]
    OBJECTIVES.unregister("copying")


def test_the_example_trains_to_a_model_with_a_task(copying: Any, tmp_path: Path) -> None:
    sample_files(tmp_path)
    trained = train(sample_recipe(tmp_path, "copying", file="book.txt", train={"device": "cpu"}))
    assert trained.run_end.step == 2
    assert trained.config.family == "seq2seq"
    assert find_task(trained.config).name == "translate"
    assert np.isfinite(trained.run_end.metrics["loss"])


def test_the_example_copies_every_token_once_and_knows_its_lengths(copying: Any) -> None:
    tokenizer = Tokenizer.train("byte", iter([]), 259, special_tokens=["pad", "bos", "eos"], template="eos")
    examples = InMemoryExamples([{"ids": list(range(10, 27))}, {"ids": [30]}])
    objective, rng = copying(examples, tokenizer, max_length=8), EpochRng(0)
    numbers = np.arange(objective.num_examples(rng))
    built = objective.build(numbers, rng)
    eos = tokenizer.special_tokens.eos
    assert objective.lengths(numbers, rng).tolist() == np.stack([built.lengths, built.source_lengths], 1).tolist()
    assert built.labels["tokens"].tolist() == built.source_ids.tolist()
    assert [token for token in built.labels["tokens"].tolist() if token != eos] == [*range(10, 27), 30]
