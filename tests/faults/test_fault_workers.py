"""A loader worker is killed or hangs. The run ends with a clear error, and resuming it is exact."""

import multiprocessing
import os
import signal
from functools import partial
from pathlib import Path

import pytest
from fault_runs import changed, difference, go_on, log_of, newest, tiny, train

from qkv.data.load.loader import Loader
from qkv.data.load.workers import WorkerError
from qkv.train.watch import StepReport, Watcher

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")


class Attack(Watcher):
    """Sends a signal to the first worker after a step."""

    def __init__(self, number: int) -> None:
        self.number = number

    def on_step(self, report: StepReport) -> None:
        if report.step == 3:
            workers = [child for child in multiprocessing.active_children() if child.name == "data worker 0"]
            os.kill(workers[0].pid, self.number)


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (signal.SIGKILL, "ended by signal SIGKILL (out of memory?). Resume from the last checkpoint"),
        (signal.SIGSTOP, "has not responded for 0.5 s"),
    ],
    ids=["killed", "hung"],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_lost_worker_is_told_and_the_run_goes_on_exactly(
    workers: int, number: int, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qkv.train.setup.Loader", partial(Loader, timeout=0.5))
    recipe = tiny(tmp_path, "whole", train={"save_every": 1, "steps": 20, "num_workers": workers})
    train(recipe)
    lost = changed(recipe, "lost")
    with pytest.raises(WorkerError, match="data worker 0") as error:
        train(lost, watch=Attack(number))
    assert told in str(error.value)
    assert multiprocessing.active_children() == []
    step = newest(lost.run).step
    assert 3 <= step < 20
    assert not list(Path(lost.run).glob("checkpoints/.step-*")), "the checkpoint that was being written is complete"
    assert log_of(lost.run, "step")[-1]["step"] == step
    go_on(lost.run)
    assert difference(newest(recipe.run), newest(lost.run)) == ""
    assert log_of(recipe.run) == log_of(lost.run)
