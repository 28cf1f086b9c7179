"""A stop signal at each stage of a run, even while it is stuck in a library: the process ends, and says so at once."""

import hashlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fault_runs import newest, tiny, train, written

from qkv import cli
from qkv.data.cache.writer import _FieldWriter
from qkv.tasks.prepare.prepare import PreparedRun
from qkv.text import Tokenizer
from qkv.train.checkpoint.reader import Checkpoint
from qkv.train.evaluation import TimedMetrics, ValidationLoss
from qkv.train.recipe.schema import Recipe

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the runs are forked processes")

PLAIN = {"num_workers": 0, "steps": 4, "save_every": 2, "eval_every": 2}
MAX_SECONDS = 60  # of waiting, on a busy machine; without the signal, each stage would take longer


def stuck() -> None:
    """One long call in C, during which Python runs no signal handler."""
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)


def stop_during(owner: type, name: str, wait: Callable[[], None], recipe: Recipe, folder: Path) -> tuple[int, str]:
    """Train in another process, send SIGTERM while it is in the method, and return its exit code and its output."""
    source, target = os.pipe()
    pid = os.fork()
    if pid == 0:

        def method(*arguments: object, **options: object) -> None:
            os.write(target, b"!")
            wait()

        setattr(owner, name, method)
        sys.stdout = sys.stderr = open(folder / "output.txt", "w", buffering=1)  # noqa: SIM115 - until the process ends
        logging.getLogger().handlers.clear()  # those of pytest; without them, warnings go to stderr
        cli.exit_process(cli.run_command(["train", str(written(recipe))]))
    os.close(target)
    assert os.read(source, 1) == b"!", (folder / "output.txt").read_text()
    os.close(source)
    os.kill(pid, signal.SIGTERM)
    for _ in range(MAX_SECONDS * 20):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), (folder / "output.txt").read_text()
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return 0, "the process did not end"


@pytest.mark.parametrize(
    ("owner", "name"), [(Tokenizer, "train"), (_FieldWriter, "add"), (PreparedRun, "build_network")]
)
def test_before_the_first_step_there_is_nothing_to_save(owner: type, name: str, tmp_path: Path) -> None:
    code, output = stop_during(owner, name, stuck, tiny(tmp_path, train=PLAIN), tmp_path)
    assert (code, "SIGTERM: stopping; there is nothing new to save" in output) == (143, True), output


def test_while_a_checkpoint_is_read(tmp_path: Path) -> None:
    recipe = tiny(tmp_path, train={**PLAIN, "steps": 2})
    train(recipe)
    code, output = stop_during(Checkpoint, "read_tensor", stuck, tiny(tmp_path, train=PLAIN), tmp_path)
    assert (code, "SIGTERM: stopping; there is nothing new to save" in output) == (143, True), output
    assert newest(recipe.run).step == 2


@pytest.mark.parametrize(("owner", "name"), [(ValidationLoss, "plan"), (TimedMetrics, "evaluate")])
def test_an_evaluation_is_abandoned_and_the_step_before_it_is_saved(owner: type, name: str, tmp_path: Path) -> None:
    recipe = tiny(tmp_path, train={**PLAIN, "save_every": 100})
    code, output = stop_during(owner, name, lambda: time.sleep(600), recipe, tmp_path)
    assert (code, "saving a checkpoint" in output) == (143, True), output
    assert newest(recipe.run).step == 2
