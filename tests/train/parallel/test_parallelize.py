"""Many processes do what one does: the same weights after one step and after five, in every family and every mode.

Two processes, and four for the grid, are started once for the whole file and work through a plan of jobs; the tests
look at what they wrote.
"""

import ast
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import parallel_worker
import pytest
import torch
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st
from parallel_worker import CASES, FAMILIES, STEPS, STEPS_OF, FakeCheckpoint, Run, config_of, section_of
from safetensors.torch import load_file, save_file
from torch import Tensor

from qkv.errors import QkvError, UsageError
from qkv.models import build
from qkv.train.checkpoint.slices import TensorSlice, tiling_problem
from qkv.train.parallel.row_order import RowOrder
from qkv.train.parallel.shards import load_slices, local_slices
from qkv.train.parallel.tensor_parallel import check_divisible
from qkv.train.parallel.world import World, init_world

MODES = {"ddp": ("ddp", 1), "fsdp": ("fsdp", 1), "tensor": ("ddp", 2), "grid": ("fsdp", 2)}
CUT = ("fsdp", "tensor", "grid")
RUNS = [(mode, case) for mode, (_, tensor) in MODES.items() for case in CASES if tensor == 1 or case != "recurrent"]
"""Tensor parallelism splits blocks, which a recurrent model does not have."""
BEGUN = 2  # steps that one process takes before a world goes on
ONWARD = {"ddp": "seq2seq", "fsdp": "encoder", "tensor": "seq2seq", "grid": "decoder"}
Runs = tuple[Path, dict[str, Run]]

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch cannot talk to others")


def jobs_of(mode: str, folder: Path) -> list[dict[str, object]]:
    """Five steps of each model; three after two of one process; a start on the meta device; means for sums."""
    shard, tensor = MODES[mode]
    common = {"shard": shard, "tensor": tensor, "first": 0, "last": STEPS, "exact": False}
    jobs: list[dict[str, object]] = [
        {**common, "name": f"{mode}-{case}", "case": case, "last": STEPS_OF[case]} for one, case in RUNS if one == mode
    ]
    begun = {"exact": True, "first": BEGUN, "from": str(folder / f"begun-{ONWARD[mode]}.safetensors")}
    jobs.append({**common, **begun, "name": f"{mode}-on", "case": ONWARD[mode]})
    if mode != "ddp":
        jobs.append({**common, "name": f"{mode}-meta", "case": "decoder", "meta": True, "last": 1})
    if mode in ("ddp", "fsdp"):  # last: what it changes stays changed
        jobs.append({**common, "name": f"{mode}-mean", "case": "decoder", "mean": True})
    return jobs


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """The folder that the worlds wrote into, and what one process comes to, step for step the same."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "scale"  # one for all workers of xdist
    with FileLock(f"{folder}.lock"):
        return folder, run_all(folder)


def run_all(folder: Path) -> dict[str, Run]:
    """Run one process here, and the worlds in processes of their own unless another worker has done so."""
    folder.mkdir(exist_ok=True)
    is_done = (folder / "done").exists()
    alone: dict[str, Run] = {}
    for case in CASES:
        run = alone[case] = Run(case, World(), section_of("ddp", 1, exact=False))
        norms = []
        for number in range(STEPS_OF[case]):
            norms.append(run.step(number, micro_batches=1))
            if number == 0 and not is_done:
                save_file(run.whole(), folder / f"alone-{case}.first.safetensors")
        if not is_done:
            save_file(run.whole(), folder / f"alone-{case}.safetensors")
            (folder / f"alone-{case}.json").write_text(json.dumps({"norms": norms}))
    if is_done:
        return alone
    for case in FAMILIES:
        run = Run(case, World(), section_of("ddp", 1, exact=True))
        for number in range(STEPS):
            if number == BEGUN:
                save_file(run.whole(), folder / f"begun-{case}.safetensors")
            run.step(number, micro_batches=1)
        save_file(run.whole(), folder / f"exact-{case}.safetensors")
    worlds = []
    for size, modes in ((2, ("tensor", "ddp", "fsdp")), (4, ("grid",))):
        plan = folder / f"plan{size}.json"
        jobs = [job for mode in modes for job in jobs_of(mode, folder)]
        jobs.sort(key=lambda job: "mean" in job)
        plan.write_text(json.dumps({"folder": str(folder), "jobs": jobs}))
        line = [sys.executable, parallel_worker.__file__, str(plan)]
        call = f"launch({size}, {line[1:]!r}, command={line[:1]!r})"
        code = f"import sys; from qkv.train.parallel.launch import launch; sys.exit({call})"
        with (folder / f"world{size}.log").open("wb") as log:
            worlds.append(subprocess.Popen([sys.executable, "-c", code], stdout=log, stderr=log))
    for size, world in zip((2, 4), worlds, strict=True):
        assert world.wait(timeout=300) == 0, (folder / f"world{size}.log").read_text()[-3000:]
    (folder / "done").touch()
    return alone


def apart(one: dict[str, Tensor], other: dict[str, Tensor], prefix: str = "model.") -> float:
    """How far the weights are apart where they are farthest."""
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one if name.startswith(prefix))


@pytest.mark.parametrize(("mode", "case"), RUNS)
def test_one_step_and_five_give_the_weights_of_one_process(runs: Runs, mode: str, case: str) -> None:
    folder, _ = runs
    for when in (".first", ""):
        ours = load_file(folder / f"{mode}-{case}{when}.safetensors")
        assert apart(ours, load_file(folder / f"alone-{case}{when}.safetensors")) < 1e-6


@pytest.mark.parametrize(("mode", "case"), RUNS)
def test_clipping_sees_the_whole_gradient(runs: Runs, mode: str, case: str) -> None:
    folder, _ = runs
    alone, ours = (json.loads((folder / f"{name}-{case}.json").read_text())["norms"] for name in ("alone", mode))
    assert ours == pytest.approx(alone, rel=1e-5)


def test_clipping_acts_at_some_steps_and_not_at_others(runs: Runs) -> None:
    norms = [n for case in CASES for n in json.loads((runs[0] / f"alone-{case}.json").read_text())["norms"]]
    assert min(norms) < section_of("ddp", 1, True).max_grad_norm < max(norms)


@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_means_in_place_of_sums_would_be_noticed(runs: Runs, mode: str) -> None:
    folder, _ = runs
    ours = load_file(folder / f"{mode}-mean.safetensors")
    assert apart(ours, load_file(folder / "alone-decoder.safetensors")) > 1e-5
    norms = [json.loads((folder / f"{name}.json").read_text())["norms"] for name in (f"{mode}-mean", "alone-decoder")]
    assert norms[0][0] == pytest.approx(norms[1][0] / 2, rel=1e-4)


@pytest.mark.parametrize("mode", CUT)
def test_shards_made_on_the_meta_device_start_as_one_process_does(runs: Runs, mode: str) -> None:
    folder, _ = runs
    ours = load_file(folder / f"{mode}-meta.safetensors")
    assert apart(ours, load_file(folder / "alone-decoder.first.safetensors")) < 1e-6


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", FAMILIES)
def test_tied_weights_stay_tied(runs: Runs, mode: str, case: str) -> None:
    names = [f"{mode}-{case}", *([f"{mode}-meta"] if mode != "ddp" else [])]
    assert all(json.loads((runs[0] / f"{name}.json").read_text())["tied"] for name in names)


@pytest.mark.parametrize(("mode", "case"), ONWARD.items())
def test_a_run_of_one_process_goes_on_in_a_world(runs: Runs, mode: str, case: str) -> None:
    """In float64, weights and the optimizer's state: two steps alone and three together are five alone."""
    folder, _ = runs
    ours, alone = load_file(folder / f"{mode}-on.safetensors"), load_file(folder / f"exact-{case}.safetensors")
    assert apart(ours, alone) < 1e-12
    assert apart(ours, alone, "optimizer.") < 1e-12


def pieces_in(folder: Path, name: str) -> dict[str, list[TensorSlice]]:
    """What all processes of a world wrote, each on its own."""
    found = defaultdict(list)
    for path in sorted(folder.glob(f"{name}.pieces*.safetensors")):
        for key, values in load_file(path).items():
            tensor, offset, shape = key.split("|")
            found[tensor].append(TensorSlice(values, tuple(ast.literal_eval(offset)), tuple(ast.literal_eval(shape))))
    return found


@pytest.mark.parametrize(("mode", "case"), RUNS)
def test_pieces_of_a_world_fill_one_process(runs: Runs, mode: str, case: str) -> None:
    folder, alone = runs
    whole = {}
    for name, pieces in pieces_in(folder, f"{mode}-{case}").items():
        shape = pieces[0].shape
        assert tiling_problem(shape, [piece.bounds for piece in pieces]) == ""
        whole[name] = torch.full(shape, float("nan"))
        for piece in pieces:
            whole[name][tuple(slice(o, o + n) for o, n in zip(*piece.bounds, strict=True))] = piece.values
    run = Run(case, World(), section_of("ddp", 1, exact=False))
    live = run.tensors()
    assert live.keys() == whole.keys()
    for name, tensor in live.items():
        load_slices(tensor, FakeCheckpoint(whole), name, World())
    gathered = load_file(folder / f"{mode}-{case}.safetensors")
    assert all(torch.equal(tensor, gathered[name]) for name, tensor in run.tensors().items())
    assert apart(run.tensors(), alone[case].tensors()) < 1e-6


@pytest.mark.parametrize("mode", CUT)
def test_cut_tensors_are_written_in_parts(runs: Runs, mode: str) -> None:
    """A control for the test above: every process of a world that cuts tensors has something to write."""
    written = [path.stat().st_size for path in runs[0].glob(f"{mode}-decoder.pieces*.safetensors")]
    assert len(written) == (4 if mode == "grid" else 2)
    assert min(written) > 0.2 * max(written)


# ------------------------------------------------------------------------------------------------- in one process


def test_a_world_of_one_needs_nobody() -> None:
    world = World()
    assert (world.sum_scalar(2.5), world.data_rank, world.data_size) == (2.5, 0, 1)
    assert not world.is_sharded
    tensor = torch.rand(3, 2)
    (piece,) = local_slices("a", tensor, world)
    other = torch.zeros(3, 2)
    load_slices(other, {"a": piece.values}, "a", world)
    assert torch.equal(other, tensor)
    with pytest.raises(QkvError, match=r"a: the shape is \[3, 2\] in the checkpoint and \[4, 2\] in the run"):
        load_slices(torch.zeros(4, 2), {"a": tensor}, "a", world)


@pytest.mark.parametrize("most", [0.0, 0.1, 1e6])
def test_clip_is_torchs_own_in_one_process(most: float) -> None:
    torch.manual_seed(0)
    ours = [torch.nn.Parameter(torch.zeros(n, 3)) for n in (1, 4, 2)]
    theirs = [torch.nn.Parameter(torch.zeros(n, 3)) for n in (1, 4, 2)]
    for a, b in zip(ours[:2], theirs[:2], strict=True):  # the third has no gradient
        a.grad = torch.randn_like(a)
        b.grad = a.grad.clone()
    norm = World().clip_gradients(ours, most)
    assert norm.item() == pytest.approx(torch.nn.utils.clip_grad_norm_(theirs, most or float("inf")).item())
    assert all(torch.allclose(a.grad, b.grad) for a, b in zip(ours[:2], theirs[:2], strict=True))


def test_a_recurrent_model_is_not_split() -> None:
    with pytest.raises(UsageError, match=r"train.tensor_parallel = 2 splits Transformer blocks"):
        check_divisible(build(config_of("recurrent"), device="meta"), 2)


def test_matrices_that_do_not_divide_are_refused() -> None:
    network = build(config_of("decoder"), device="meta")  # 4 heads, 2 for keys and values, 24 hidden units
    check_divisible(network, 2)
    with pytest.raises(UsageError, match=r"train\.tensor_parallel = 4 .* decoder's kv_heads = 2"):
        check_divisible(network, 4)
    with pytest.raises(UsageError, match=r"train\.tensor_parallel = 3 .* decoder's heads = 4"):
        check_divisible(network, 3)
    network.decoder.blocks[1].attention.qkv = torch.nn.Sequential()
    with pytest.raises(UsageError, match=r"decoder\.blocks\.1\.attention\.qkv, which is a Sequential"):
        check_divisible(network, 2)


@pytest.mark.parametrize(
    ("size", "shard", "tensor", "said"),
    [
        (1, "ddp", 2, "needs several processes; this run has one"),
        (3, "fsdp", 2, "does not divide the number of processes, 3"),
        (4, "ddp", 2, 'needs train.parallel = "fsdp"'),
    ],
)
def test_impossible_grids_are_refused_before_anybody_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, size: int, shard: str, tensor: int, said: str
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", str(size))
    with pytest.raises(UsageError, match=said):
        init_world(section_of(shard, tensor, exact=False))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(1, 4), st.data())
def test_a_row_order_gives_each_share_its_part_of_everything(
    heads: list[int], shares: int, data: st.DataObject
) -> None:
    parts = [n * shares for n in heads]
    order = RowOrder.interleave(parts, shares)
    index = order.old_rows()
    assert sorted(index.tolist()) == list(range(sum(parts)))
    rows = torch.arange(sum(parts))
    for share, mine in enumerate(rows[index].chunk(shares)):
        assert mine.tolist() == torch.cat([part.chunk(shares)[share] for part in rows.split(parts)]).tolist()
    first = data.draw(st.integers(0, len(rows)))
    last = data.draw(st.integers(first, len(rows)))
    back = [old + i for new, old, count in order.old_ranges(first, last) for i in range(count)]
    assert back == index[first:last].tolist()
