"""The size of a micro-batch follows from the free memory, and a run that cannot fit is refused before it starts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fault_runs import Crash, CrashAfter, changed, difference, go_on, newest, notes_of, tiny, train

from qkv.errors import UsageError
from qkv.tasks import train as training
from qkv.tasks.describe import describe
from qkv.tasks.prepare.memory import USABLE_FRACTION, choose_micro_batch, estimate_memory, min_weight_bytes
from qkv.tasks.prepare.prepare import PreparedRun, prepare


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedRun:
    recipe = tiny(tmp_path_factory.mktemp("memory"), train={"micro_batch_tokens": "auto", "batch_tokens": 2048})
    return prepare(recipe)


def chosen(prepared: PreparedRun, free: float | None, keys: dict[str, Any] | None = None, **options: Any) -> Any:
    recipe = replace(prepared.recipe, train=replace(prepared.recipe.train, **(keys or {})))
    size = None if free is None else int(free)
    return choose_micro_batch(recipe, prepared.config, prepared.train_data, size, **options)


def needed(prepared: PreparedRun, tokens: int, **keys: Any) -> float:
    """The free memory that a micro-batch of so many tokens just fits into."""
    recipe = replace(prepared.recipe, train=replace(prepared.recipe.train, micro_batch_tokens=tokens, **keys))
    return estimate_memory(recipe, prepared.config, prepared.train_data.max_lengths).total / USABLE_FRACTION + 2


def test_a_batch_that_fits_is_not_split(prepared: PreparedRun) -> None:
    assert chosen(prepared, needed(prepared, 2048)) == (0, "")
    assert chosen(prepared, None) == (0, ""), "a device that does not say how much is free"


def test_a_micro_batch_is_the_largest_half_of_a_half_that_fits(prepared: PreparedRun) -> None:
    sequence = sum(prepared.train_data.max_lengths)
    whole = 2048 // sequence * sequence
    half, quarter = whole // 2 // sequence * sequence, whole // 4 // sequence * sequence
    tokens, note = chosen(prepared, needed(prepared, half))
    assert tokens == half
    assert "GB are free: it is computed in micro-batches of" in note
    assert chosen(prepared, needed(prepared, quarter))[0] == quarter
    assert chosen(prepared, needed(prepared, sequence))[0] == sequence


def test_what_does_not_fit_at_all_is_refused_with_a_change_that_helps(prepared: PreparedRun) -> None:
    with pytest.raises(
        UsageError, match=r"only 0\.0 GB are free, so the system would end the run\. Lower data\.max_len"
    ):
        chosen(prepared, 1000)
    with pytest.raises(UsageError, match=r"Lower train\.batch_tokens"):
        chosen(prepared, 1000, can_split=False)
    with pytest.raises(UsageError, match=r"micro_batch_tokens = 1024: a step needs .* Set .* = \"auto\", which takes"):
        chosen(prepared, needed(prepared, sum(prepared.train_data.max_lengths)), {"micro_batch_tokens": 1024})
    stacks = {side: replace(getattr(prepared.config, side), layers=12) for side in ("encoder", "decoder")}
    deep = replace(prepared, config=replace(prepared.config, **stacks))
    with pytest.raises(UsageError, match=r"Set train\.gradient_checkpointing = true"):
        chosen(deep, needed(deep, 2048, gradient_checkpointing=True), can_split=False)


def test_weights_that_do_not_fit_are_refused_before_the_data_is_tokenised(tmp_path: Path) -> None:
    recipe = tiny(tmp_path)
    with pytest.raises(UsageError, match=r"GB of memory for weights, gradients and optimizer"):
        prepare(recipe, lambda stage, done, total: pytest.fail(stage) if "tokenising" in stage else None, free_memory=9)


def test_a_model_of_thousands_of_layers_is_refused_without_building_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qkv.tasks.prepare.memory.build", lambda *_, **__: pytest.fail("the network is built"))
    recipe = tiny(tmp_path, model={"overrides": {"width": 65_536, "layers": 4096}})
    with pytest.raises(UsageError, match=r"needs more than [\d,.]+ GB of memory for weights, .* 24\.0 GB are free"):
        prepare(recipe, free_memory=24 * 10**9)


@pytest.mark.parametrize("family", ["", "rnn", "gru", "lstm"])
def test_the_lower_bound_of_the_weights_is_one(tmp_path: Path, family: str) -> None:
    prepared = prepare(tiny(tmp_path, model={"family": family, "overrides": {"width": 64, "layers": 3}}))
    weights = estimate_memory(prepared.recipe, prepared.config, (1,)).weights
    assert 0.1 * weights < min_weight_bytes(prepared.config) <= weights


def test_the_choice_is_kept_in_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that starts where little is free, and is resumed where much is free, takes the same steps."""
    recipe = tiny(tmp_path, "whole", train={"micro_batch_tokens": "auto"})
    prepared = prepare(recipe)
    little = int(needed(prepared, sum(prepared.train_data.max_lengths)))
    monkeypatch.setattr(training, "free_memory", lambda device: little)
    train(recipe)
    assert "it is computed in micro-batches of" in notes_of(recipe.run)
    assert newest(recipe.run).state["num_micro_batches"] > 1
    resumed = changed(recipe, "resumed")
    with pytest.raises(Crash):
        train(resumed, watch=CrashAfter(7))
    monkeypatch.setattr(training, "free_memory", lambda device: 10**12)
    go_on(resumed.run)
    assert difference(newest(recipe.run), newest(resumed.run)) == ""


def test_a_dry_run_says_that_a_machine_is_too_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.tasks.describe.free_memory", lambda device: 1000)
    recipe = tiny(tmp_path, train={"micro_batch_tokens": "auto"})
    assert "this machine cannot train the recipe: a step needs about" in describe(recipe).notes[-1]
