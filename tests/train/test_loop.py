"""The training loop: its end, its evaluations and checkpoints, and the final weights."""

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fault_runs import Crash, CrashAfter, changed, go_on, log_of, newest, notes_of, tiny, train
from torch import Tensor

from qkv import load
from qkv.blocks.block import Block
from qkv.data.load.loader import Loader
from qkv.errors import UsageError
from qkv.tasks.prepare.prepare import prepare
from qkv.tasks.train import TrainingResult
from qkv.train import loop, speed
from qkv.train.evaluation import ValidationLoss
from qkv.train.loss.training_module import TrainingModule
from qkv.train.parallel.world import World
from qkv.train.progress import Progress
from qkv.train.recipe.schema import Recipe
from qkv.train.run.folder import RunFolder
from qkv.train.speed import SpeedMeter

QUICK = {
    "num_workers": 0,
    "micro_batch_tokens": 0,
    "ema_decay": 0.0,
    "save_every": 1,
    "eval_every": 1,
    "keep_checkpoints": 20,
    "metric": "loss",
}


def quick(folder: Path, name: str = "run", **keys: Any) -> Recipe:
    return tiny(folder, name, train={**QUICK, **keys})


def kept(recipe: Recipe, step: int, prefix: str = "model.") -> dict[str, Tensor]:
    """The weights (or their averages) in a checkpoint."""
    checkpoint = RunFolder(recipe.run).checkpoints.open_step(step)
    names = [name for name in checkpoint.tensor_names() if name.startswith(prefix) and name != "average.updates"]
    return {name.removeprefix(prefix): checkpoint.read_tensor(name) for name in names}


def assert_weights(trained: TrainingResult, wanted: dict[str, Tensor]) -> None:
    """Check that the network and the run folder have these weights."""
    for network in (trained.network, load(trained.recipe.run).network):
        held = dict(network.named_parameters())
        assert held.keys() == wanted.keys()
        for name, values in wanted.items():
            assert torch.equal(held[name].detach(), values), name


@pytest.fixture
def losses(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make evaluations return these losses, one for each; after the last, repeat it."""

    def script(*values: float) -> None:
        def loss(self: ValidationLoss, max_pieces: int = 0) -> float:
            step = int(self.stepper.step_number) + 1
            return values[min(step, len(values)) - 1]

        monkeypatch.setattr(ValidationLoss, "mean", loss)

    return script


# ------------------------------------------------------------------------------------------------- when it ends


@pytest.mark.parametrize("steps", [1, 7])
def test_a_budget_in_steps(steps: int, tmp_path: Path) -> None:
    end = train(quick(tmp_path, steps=steps)).run_end
    assert (end.step, end.reason) == (steps, "steps")
    assert [line["step"] for line in log_of(end.folder, "step")] == list(range(1, steps + 1))


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("epochs", [1, 2])
def test_a_budget_in_epochs_is_every_example_so_many_times(epochs: int, layout: str, tmp_path: Path) -> None:
    keys = {**QUICK, "steps": 0, "epochs": epochs, "eval_every": 100, "save_every": 100, "batch_tokens": 1024}
    recipe = tiny(tmp_path, data={"layout": layout}, train=keys)
    batches = list(Loader(prepare(recipe).train_data, epochs=epochs))
    trained = train(recipe)
    assert (trained.run_end.step, trained.run_end.reason) == (len(batches), "epochs")
    lines = log_of(recipe.run, "step")
    assert lines[-1]["tokens"] == sum(batch.num_tokens for batch in batches)
    rates = [line["lr"] for line in lines]
    assert max(rates) > 0.8 * recipe.train.lr, "the rate rises, also within a single epoch"
    assert rates[-1] < 0.2 * recipe.train.lr, "and falls"


def test_a_budget_in_minutes_and_what_is_left_of_it_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def monotonic() -> float:
        nonlocal now
        now += 0.5
        return now

    monkeypatch.setattr("qkv.train.loop.time", SimpleNamespace(monotonic=monotonic))
    recipe = quick(tmp_path, steps=0, minutes=0.25, eval_every=100)
    end = train(recipe).run_end
    assert end.reason == "minutes"
    assert 15 <= end.seconds < 17
    assert 5 < end.step < 30
    with pytest.raises(Crash):
        train(changed(recipe, "crashed"), watch=CrashAfter(5))
    spent = newest(tmp_path / "crashed").state["progress"]["seconds"]
    again = go_on(tmp_path / "crashed").run_end
    assert spent > 1
    assert (again.reason, abs(again.step - end.step) <= 1) == ("minutes", True)


def test_what_comes_first_ends_it(tmp_path: Path) -> None:
    assert train(quick(tmp_path, "a", steps=3, epochs=9)).run_end.reason == "steps"
    assert train(quick(tmp_path, "b", steps=10**6, epochs=1, batch_tokens=2048)).run_end.reason == "epochs"


def test_patience_ends_a_run_that_does_not_get_better(tmp_path: Path, losses: Callable[..., None]) -> None:
    losses(3.0, 2.0, 2.5, 2.0, 1.0)
    recipe = quick(tmp_path, patience=2)
    end = train(recipe).run_end
    assert (end.step, end.reason) == (4, "patience")
    progress = newest(recipe.run).state["progress"]
    assert (progress["best_value"], progress["best_step"], progress["evals_since_best"]) == (2.0, 2, 2)


def test_patience_and_the_best_come_back_after_a_crash(tmp_path: Path, losses: Callable[..., None]) -> None:
    losses(3.0, 2.0, 2.5, 2.0, 1.0)
    recipe = quick(tmp_path, patience=2, final="best")
    with pytest.raises(Crash):
        train(recipe, watch=CrashAfter(4))
    assert newest(recipe.run).state["progress"]["evals_since_best"] == 1
    trained = go_on(recipe.run)
    assert (trained.run_end.step, trained.run_end.reason) == (4, "patience")
    assert_weights(trained, kept(recipe, 2))


def test_a_run_that_ran_out_of_patience_is_over(tmp_path: Path, losses: Callable[..., None]) -> None:
    losses(3.0, 2.0, 2.5, 2.0, 1.0)
    recipe = quick(tmp_path, patience=2)
    train(recipe)
    end = go_on(recipe.run).run_end
    assert (end.step, end.reason) == (4, "patience")
    assert go_on(recipe.run, "train.patience=3").run_end.step == 8, "with more of it, it goes on, and gets better once"


def test_nothing_to_train_is_refused(tmp_path: Path) -> None:
    recipe = tiny(tmp_path, model={"freeze": ("*",)}, train=QUICK)
    with pytest.raises(UsageError, match="there is nothing to train"):
        train(recipe)


# ---------------------------------------------------------------------------------------------- the last weights


@pytest.mark.parametrize(
    ("values", "keys", "step"),
    [
        ((1.0, 2.0), {"steps": 4}, 4),
        ((3.0, 1.0, 2.0, 1.5, 2.0), {"steps": 5, "final": "best"}, 2),
        ((3.0, 1.0, 2.0, 1.5, 2.0), {"steps": 5, "final": "best", "save_every": 3, "keep_checkpoints": 1}, 2),
        ((3.0, 2.0, 2.0, 2.0, 1.0), {"steps": 5, "final": "best", "eval_every": 2}, 5),
    ],
    ids=["last by default", "best, saved each time", "best, saved seldom", "best is last"],
)
def test_the_last_or_the_best_weights(
    tmp_path: Path, losses: Callable[..., None], values: tuple[float, ...], keys: dict[str, Any], step: int
) -> None:
    losses(*values)
    recipe = quick(tmp_path, **keys)
    assert_weights(train(recipe), kept(recipe, step))
    is_told = "the final weights are those of step 2, which has the best metric" in notes_of(recipe.run)
    assert is_told == (step == 2)


def test_a_best_checkpoint_that_is_damaged_costs_the_best_weights_only(
    tmp_path: Path, losses: Callable[..., None]
) -> None:
    losses(3.0, 1.0, 2.0, 2.0, 2.0)
    recipe = quick(tmp_path, steps=4, final="best")
    train(recipe)
    for file in (Path(recipe.run) / "checkpoints").glob("step-*2/*.safetensors"):
        file.write_bytes(file.read_bytes()[:-3])
    assert_weights(go_on(recipe.run, "train.steps=5"), kept(recipe, 5))
    assert "the best weights are lost" in notes_of(recipe.run)


def test_evaluation_takes_the_parts_of_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If training splits a batch into micro-batches to fit into memory, so must an evaluation."""
    seen: dict[bool, list[int]] = {True: [], False: []}
    forward = TrainingModule.forward

    def counted(self: TrainingModule, lesson: Any, *more: Any) -> Tensor:
        seen[self.training].append(lesson.batch.inputs.ids.numel())
        return forward(self, lesson, *more)

    monkeypatch.setattr(TrainingModule, "forward", counted)
    train(quick(tmp_path, steps=2, micro_batch_tokens=128))
    assert max(seen[False]) <= max(seen[True])


def test_the_best_of_averaged_weights_are_averages(tmp_path: Path, losses: Callable[..., None]) -> None:
    """The evaluation used the averages, so the best weights are the averages of that step."""
    losses(3.0, 1.0, 2.0)
    recipe = quick(tmp_path, steps=4, final="best", ema_decay=0.9)
    trained = train(recipe)
    assert_weights(trained, kept(recipe, 2, "average."))
    assert any(not torch.equal(kept(recipe, 2)[name], p) for name, p in trained.network.named_parameters())


def test_the_mean_of_the_last_checkpoints(tmp_path: Path) -> None:
    recipe = quick(tmp_path, steps=7, average_checkpoints=3, save_every=2, eval_every=100, keep_checkpoints=1)
    trained = train(recipe)
    each = [kept(recipe, step) for step in (4, 6, 7)]
    mean = {name: (sum(one[name].double() for one in each) / 3).float() for name in each[0]}
    assert_weights(trained, mean)
    assert "the average of 3 checkpoints, steps 4 to 7" in notes_of(recipe.run)


def test_the_moving_average(tmp_path: Path) -> None:
    recipe = quick(tmp_path, steps=5, ema_decay=0.9)
    trained = train(recipe)
    assert_weights(trained, kept(recipe, 5, "average."))
    weights = [kept(recipe, step) for step in range(1, 6)]
    average = {name: p.detach() for name, p in prepare(recipe).build_network().named_parameters()}
    for n, one in enumerate(weights, start=1):
        share = 1 - min(0.9, (1 + n) / (10 + n))
        average = {name: a + share * (one[name] - a) for name, a in average.items()}
    for name, p in trained.network.named_parameters():
        torch.testing.assert_close(p.detach(), average[name], rtol=1e-5, atol=1e-6)


# ----------------------------------------------------------------------------------------------- what is logged


def test_evaluations_are_in_the_log_with_the_tasks_metrics(tmp_path: Path) -> None:
    recipe = quick(tmp_path, steps=5, eval_every=2)
    end = train(recipe).run_end
    lines = log_of(recipe.run, "eval")
    assert [line["step"] for line in lines] == [2, 4, 5]
    assert all({"loss", "exact_match"} <= line.keys() for line in lines)
    assert end.metrics == {name: value for name, value in lines[-1].items() if name not in ("kind", "step", "final")}


def test_steps_are_logged_as_their_means(tmp_path: Path) -> None:
    one, four = quick(tmp_path, "one", steps=8), quick(tmp_path, "four", steps=8, log_every=4)
    train(one)
    train(four)
    each = [line["loss"] for line in log_of(one.run, "step")]
    means = [line["loss"] for line in log_of(four.run, "step")]
    assert means == pytest.approx([sum(each[:4]) / 4, sum(each[4:]) / 4], rel=1e-12)


def test_without_validation_a_run_still_ends_well(tmp_path: Path) -> None:
    recipe = tiny(tmp_path, data={"valid_fraction": 0.0}, train={**QUICK, "metric": ""})
    end = train(recipe).run_end
    assert end.metrics == {}
    assert "held-out" not in (Path(recipe.run) / "README.md").read_text()


def test_watching_changes_nothing(tmp_path: Path) -> None:
    """Logging, evaluating and saving do not change the weights."""
    often, seldom = quick(tmp_path, "often", steps=6), quick(tmp_path, "seldom", steps=6, log_every=5, eval_every=50)
    train(often)
    train(seldom)
    assert all(torch.equal(a, b) for a, b in zip(kept(often, 6).values(), kept(seldom, 6).values(), strict=True))


# ------------------------------------------------------------------------------------------------- the stream


def test_a_stream_in_bfloat16_is_what_blocks_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the run computes in float32, the stream stays in float32, and a note says so."""
    seen: list[set[torch.dtype]] = []
    plain = Block.forward

    def forward(self: Block, x: Tensor, *rest: Any) -> Tensor:
        if self.training:
            seen[-1].add(x.dtype)
        return plain(self, x, *rest)

    monkeypatch.setattr(Block, "forward", forward)
    for stream, precision in (("bfloat16", "bfloat16"), ("bfloat16", "auto"), ("auto", "bfloat16"), ("auto", "auto")):
        seen.append(set())
        recipe = quick(tmp_path, f"{stream}-{precision}", steps=2, residual_dtype=stream, precision=precision)
        train(recipe)
        assert ("train.residual_dtype" in notes_of(recipe.run)) == ((stream, precision) == ("bfloat16", "auto"))
    assert seen == [{torch.bfloat16}, {torch.float32}, {torch.bfloat16}, {torch.float32}]


@pytest.mark.parametrize(("device", "due"), [("cpu", [5, 10, 15]), ("cuda", [100, 105])])
def test_predictions_on_a_display_take_little_of_the_time(device: str, due: list[int]) -> None:
    """On a GPU the first one compiles kernels, so a short run shows none."""
    meter = SpeedMeter(Progress(), 0.0, World(device=torch.device(device)))
    shown = []
    for seconds in range(5, due[-1] + 5, 5):
        if meter.is_sample_due(float(seconds)):
            shown.append(seconds)
            meter.sample_duration = 0.1
    assert shown == due


def test_a_budget_of_computing_ends_the_run_however_long_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "cpu_seconds", lambda clock=itertools.count(): float(next(clock)))  # noqa: B008
    end = train(quick(tmp_path, steps=0, cpu_minutes=0.1)).run_end
    assert (end.reason, end.step) == ("cpu_minutes", 6), "the clock of this test has a second for each step"


def test_the_pace_is_that_of_training_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens per second leave out the time of evaluations."""
    clock = iter([100.0, 107.0])
    monkeypatch.setattr(speed, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    progress = Progress()
    pace = SpeedMeter(progress, 0.0, World())
    with pace.exclude_time():
        pass
    progress.seconds, pace.tokens = 10.0, 600
    assert pace.report(progress, 0.0, 0.0, 0.5, 0).tokens_per_second == 200, "600 in 10 − 7 seconds"
    monkeypatch.undo()
    left: list[int] = []
    usual = SpeedMeter.exclude_time
    monkeypatch.setattr(SpeedMeter, "exclude_time", lambda self: (left.append(1), usual(self))[1])
    recipe = quick(tmp_path, steps=3)
    train(recipe)
    assert len(left) == 2, "the last evaluation comes after the last report"
