"""`qkv.train` trains a recipe and returns the same kind of object as `qkv.load`."""

import sys
from pathlib import Path

import pytest
import torch

import qkv
from qkv.errors import UsageError
from qkv.train.watch import StepReport, Watcher


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    words = [a + b + c for a in "abcd" for b in "abcd" for c in "abcd"]
    rows = [f"{word}\t{word[::-1]}" for word in words]
    path = tmp_path / "words.tsv"
    path.write_text("source\ttarget\n" + "\n".join(rows) + "\n", encoding="utf-8")
    recipe = tmp_path / "words.toml"
    recipe.write_text(
        f"""
        [data]
        train = "{path}"
        max_length = 32
        cache_dir = "{tmp_path / "cache"}"
        [tokenizer]
        kind = "char"
        vocab_size = 40
        [model]
        width = 16
        heads = 2
        ffn_width = 32
        layers = 1
        [train]
        steps = 3
        batch_tokens = 128
        log_every = 1
        num_threads = 1
        device = "cpu"
        """,
        encoding="utf-8",
    )
    return recipe


class Steps(Watcher):
    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_step(self, report: StepReport) -> None:
        self.losses.append(report.loss)


def test_a_recipe_becomes_a_model_that_runs_and_loads_again(lines: Path, tmp_path: Path) -> None:
    watch = Steps()
    model = qkv.train(lines, watcher=watch, **{"run": tmp_path / "run", "train.steps": 4, "train.betas": (0.9, 0.95)})
    assert len(watch.losses) == 4
    assert isinstance(model, qkv.Model)
    assert not model.network.training
    again = qkv.load(tmp_path / "run")
    assert again.config == model.config
    mine, theirs = model.network.state_dict(), again.network.state_dict()
    assert [name for name in mine if not torch.equal(mine[name], theirs[name])] == []
    assert again.run("abc") == model.run("abc")


def test_a_misspelt_override_is_refused(lines: Path) -> None:
    with pytest.raises(UsageError, match="steps"):
        qkv.train(lines, **{"train.stepz": 4})


def test_a_value_that_no_recipe_can_hold_is_refused_with_its_key(lines: Path) -> None:
    with pytest.raises(UsageError, match=r"train\.steps = None"):
        qkv.train(lines, **{"train.steps": None})


def test_a_watcher_that_is_none_is_refused_before_the_data_is_read() -> None:
    with pytest.raises(UsageError, match=r"watcher must be .*got 3 \(int\)"):
        qkv.train("no such recipe", watcher=3)  # type: ignore[arg-type]


def test_qkv_train_is_a_package_and_a_function() -> None:
    import qkv.train.recipe.schema

    assert callable(qkv.train)
    assert sys.modules["qkv.train"] is qkv.train  # type: ignore[comparison-overlap]
    assert qkv.train.recipe.schema.Recipe().run == ""  # type: ignore[attr-defined]
