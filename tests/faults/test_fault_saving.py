"""Saving in a process that is killed at every phase and at random moments, and on a full disk."""

import errno
import json
import os
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest
import torch

from qkv.errors import QkvError
from qkv.train.checkpoint.folder import SAVE_PHASES, CheckpointFolder
from qkv.train.checkpoint.slices import TensorSlice

HERE = Path(__file__).parent
KILLS = 2 * len(SAVE_PHASES)  # one at each phase, and as many at any moment

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals and limits as POSIX has them")


def python(*arguments: object) -> str:
    """What a new Python writes; it must end well."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# ---------------------------------------------------------------- killed


@pytest.fixture(scope="module")
def outcomes() -> list[dict]:
    """One run that is killed again and again, as `kill_many.py` does it."""
    return json.loads(python(HERE / "kill_many.py", KILLS, "--json"))


def test_after_each_kill_the_newest_complete_checkpoint_loads_bit_by_bit(outcomes):
    assert len(outcomes) == KILLS >= 20
    assert [outcome for outcome in outcomes if outcome["problem"]] == []


def test_every_phase_of_saving_was_killed(outcomes):
    killed = Counter(outcome["where"] for outcome in outcomes)
    assert {*SAVE_PHASES, "any moment"} == killed.keys()


def test_kills_fell_into_the_middle_of_a_save(outcomes):
    """A control: had nothing been half-made, the kills would have proved nothing."""
    half_made = [outcome for outcome in outcomes if outcome["left"]]
    assert {outcome["where"] for outcome in half_made} >= {"half", "shard", "part", "manifest", "aside", "rename"}
    assert any(outcome["ranks"] == 2 for outcome in outcomes)


# ---------------------------------------------------------------- full


def held(value: float, count: int = 1000) -> dict[str, list[TensorSlice]]:
    return {"a": [TensorSlice.whole(torch.full((count,), value))]}


@pytest.mark.parametrize("phase", SAVE_PHASES[: SAVE_PHASES.index("renamed")])
@pytest.mark.parametrize("step", [10, 20], ids=["over an older one", "beside an older one"])
def test_a_disk_that_is_full_at_any_phase_leaves_the_older_whole_and_nothing_else(tmp_path, phase, step):
    def full(name: str) -> None:
        if name == phase:
            raise OSError(errno.ENOSPC, "No space left on device")

    CheckpointFolder(tmp_path, max_to_keep=1).save(10, held(1.0), {}, wait=True)
    checkpoints = CheckpointFolder(tmp_path, max_to_keep=1, on_phase=full)
    checkpoints.save(step, held(2.0), {})
    if phase == "aside" and step != 10:  # nothing is put aside, so the disk is not full when it matters
        checkpoints.wait_for_save()
        assert [path.name for path in tmp_path.iterdir()] == ["step-000000020"]
        assert torch.equal(checkpoints.newest().read_tensor("a"), torch.full((1000,), 2.0))
        return
    with pytest.raises(QkvError) as told:
        checkpoints.wait_for_save()
    assert f"{tmp_path}: the checkpoint of step {step} could not be written (No space left on device)" in str(
        told.value
    )
    assert "It needs 4.0 kB and " in str(told.value)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000010"]
    assert torch.equal(checkpoints.newest().read_tensor("a"), torch.full((1000,), 1.0))


LIMITED = """
    import json, resource, signal, sys
    from pathlib import Path
    import torch
    from qkv.errors import QkvError
    from qkv.train.checkpoint.folder import CheckpointFolder
    from qkv.train.checkpoint.slices import TensorSlice

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    no_limit = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill_up(folder, count, numbers):
        held = {f"tensor {n}": [TensorSlice.whole(torch.full((numbers,), float(n)))] for n in range(count)}
        checkpoints = CheckpointFolder(folder, max_to_keep=3)
        checkpoints.save(1, held, {}, wait=True)
        sizes = {path.name: path.stat().st_size for path in checkpoints.open_step(1).folder.iterdir()}
        resource.setrlimit(resource.RLIMIT_FSIZE, (max(sizes.values()) - 1000, no_limit[1]))
        told = ""
        try:
            checkpoints.save(2, held, {}, wait=True)
        except QkvError as error:
            told = str(error)
        left = sorted(path.name for path in folder.iterdir())
        newest = checkpoints.newest().step
        resource.setrlimit(resource.RLIMIT_FSIZE, no_limit)
        checkpoints.save(3, held, {}, wait=True)
        return max(sizes, key=sizes.get), told, left, newest, checkpoints.newest().step

    root = Path(sys.argv[1])
    print(json.dumps({"shard": fill_up(root / "shard", 1, 100_000), "manifest": fill_up(root / "manifest", 300, 1)}))
"""


@pytest.fixture(scope="module")
def limited(tmp_path_factory) -> dict:
    """Files that may not grow (RLIMIT_FSIZE): the system itself refuses to write on."""
    return json.loads(python("-c", textwrap.dedent(LIMITED), tmp_path_factory.mktemp("limited")))


@pytest.mark.parametrize(
    ("where", "file"), [("shard", "shard-00000-of-00001.safetensors"), ("manifest", "manifest.json")]
)
def test_a_file_that_may_not_grow_is_told_and_the_run_can_go_on(limited, where, file):
    largest, told, left, newest, later = limited[where]
    assert largest == file, "the limit falls into the file that it should"
    assert "the checkpoint of step 2 could not be written (File too large). It needs" in told
    assert (left, newest) == (["step-000000001"], 1)
    assert later == 3


@pytest.fixture
def small_disk(tmp_path) -> Path:
    """A file system of one megabyte, where we may make one."""
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", place], capture_output=True).returncode:
        pytest.skip("this user may not mount a file system")
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_small_disk_that_fills_up_is_told_with_what_is_free(small_disk):
    checkpoints = CheckpointFolder(small_disk, max_to_keep=5)
    for step in (1, 2):
        checkpoints.save(step, held(float(step), 100_000), {}, wait=True)
    checkpoints.save(3, held(3.0, 100_000), {})
    with pytest.raises(QkvError, match=r"No space left on device\). It needs 400.0 kB and 2\d\d\.\d kB are free"):
        checkpoints.wait_for_save()
    assert checkpoints.steps() == [1, 2]
    assert sorted(path.name for path in small_disk.iterdir()) == ["step-000000001", "step-000000002"]
    found = checkpoints.newest()
    assert torch.equal(found.read_tensor("a"), torch.full((100_000,), 2.0))
