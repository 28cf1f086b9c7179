"""An evaluation says whether the run was trained or validated on its files."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from qkv.tasks.evaluation_records import describe_use_in_training
from qkv.train.recipe.schema import DataSection, Recipe, TrainSection


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train", "more", "valid", "test"):
        Path(f"{name}.tsv").write_text(f"{name}\tx\n", encoding="utf-8")
    Path("other.tsv").write_text("other\tx\n", encoding="utf-8")  # of the same size as train.tsv
    Path("copies").mkdir()
    shutil.copy("train.tsv", "copies/renamed.tsv")


def make_recipe(final: Any = "last", **data: Any) -> Recipe:
    return Recipe(data=DataSection(cache_dir="cache", **data), train=TrainSection(final=final))


TRAINED = "the run was trained on"
VALIDATED = "the run was validated on"
HELD_OUT = ", except for the 5% that it held out"
CHOSEN = "the run chose its weights by the score on"


@pytest.mark.parametrize(
    ("recipe", "given", "expected"),
    [
        ({"train": "train.tsv"}, "train.tsv", f"{TRAINED} train.tsv{HELD_OUT}"),
        ({"train": "train.tsv", "valid": "valid.tsv"}, ("train.tsv",), f"{TRAINED} train.tsv"),
        ({"train": "train.tsv", "valid_fraction": 0.0}, "train.tsv", f"{TRAINED} train.tsv"),
        ({"train": ("train.tsv", "more.tsv"), "valid": "valid.tsv"}, "*.tsv", f"{TRAINED} more.tsv, train.tsv"),
        ({"train": "train.tsv", "valid": "valid.tsv"}, "copies", f"{TRAINED} renamed.tsv"),
        ({"train": "train.tsv", "valid": "valid.tsv"}, "valid.tsv", f"{VALIDATED} valid.tsv"),
        ({"train": "train.tsv", "valid": "valid.tsv", "final": "best"}, "valid.tsv", f"{CHOSEN} valid.tsv"),
        (
            {"train": {"source": "train.tsv", "target": "more.tsv"}},
            {"source": "more.tsv"},
            f"{TRAINED} more.tsv{HELD_OUT}",
        ),
        (
            {"mix": {"a": {"train": "train.tsv"}, "b": {"train": "more.tsv"}}},
            "more.tsv",
            f"{TRAINED} more.tsv{HELD_OUT}",
        ),
        ({"train": "train.tsv", "valid": "valid.tsv", "test": "test.tsv"}, "test.tsv", ""),
        ({"train": "train.tsv", "valid": "valid.tsv"}, "other.tsv", ""),
        ({"train": "gone.tsv", "valid": "valid.tsv"}, "valid.tsv", f"{VALIDATED} valid.tsv"),
        ({"train": "dates"}, "train.tsv", ""),
    ],
)
def test_files_that_the_run_has_used_are_named(recipe: dict[str, Any], given: Any, expected: str) -> None:
    found = describe_use_in_training(make_recipe(**recipe), given)
    assert found == (f"this is not a test score: {expected}" if expected else "")


@pytest.mark.parametrize(
    ("split", "expected"),
    [("train", f"{TRAINED} dates/train"), ("valid", f"{VALIDATED} dates/valid"), ("test", ""), ("", "")],
)
@pytest.mark.parametrize("given", ["dates", ["dates"], ("dates",)])  # the command line gives a list
def test_the_test_split_of_a_builtin_dataset_is_test_data(given: Any, split: str, expected: str) -> None:
    found = describe_use_in_training(make_recipe(train="dates"), given, split=split)
    assert found == (f"this is not a test score: {expected}" if expected else "")


def test_records_that_a_run_held_out_are_validation_data() -> None:
    found = describe_use_in_training(make_recipe(train="train.tsv"), "train.tsv", is_held_out=True)
    assert found == f"this is not a test score: {VALIDATED} these records"
