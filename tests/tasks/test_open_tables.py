"""Parts that are registered after qkv was imported are named in a recipe, trained with, and resumed."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from prepare_samples import sample_files, sample_recipe
from safetensors.torch import load_file
from tokenizers import Tokenizer as Backend
from torch import Tensor
from torch.optim import Optimizer

from qkv.data.readers import FORMATS, register_reader
from qkv.data.readers.formats import FORMAT_BY_EXTENSION
from qkv.data.records import FileLocation, Record
from qkv.errors import UsageError
from qkv.tasks.train import train
from qkv.text.kinds import TOKENIZER_KINDS, register_tokenizer
from qkv.text.train import TrainerOptions, train_char
from qkv.train.optim.optimizers import OptimizerSetup
from qkv.train.recipe.recipe_file import loads
from qkv.train.recipe.schema import Recipe, TrainSection
from qkv.train.tables import (
    OPTIMIZERS,
    SCHEDULES,
    TRACKERS,
    register_optimizer,
    register_schedule,
    register_tracker,
)
from qkv.train.watch import StepReport, Watcher


class SignMomentum(Optimizer):
    """Each weight moves by the sign of a momentum that starts at the first gradient, not at 0."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum"] = parameter.grad.clone()
                    state["step"] = torch.zeros(())
                state["step"] += 1
                state["momentum"].lerp_(parameter.grad, 1 - group["beta"])
                parameter.sub_(group["lr"] * (state["momentum"].sign() + group["weight_decay"] * parameter))


class CountsInInteger(SignMomentum):
    """Its step count is an integer, which a checkpoint does not have."""

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        super().step()
        for state in self.state.values():
            state["count"] = state.get("count", 0) + 1


class CountsInGroup(SignMomentum):
    """Its step count is in the parameter groups."""

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        super().step()
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1


def make_sign_momentum(setup: OptimizerSetup) -> Optimizer:
    return SignMomentum(setup.parameter_groups(), {"lr": setup.lr, "beta": setup.section.momentum})


def triangle(section: TrainSection, step: int, fraction_done: float) -> float:
    return 1.0 - fraction_done


def read_notes(group: Any, context: Any) -> Iterator[Record]:
    """The notes of a file, without their names."""
    for number, line in enumerate(group.paths[0].read_text(encoding="utf-8").splitlines(), start=1):
        context.problems.num_seen += 1
        if not line.startswith(">"):
            yield Record({"text": line}, FileLocation(str(group.paths[0]), number))


def train_characters(texts: Iterator[str], options: TrainerOptions) -> Backend:
    return train_char(texts, options)


SEEN: list[float] = []


class Recorder(Watcher):
    def __init__(self, folder: Path, recipe: Any) -> None:
        self.folder = folder

    def on_step(self, report: StepReport) -> None:
        SEEN.append(report.lr)


@pytest.fixture
def registered() -> Iterator[None]:
    """Register a part of each kind, and remove it at the end of the test."""
    register_optimizer("sign-momentum", make_sign_momentum)
    register_schedule("triangle", triangle)
    register_tracker("recorder", Recorder)
    register_tokenizer("characters", train_characters)
    register_reader("notes", read_notes, extensions=(".note", ".notes"))
    SEEN.clear()
    yield
    for table, name in (
        (OPTIMIZERS, "sign-momentum"),
        (SCHEDULES, "triangle"),
        (TRACKERS, "recorder"),
        (TOKENIZER_KINDS, "characters"),
        (FORMATS, "notes"),
    ):
        table.unregister(name)
    for extension in (".note", ".notes"):
        del FORMAT_BY_EXTENSION[extension]


RECIPE = """
[data]
train = "{folder}/book.notes"
cache_dir = "{folder}/cache"
max_length = 64
[tokenizer]
kind = "characters"
vocab_size = 40
[model]
width = 32
layers = 1
[objective]
kind = "causal_lm"
[train]
optimizer = "sign-momentum"
schedule = "triangle"
trackers = ["recorder"]
steps = 6
batch_tokens = 256
log_every = 1
save_every = 3
lr = 1e-3
"""


def test_a_recipe_names_parts_that_were_registered_later(tmp_path: Path, registered: None) -> None:
    draw = torch.Generator().manual_seed(0)
    rows = ["".join("ACDEFGHIKL"[int(i)] for i in torch.randint(10, (40,), generator=draw)) for _ in range(60)]
    (tmp_path / "book.notes").write_text("".join(f">{i}\n{row}\n" for i, row in enumerate(rows)))
    recipe = loads(RECIPE.format(folder=tmp_path))
    train(replace(recipe, run=str(tmp_path / "run")))
    assert len(SEEN) == 6
    assert sorted(SEEN, reverse=True) == SEEN, "the schedule falls from the first step on"
    assert load_file(tmp_path / "run/model.safetensors")


def weights(run: Path) -> dict[str, Tensor]:
    return dict(load_file(run / "model.safetensors"))


def test_a_registered_optimizer_is_resumed_bit_for_bit(tmp_path: Path, registered: None) -> None:
    sample_files(tmp_path)
    keys = {"optimizer": "sign-momentum", "schedule": "constant", "warmup": 0.0, "lr": 1e-3, "save_every": 3}
    whole = with_run(sample_recipe(tmp_path, "seq2seq", train={**keys, "steps": 6}), tmp_path / "whole")
    half = with_run(sample_recipe(tmp_path, "seq2seq", train={**keys, "steps": 3}), tmp_path / "parts")
    train(whole)
    train(half)
    at_half = weights(tmp_path / "parts")
    train(with_run(whole, tmp_path / "parts"))
    found, expected = weights(tmp_path / "parts"), weights(tmp_path / "whole")
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert not all(torch.equal(at_half[name], expected[name]) for name in expected)


def with_run(recipe: Recipe, folder: Path) -> Recipe:
    return replace(recipe, run=str(folder))


@pytest.mark.parametrize("optimizer", [CountsInInteger, CountsInGroup])
def test_an_optimizer_whose_state_would_be_lost_is_refused_before_the_run(
    optimizer: type[Optimizer], tmp_path: Path
) -> None:
    sample_files(tmp_path)
    register_optimizer("counts", lambda setup: optimizer(setup.parameter_groups(), {"lr": setup.lr, "beta": 0.9}))
    try:
        with pytest.raises(UsageError, match=r"'counts' cannot be resumed .* because it keeps count outside of"):
            train(sample_recipe(tmp_path, "seq2seq", train={"optimizer": "counts"}))
    finally:
        OPTIMIZERS.unregister("counts")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('train.optimizer = "sign-momentun"', "did you mean 'sign-momentum'?"),
        ('train.schedule = "triangel"', "did you mean 'triangle'?"),
        ('train.trackers = ["recoder"]', "did you mean 'recorder'?"),
        ('tokenizer.kind = "character"', "did you mean 'characters'?"),
        ('data.format = "nots"', "did you mean 'notes'?"),
    ],
)
def test_errors_suggest_and_list_registered_names(line: str, message: str, registered: None) -> None:
    with pytest.raises(UsageError) as error:
        loads(line, "r.toml")
    assert str(error.value).startswith("r.toml: ")
    assert message in str(error.value)
    assert message.split("'")[1] in str(error.value).split("; did")[0], "the list of names has it, too"


def test_extensions_of_readers_are_checked(registered: None) -> None:
    with pytest.raises(UsageError, match=r"files that end in \.csv have the format 'csv'; choose another extension"):
        register_reader("mine", read_notes, extensions=(".csv",))
    with pytest.raises(UsageError, match="'No' is not an extension of files"):
        register_reader("mine", read_notes, extensions=("No",))
    assert "mine" not in FORMATS
