"""Damaged checkpoints: no flipped bit, no missing byte and no missing file of one goes unnoticed."""

import random
import re
import shutil
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_states import holds, names_in, saved, state_of, whole

from qkv.errors import QkvError
from qkv.train.checkpoint.files import (
    MANIFEST_FILE,
    DamagedCheckpoint,
    OtherFormatVersion,
    read_checksummed,
    write_checksummed,
)
from qkv.train.checkpoint.folder import CheckpointFolder
from qkv.train.checkpoint.slices import TensorSlice

OLD, NEW = 10, 20
FLIPS = 1000


@pytest.fixture
def checkpoints(tmp_path) -> CheckpointFolder:
    """Two of them; the newer was written by two processes, so that it has more than one shard."""
    saved(tmp_path, OLD)
    tensors = whole(state_of(NEW))
    weight = state_of(NEW)["weight"]
    tensors["weight"] = [TensorSlice(weight[:4], (0, 0), (6, 5))]
    together = [CheckpointFolder(tmp_path, max_to_keep=9, rank=rank, world_size=2) for rank in range(2)]
    together[0].save(NEW, tensors, {"step": NEW})
    together[1].save(NEW, {"weight": [TensorSlice(weight[4:], (4, 0), (6, 5))]}, {})
    for each in together:
        each.wait_for_save()
    return CheckpointFolder(tmp_path, max_to_keep=9)


def files_of(checkpoints: CheckpointFolder) -> list[Path]:
    return sorted(checkpoints.open_step(NEW).folder.iterdir())


def flip(path: Path, place: int, bit: int) -> None:
    """Turn one bit over, in place; a second time puts it back."""
    with path.open("rb+") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1 << bit]))


def detected(checkpoints: CheckpointFolder) -> bool:
    """Whether a full check of the newer one refuses it."""
    try:
        checkpoints.open_step(NEW).verify()
    except DamagedCheckpoint:
        return True
    return False


def test_sound_ones_pass(checkpoints):
    assert not detected(checkpoints)
    found = checkpoints.newest()
    assert holds(found, NEW)
    assert checkpoints.skipped == []


def test_a_thousand_flipped_bits_are_all_detected(checkpoints):
    """In every file in turn, header, padding, numbers and JSON alike."""
    draw = random.Random(0)
    files = files_of(checkpoints)
    missed = []
    for number in range(FLIPS):
        path = files[number % len(files)]
        place, bit = draw.randrange(path.stat().st_size), draw.randrange(8)
        flip(path, place, bit)
        if not detected(checkpoints):
            missed.append((path.name, place, bit))
        flip(path, place, bit)
    assert missed == []
    assert not detected(checkpoints), "and all of it was put back"


def test_every_single_bit_of_the_json_and_the_headers_is_guarded(tmp_path):
    """All of them, not a draw: letters of another case and other spellings of a number mean the same to a parser."""
    checkpoints = CheckpointFolder(tmp_path, max_to_keep=1)
    checkpoints.save(NEW, {"é": [TensorSlice.whole(torch.zeros(1))]}, {"é": 1e16}, wait=True)
    for path in files_of(checkpoints):
        missed = []
        for place in range(path.stat().st_size):
            for bit in range(8):
                flip(path, place, bit)
                if not detected(checkpoints):
                    missed.append((place, bit))
                flip(path, place, bit)
        assert missed == [], path.name


def test_a_file_that_was_cut_short_anywhere_or_has_grown_is_detected(checkpoints):
    for path in files_of(checkpoints):
        sound = path.read_bytes()
        lengths = {*range(0, len(sound), 7), len(sound) - 1}
        for broken in [*(sound[:length] for length in lengths), sound + b"\0", sound + b"\n", sound + sound]:
            path.write_bytes(broken)
            assert detected(checkpoints), f"{path.name}: {len(broken)} instead of {len(sound)} bytes"
        path.write_bytes(sound)


def test_a_file_that_is_gone_is_detected(checkpoints):
    for path in files_of(checkpoints):
        sound = path.read_bytes()
        path.unlink()
        assert detected(checkpoints), path.name
        found = checkpoints.newest()
        assert holds(found, OLD)
        assert path.name in checkpoints.skipped[0]
        path.write_bytes(sound)


def test_a_shard_of_another_step_is_detected(checkpoints):
    """Sound in itself and of the right length, but not what belongs there."""
    checkpoints.save(30, whole(state_of(30)), {"step": 30}, wait=True)
    name = "shard-00000-of-00001.safetensors"
    ours, theirs = (tmp / name for tmp in (checkpoints.open_step(OLD).folder, checkpoints.open_step(30).folder))
    assert ours.stat().st_size == theirs.stat().st_size
    shutil.copy(theirs, ours)
    with pytest.raises(DamagedCheckpoint, match="does not match its checksum"):
        checkpoints.open_step(OLD).verify()


def test_a_folder_under_another_steps_name_is_detected(checkpoints):
    folder = checkpoints.open_step(NEW).folder
    folder.rename(folder.with_name("step-000000099"))
    with pytest.raises(DamagedCheckpoint, match="contains step 20, so the folder was renamed"):
        checkpoints.open_step(99)
    assert holds(checkpoints.newest(), OLD)


def test_what_is_passed_over_is_told_with_the_place_and_the_reason(checkpoints):
    shard = checkpoints.open_step(NEW).folder / "shard-00000-of-00002.safetensors"
    flip(shard, shard.stat().st_size - 1, 0)
    found = checkpoints.newest()
    assert holds(found, OLD)
    assert checkpoints.skipped == [f"{shard}: damaged: half does not match its checksum"]


def test_when_none_is_sound_that_is_told_too(checkpoints):
    for step in (OLD, NEW):
        (checkpoints.folder / f"step-{step:09d}" / "manifest.json").unlink()
    assert checkpoints.newest() is None
    assert len(checkpoints.skipped) == 2


def test_reading_a_damaged_tensor_raises_and_reading_its_neighbours_does_not(checkpoints):
    checkpoint = checkpoints.open_step(NEW)
    shard = checkpoint.folder / "shard-00001-of-00002.safetensors"  # the last two rows of "weight"
    flip(shard, shard.stat().st_size - 1, 7)
    with pytest.raises(DamagedCheckpoint, match="weight does not match its checksum"):
        checkpoint.read_tensor("weight")
    with pytest.raises(DamagedCheckpoint, match="weight does not match its checksum"):
        checkpoint.read_slice("weight", (4, 0), (1, 1))
    assert torch.equal(checkpoint.read_slice("weight", (0, 0), (4, 5)), state_of(NEW)["weight"][:4])
    assert torch.equal(checkpoint.read_tensor("moment"), state_of(NEW)["moment"])


def test_a_file_that_is_cut_between_opening_and_reading_is_detected(checkpoints):
    checkpoint = checkpoints.open_step(NEW)
    shard = checkpoint.folder / "shard-00001-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(DamagedCheckpoint, match="weight does not match its checksum"):
        checkpoint.read_tensor("weight")


def test_a_best_that_is_damaged_is_told_and_nothing_is_pruned_by_it(checkpoints):
    checkpoints.mark_best(OLD)
    note = checkpoints.folder / "best.json"
    note.write_bytes(note.read_bytes().replace(b"10", b"20"))
    with pytest.raises(QkvError, match=r"best\.json: damaged"):
        checkpoints.best()
    few = CheckpointFolder(checkpoints.folder, max_to_keep=1)
    few.save(30, whole(state_of(30)), {"step": 30}, wait=True)
    assert few.steps() == [OLD, NEW, 30]
    few.mark_best(30)
    few.save(40, whole(state_of(40)), {"step": 40}, wait=True)
    assert few.steps() == [30, 40]


@pytest.mark.parametrize(("version", "message"), [(1, "written by an older qkv (version 1"), (3, "version 3 of the")])
def test_another_version_of_the_format_is_not_guessed_at(checkpoints, monkeypatch, version, message):
    monkeypatch.setattr("qkv.train.checkpoint.folder.VERSION", version)
    checkpoints.save(30, {}, {}, wait=True)
    monkeypatch.undo()
    with pytest.raises(OtherFormatVersion, match=re.escape(message)):
        checkpoints.newest()
    assert checkpoints.steps() == [OLD, NEW, 30]


def test_what_a_killed_run_left_is_cleared_and_an_unfinished_replacement_is_put_back(checkpoints):
    folder = checkpoints.folder
    (folder / ".step-000000030.writing").mkdir()
    (folder / ".step-000000030.writing" / "shard").write_text("half of it")
    (folder / ".step-000000001.leaving").mkdir()
    (folder / "best.json.partial").write_text("half of it")
    (folder / "notes of mine.txt").write_text("stay")
    checkpoints.open_step(NEW).folder.rename(folder / ".step-000000020.replaced")
    checkpoints.recover()
    assert names_in(folder) == ["notes of mine.txt", "step-000000010", "step-000000020"]
    assert holds(checkpoints.newest(), NEW)


# -------------------------------------------------------------------- manifests that qkv did not write


def forge(checkpoints: CheckpointFolder, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest of the newer checkpoint, and seal it again."""
    path = checkpoints.folder / f"step-{NEW:09d}" / MANIFEST_FILE
    content = read_checksummed(path)
    change(content)
    write_checksummed(path, content)


def first_slice(content: dict[str, Any]) -> dict[str, Any]:
    return content["shards"][0]["slices"][0]


@pytest.mark.parametrize("value", [None, "x", -1, 2**60, 1.5, [], {}, [None], True])
@pytest.mark.parametrize(
    "key", ["step", "state", "world_size", "shards", "file", "bytes", "slices", "header", "header.bytes"]
)
def test_a_forged_manifest_is_damaged(key: str, value: object, checkpoints: CheckpointFolder) -> None:
    def change(content: dict[str, Any]) -> None:
        shard = content["shards"][0]
        if key == "header.bytes":
            shard["header"]["bytes"] = value
        else:
            (content if key in content else shard)[key] = value

    if (key, value) == ("state", {}) or (key, value) == ("state", []):
        pytest.skip("an empty state is a state")
    forge(checkpoints, change)
    assert detected(checkpoints)


@pytest.mark.parametrize("value", [None, "x", -1, 2**60, 1.5, [], {}, [2**60], [-1, -5]])
@pytest.mark.parametrize("key", ["name", "dtype", "shape", "offset", "size", "start", "bytes", "checksum"])
def test_a_forged_slice_is_damaged(key: str, value: object, checkpoints: CheckpointFolder) -> None:
    forge(checkpoints, lambda content: first_slice(content).update({key: value}))
    if (key, value) == ("name", "x"):
        pytest.skip("a tensor may have any name")
    assert detected(checkpoints)


@pytest.mark.parametrize("key", ["step", "state", "world_size", "shards"])
def test_a_manifest_without_a_part_is_damaged(key: str, checkpoints: CheckpointFolder) -> None:
    forge(checkpoints, lambda content: content.pop(key))
    assert detected(checkpoints)


def test_a_slice_beyond_its_file_needs_no_memory(checkpoints: CheckpointFolder) -> None:
    def change(content: dict[str, Any]) -> None:
        itemsize = first_slice(content)["bytes"] // max(1, prod(first_slice(content)["size"]))
        first_slice(content).update(shape=[2**50], offset=[0], size=[2**50], bytes=2**50 * itemsize)

    forge(checkpoints, change)
    with pytest.raises(DamagedCheckpoint, match="ends after the end"):
        checkpoints.open_step(NEW)
