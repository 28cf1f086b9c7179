"""Sharded runs from end to end, two processes: what they hold, what they learn, the time they tell, and when they stop.

Both processes are started once and work through a plan of runs (`parallel_trainer.py`); the tests check what they left.
"""

import json
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import parallel_trainer
import pytest
import torch
import torch.distributed as dist
from fault_runs import changed, log_of, newest, tiny, train, written
from synthetic_data import documents, tokenizer

from qkv import load
from qkv.blocks import HeadConfig, StackConfig
from qkv.data.objectives.causal_lm import CausalLMObjective
from qkv.data.stream.sequences import SequenceStream
from qkv.models import Config, Network
from qkv.tasks.prepare.prepare import prepare
from qkv.train.parallel.world import World
from qkv.train.recipe.schema import TrainSection
from qkv.train.run.folder import RunFolder
from qkv.train.setup import num_micro_batches

MODES = {"whole": ("ddp", 1), "fsdp": ("fsdp", 1), "tensor": ("ddp", 2), "padded": ("fsdp", 1)}
PLAIN = {"overrides": {"width": 16, "layers": 1, "heads": 2, "dropout": 0.0}}
STEPS = 6
HALF = 3
MICRO = 128
WITHIN = 120
"""Seconds after which runs that wait for each other are given up."""

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this torch cannot talk to others")


class Runs:
    """The runs of two processes, and the same by one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        keys = {"steps": STEPS, "batch_tokens": 768, "eval_every": HALF, "save_every": HALF, "num_workers": 0}
        keys |= {"schedule": "constant", "warmup": 0.0}  # so that a run of three steps begins as one of six
        packed = tiny(folder, "alone", model=PLAIN, train=keys)
        short = {"layout": "padded", "max_length": 64, "max_source_length": 64}
        padded = tiny(folder, "alone-padded", model=PLAIN, data=short, train={**keys, "micro_batch_tokens": MICRO})
        self.recipes = {name: padded if name == "padded" else packed for name in (*MODES, "on")}
        self.alone = {recipe.run: train(recipe).network for recipe in (packed, padded)}
        train(changed(packed, "on", steps=HALF))
        endless = changed(packed, "asked", steps=10**6, metric="loss")
        jobs = [self.job("on", folder / "on", "fsdp", 1, [f"train.steps={STEPS}"])]
        jobs += [self.job(name, written(changed(self.recipes[name], name)), *MODES[name]) for name in MODES]
        jobs.append(self.job("asked", written(endless), "fsdp", 1, asked=True))  # last: it ends the processes
        plan = folder / "plan.json"
        plan.write_text(json.dumps({"folder": str(folder), "jobs": jobs}))
        line = [sys.executable, parallel_trainer.__file__, str(plan)]
        code = f"import sys, qkv.train.parallel.launch as l; sys.exit(l.launch(2, {line[1:]!r}, command={line[:1]!r}))"
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            self.said, _ = process.communicate(timeout=WITHIN)
        except subprocess.TimeoutExpired:
            process.terminate()  # the launcher ends its own
            self.said, _ = process.communicate(timeout=30)
        self.code = process.returncode

    def job(
        self, name: str, recipe: Path, shard: str, tensor: int, changes: list[str] | None = None, asked: bool = False
    ) -> dict[str, Any]:
        common = [f"train.parallel={shard}", f"train.tensor_parallel={tensor}", *(changes or [])]
        return {
            "name": name,
            "recipe": str(recipe),
            "shard": shard,
            "tensor": tensor,
            "changes": common,
            "asked": asked,
        }

    def notes(self, name: str) -> list[dict[str, Any]]:
        """What both processes noted about a run."""
        paths = [self.folder / f"{name}.{rank}.json" for rank in (0, 1)]
        assert all(path.exists() for path in paths), f"{name} did not end:\n{self.said[-3000:]}"
        return [json.loads(path.read_text()) for path in paths]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("sharded"))


def numbers(network: Network) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize("name", ["fsdp", "tensor", "padded"])
def test_no_process_holds_the_whole_network_and_the_first_alone_draws_it(runs: Runs, name: str) -> None:
    first, second = runs.notes(name)
    assert (first["held"], second["held"]) == (0, 0), "before it is cut"
    assert (first["made"], second["made"]) == (1, 0)


def test_whole_copies_are_whole(runs: Runs) -> None:
    """A control: what is counted above is there to be counted."""
    whole = numbers(runs.alone[runs.recipes["whole"].run])
    assert [(note["held"], note["made"]) for note in runs.notes("whole")] == [(whole, 1)] * 2


def test_a_sharded_run_that_goes_on_draws_nothing(runs: Runs) -> None:
    assert [(note["held"], note["made"]) for note in runs.notes("on")] == [(0, 0)] * 2


@pytest.mark.parametrize("name", [*MODES, "on"])
def test_two_processes_learn_what_one_learns(runs: Runs, name: str) -> None:
    """The losses of every step, the last weights (averages, here) and the model folder. "on" was begun by one."""
    runs.notes(name)
    alone, ours = runs.recipes[name].run, runs.folder / name
    wanted, found = log_of(alone, "step"), log_of(ours, "step")
    assert [line["tokens"] for line in found] == [line["tokens"] for line in wanted]
    assert [line["loss"] for line in found] == pytest.approx([line["loss"] for line in wanted], abs=1e-5)
    last, left = newest(ours), dict(load(ours).network.named_parameters())
    for part, values in runs.alone[alone].named_parameters():
        for weights in (last.read_tensor(f"average.{part}"), left[part].detach()):
            torch.testing.assert_close(weights, values.detach(), rtol=1e-4, atol=1e-5)


def test_padded_rows_do_not_divide_evenly_here(runs: Runs) -> None:
    """A control: had one process as many rows as the other at each step, neither could wait for the other in vain."""
    rows = prepare(runs.recipes["padded"]).train_data
    counts = [step.num_sequences for step, _ in islice(rows.batch_plans(), STEPS)]
    assert any(count % 2 and count // 2 < rows.num_micro_batches(MICRO, 2) for count in counts)


@pytest.mark.parametrize("name", MODES)
def test_the_clock_is_that_of_after_the_step(runs: Runs, name: str) -> None:
    """Steps take one process a second and the other one two: 1.5 s together."""
    (first, _), lines = runs.notes(name), RunFolder(runs.folder / name).log_records()
    assert first["end"]["seconds"] == 1.5 * STEPS
    assert [line["seconds"] for line in lines if line["kind"] == "step"] == [1.5 * (n + 1) for n in range(STEPS)]


def test_a_request_to_stop_that_comes_in_a_long_evaluation_costs_no_work(runs: Runs) -> None:
    assert [note["code"] for note in runs.notes("asked")] == [143, 143], runs.said[-3000:]
    assert runs.code == 143
    state = newest(runs.folder / "asked").state["progress"]
    assert (state["step"], state["pending_eval"]) == (3, True), "the step of the evaluation, which is made up for"


@pytest.mark.parametrize(
    ("micro", "ffn_width", "parts"),
    [(0, 64, 1), ("auto", 64, 1), ("auto", 1024, 2), (1500, 64, 4), (2500, 64, 2), (4000, 64, 1)],
)
def test_a_micro_batch_is_never_larger_than_asked_for(micro: int | str, ffn_width: int, parts: int) -> None:
    """Four rows of 1,000 places: three parts, as 4,000 / 1,500 would have it, would be of 1, 2 and 1 rows.

    "auto" on a CPU takes as many tokens as fit into the cache, which depends on the widest layer.
    """
    stack = StackConfig(vocab_size=30, width=16, layers=1, heads=2, ffn_width=ffn_width)
    config = Config(decoder=stack, head=HeadConfig(kind="lm", outputs=30))
    rows = SequenceStream(CausalLMObjective(documents([999] * 9), tokenizer(), max_length=1000), batch_tokens=4000)
    assert num_micro_batches(TrainSection(micro_batch_tokens=micro), rows, World(), config) == parts  # type: ignore[arg-type]
