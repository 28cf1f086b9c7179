"""A new head on a trained network is fitted before the first step: the fit, what it costs, and resuming after it."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fault_runs import Crash, files_of, go_on, log_of, notes_of, tiny
from torch import nn

import qkv
from qkv.data.objectives.loss import LossSums
from qkv.tasks.train import train
from qkv.train.head_fit import Clock, FeaturePass, OutputMatrix, choose_decay, mean_loss, minimise, standardise
from qkv.train.recipe.schema import Recipe, TrainSection
from qkv.train.watch import Watcher


def made_pass(output: OutputMatrix, features: torch.Tensor, classes: torch.Tensor) -> FeaturePass:
    """A batch of documents whose features are given."""
    batch = SimpleNamespace(label_counts=(0, len(classes)))

    def loss(run: Any) -> LossSums:
        return LossSums(documents=run.cross_entropy(run.document_outputs(), classes))

    labelled = SimpleNamespace(loss=loss)
    inputs = SimpleNamespace(ids=torch.zeros(1, 1), document_ids=None, positions=None)
    head = SimpleNamespace(transform=lambda x: x)
    parts = {"inputs": inputs, "labels": {}, "options": None, "batch": batch, "labelled": labelled, "head": head}
    run: Any = SimpleNamespace(**parts, pooled=lambda: features)
    made = FeaturePass(run, output)
    made.sums()
    return made


def sample(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Three noisy classes in eight dimensions of very different scales."""
    draw = torch.Generator().manual_seed(seed)
    classes = torch.randint(3, (count,), generator=draw)
    centres = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    x = centres[classes] + torch.randn(count, 8, generator=draw)
    return x * torch.logspace(-2, 2, 8) + 5, classes


def test_the_fit_is_the_minimum_of_the_convex_loss() -> None:
    """At the minimum, the gradient is 0; a control: at the start it is not."""
    output = OutputMatrix(nn.Linear(8, 3))
    passes = [made_pass(output, *sample(100, seed)) for seed in (1, 2)]
    standardise(passes, [], is_centred=True)

    def gradient() -> float:
        loss = mean_loss(passes) + 0.01 / 2 * output.weight.square().sum()
        return max(float(one.abs().max()) for one in torch.autograd.grad(loss, output.parameters))

    assert gradient() > 0.05
    minimise(output, passes, 0.01)
    assert gradient() < 0.003


def test_validation_chooses_the_weight_decay() -> None:
    """Labels that follow from the features need little decay, random ones much."""
    chosen = []
    for is_random in (False, True):
        output = OutputMatrix(nn.Linear(8, 3))
        train_pass, valid_pass = (made_pass(output, *sample(30 if is_random else 400, seed)) for seed in (1, 2))
        if is_random:
            train_pass, valid_pass = (
                made_pass(output, one.features, torch.arange(30) % 3) for one in (train_pass, valid_pass)
            )
        standardise([train_pass], [valid_pass], is_centred=True)
        found = choose_decay(output, [train_pass], [valid_pass], Clock(TrainSection()))
        assert found is not None
        chosen.append(found[0])
        assert float(mean_loss([valid_pass]).detach()) == pytest.approx(found[1]), "the best is kept, not the last"
    assert chosen[0] < chosen[1]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small trained encoder, and with files for all tasks."""
    folder = tmp_path_factory.mktemp("heads")
    train(tiny(folder, "base", "masked_lm", train={"steps": 2, "num_workers": 0}))
    return folder


def tuned(folder: Path, kind: str, name: str, **keys: Any) -> Recipe:
    """Fine-tuning of that encoder, in few steps."""
    model = {"from_": str(folder / "base"), "overrides": {}}
    keys = {
        "steps": 4,
        "eval_every": 2,
        "save_every": 2,
        "num_workers": 0,
        "final": "best",
        "eval_examples": 200,
        **keys,
    }
    return replace(tiny(folder, name, kind, model=model, train=keys))


@pytest.mark.parametrize("kind", ["classification", "tagging"])
def test_a_fitted_head_is_evaluated_first_and_the_run_never_ends_below_it(encoder: Path, kind: str) -> None:
    """Steps that destroy the network leave the fitted head; without the fit, step 0 is not evaluated."""
    recipe = tuned(encoder, kind, kind, lr=50.0, metric="loss", on_nonfinite="skip")
    trained = train(recipe)
    evaluations = log_of(recipe.run, "eval")
    assert [one["step"] for one in evaluations] == [0, 2, 4, 4]
    assert evaluations[0]["loss"] < evaluations[1]["loss"]
    assert trained.run_end.metrics["loss"] == pytest.approx(evaluations[0]["loss"], rel=1e-5)
    assert "the new head was fitted to the features of" in notes_of(recipe.run)
    unfitted = tuned(encoder, kind, f"{kind}-unfitted", fit_head=False, metric="loss")
    train(unfitted)
    before = log_of(unfitted.run, "eval")[0]
    assert before["step"] == 2
    assert "the new head was fitted" not in notes_of(unfitted.run)
    assert kind == "classification" or evaluations[0]["loss"] < before["loss"], (
        "two steps teach less; labels are random"
    )


class CrashAtStart(Watcher):
    """Ends a run after its head was fitted: before, in or after the first evaluation."""

    def __init__(self, event: str) -> None:
        setattr(self, event, self.crash)

    def crash(self, *values: object) -> None:
        raise Crash


@pytest.mark.parametrize("event", ["on_stage", "on_eval_progress", "on_evaluate", "on_step"])
def test_a_run_that_is_killed_around_the_fit_ends_with_the_same_weights(encoder: Path, event: str) -> None:
    whole = tuned(encoder, "classification", f"whole-{event}")
    train(whole)
    killed = replace(whole, run=str(encoder / f"killed-{event}"))
    with pytest.raises(Crash):
        train(killed, watch=CrashAtStart(event))
    go_on(killed.run)
    assert files_of(killed.run)["model.safetensors"] == files_of(whole.run)["model.safetensors"]
    assert log_of(killed.run, "model") == log_of(whole.run, "model")


def test_fine_tuning_of_the_same_task_starts_with_an_evaluation(encoder: Path) -> None:
    """There is no head to fit, but the weights at the start may be the best."""
    first = tuned(encoder, "classification", "first", steps=2)
    train(first)
    again = replace(
        tuned(encoder, "classification", "again", lr=50.0, on_nonfinite="skip", metric="loss"),
        model=replace(first.model, from_=first.run),
    )
    train(again)
    assert [one["step"] for one in log_of(again.run, "eval")] == [0, 2, 4, 4]
    ours, theirs = (qkv.load(run).network.state_dict() for run in (first.run, again.run))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_fit_counts_against_the_budget_and_the_average_of_weights_starts_at_it(encoder: Path) -> None:
    """In a budget that the fit spends, no step is taken, and the average that is evaluated is the fitted head."""
    losses = []
    for name, decay in (("average", 0.9), ("plain", 0.0)):
        trained = train(tuned(encoder, "tagging", name, steps=0, minutes=1e-5, ema_decay=decay))
        assert (trained.run_end.step, trained.run_end.reason) == (0, "minutes")
        losses.append(trained.run_end.metrics["loss"])
    assert losses[0] == losses[1]


def test_the_schedule_begins_after_the_fit(encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit that takes half of the time does not skip the warm-up."""
    monkeypatch.setattr(Clock, "seconds", lambda clock: 30.0)
    recipe = tuned(encoder, "classification", "slow", steps=0, epochs=1, minutes=1.0, warmup=0.5, lr=1e-3)
    train(recipe)
    assert log_of(recipe.run, "step")[0]["lr"] < 1e-4
