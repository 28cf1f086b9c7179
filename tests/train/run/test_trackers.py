"""Trackers, with stand-ins for the packages: what they are told, and that none of them can end a run."""

import logging
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest

from qkv.errors import QkvError
from qkv.train.run.trackers import TRACKERS, make_trackers
from qkv.train.watch import EvalReport, RunEnd, RunStart, Sample, StepReport

START = RunStart(run="runs/a", parameters=10, trainable=10, step=0, steps=100, minutes=0.0, device="cpu", notes=())
STEP = StepReport(
    step=10, loss=2.5, lr=1e-3, grad_norm=0.7, tokens=1000, tokens_per_second=500.0, seconds=2.0, fraction_done=0.1,
    seconds_left=18.0, epoch=0,
)  # fmt: skip
EVAL = EvalReport(
    step=10, seconds=2.0, metrics={"loss": 2.0, "exact": 0.25}, is_best=True, samples=[Sample("a", "b", "c")]
)
END = RunEnd(step=10, seconds=2.0, reason="steps")
TRAIN = {"loss": 2.5, "lr": 1e-3, "grad_norm": 0.7, "tokens": 1000.0, "tokens_per_second": 500.0, "epoch": 0.0}


class Calls(list):
    """A stand-in: whatever is called on it is written down."""

    def __getattr__(self, name):
        return lambda *args, **named: self.append((name, args, named))


@pytest.fixture
def calls(monkeypatch):
    calls = Calls()

    def opened(what):
        def init(*args, **named):
            calls.append((what, args, named))
            return calls

        return init

    tensorboard, wandb, trackio = (ModuleType(name) for name in ("tensorboard", "wandb", "trackio"))
    tensorboard.SummaryWriter = opened("SummaryWriter")
    wandb.init = opened("init")
    trackio.init, trackio.log, trackio.finish = opened("init"), calls.log, calls.finish
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", tensorboard)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "trackio", trackio)
    return calls


def whole_run(watcher, start=START) -> None:
    watcher.on_start(start)
    watcher.on_step(STEP)
    watcher.on_evaluate(EVAL)
    watcher.on_note(10, "a note")
    watcher.on_end(END)


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_numbers_by_step(name, calls, tmp_path):
    whole_run(make_trackers([name], tmp_path / "a", {"train": {"lr": 1e-3}})[0])
    assert [what for what, _, _ in calls] == ["init", "log", "log", "finish"]
    assert calls[1][1:] == (({f"train/{key}": value for key, value in TRAIN.items()},), {"step": 10})
    assert calls[2][1:] == (({"valid/loss": 2.0, "valid/exact": 0.25},), {"step": 10})
    told = calls[0][2]
    assert (told["project"], told["name"], told["resume"]) == ("qkv", "a", "allow")
    assert told["config"] == {"train": {"lr": 1e-3}}


def test_tensorboard(calls, tmp_path):
    whole_run(make_trackers(["tensorboard"], tmp_path / "a", {})[0])
    assert calls[0] == ("SummaryWriter", (str(tmp_path / "a" / "tensorboard"),), {"purge_step": None, "flush_secs": 10})
    scalars = {args[0]: args[1:] for what, args, _ in calls if what == "add_scalar"}
    assert scalars["train/loss"] == (2.5, 10)
    assert scalars["valid/exact"] == (0.25, 10)
    texts = [args for what, args, _ in calls if what == "add_text"]
    assert texts == [("sample", "a → b (expected c)", 10), ("note", "a note", 10)]
    assert [what for what, _, _ in calls if what in ("flush", "close")] == ["flush", "close"]


def test_tensorboard_takes_back_what_came_after_the_checkpoint(calls, tmp_path):
    whole_run(make_trackers(["tensorboard"], tmp_path, {})[0], replace(START, step=40))
    assert calls[0][2]["purge_step"] == 41


def test_a_continued_run_stays_one_run(calls, tmp_path):
    for _ in range(2):
        make_trackers(["wandb"], tmp_path / "a", {})[0].on_start(START)
    make_trackers(["wandb"], tmp_path / "b", {})[0].on_start(START)
    first, second, other = (named["id"] for _, _, named in calls)
    assert first == second != other


@pytest.mark.parametrize("name", sorted(TRACKERS))
def test_a_package_that_is_not_there_is_named_with_its_extra(name, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, TRACKERS[name].package, None)
    with pytest.raises(QkvError, match=rf'pip install "qkv\[{name}\]"'):
        make_trackers([name], tmp_path, {})


def test_one_that_cannot_begin_is_an_error(monkeypatch, tmp_path):
    def init(**_):
        raise RuntimeError("no key")

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    watcher = make_trackers(["wandb"], tmp_path, {})[0]
    with pytest.raises(QkvError, match=r"wandb could not start: no key. To train without it, set train.trackers=\[\]"):
        watcher.on_start(START)


def test_one_that_fails_on_the_way_is_left_out_and_said_once(monkeypatch, tmp_path, caplog):
    tried = []

    def failing(*_, **__):
        tried.append(1)
        raise ConnectionError("the network is gone")

    run = SimpleNamespace(log=failing, finish=failing)
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **_: run))
    with caplog.at_level(logging.WARNING, logger="qkv"):
        whole_run(make_trackers(["wandb"], tmp_path, {})[0])
    assert len(tried) == 1
    assert [record.getMessage() for record in caplog.records] == [
        "wandb failed and is not used any more: the network is gone"
    ]
