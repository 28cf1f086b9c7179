"""Checkpoints: what goes in comes out, the right ones stay, and training goes on meanwhile."""

import json
import tempfile
import threading

import pytest
import torch
from checkpoint_states import holds, names_in, same_bits, saved, state_of, whole
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from qkv.errors import QkvError, UsageError
from qkv.train.checkpoint.folder import SAVE_PHASES, CheckpointFolder
from qkv.train.checkpoint.slices import TensorSlice

DTYPES = (
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.float8_e4m3fn,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)


@st.composite
def tensors(draw):
    """A tensor of any kept type and up to four dimensions, filled with any bits."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    count = torch.Size(shape).numel()
    highest = 1 if dtype == torch.bool else 255
    data = draw(st.lists(st.integers(0, highest), min_size=count * dtype.itemsize, max_size=count * dtype.itemsize))
    return torch.tensor(data, dtype=torch.uint8).view(dtype).reshape(shape)


@given(held=st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1), tensors(), max_size=5))
@settings(max_examples=60, deadline=None)
def test_any_tensor_comes_back_bit_by_bit(held):
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = CheckpointFolder(folder, max_to_keep=1)
        checkpoints.save(1, whole(held), {}, wait=True)
        checkpoint = checkpoints.newest()
        assert checkpoint.tensor_names() == sorted(held)
        for name, tensor in held.items():
            assert same_bits(checkpoint.read_tensor(name), tensor)


def test_same_bits_tells_what_equal_does_not():
    """A control for the comparison that all tests here rest on."""
    assert same_bits(torch.tensor(float("nan")), torch.tensor(float("nan")))
    assert not same_bits(torch.tensor(0.0), torch.tensor(-0.0))
    assert not same_bits(torch.zeros(2), torch.zeros(2, 1))
    assert not same_bits(torch.zeros(2), torch.zeros(2, dtype=torch.int32))


def test_a_view_with_gaps_is_kept_as_what_it_shows(tmp_path):
    tensor = torch.arange(24.0).reshape(4, 6).T[::2]
    checkpoints = CheckpointFolder(tmp_path, max_to_keep=1)
    checkpoints.save(1, whole({"a": tensor}), {}, wait=True)
    assert same_bits(checkpoints.open_step(1).read_tensor("a"), tensor)


def test_state_comes_back_with_every_digit(tmp_path):
    state = {"loss": 0.1 + 0.2, "best": float("-inf"), "cursor": [3, 2**60], "text": "größer\u2028", "none": None}
    checkpoints = CheckpointFolder(tmp_path, max_to_keep=1)
    checkpoints.save(5, {}, state, wait=True)
    assert checkpoints.open_step(5).state == state


def test_a_shard_is_a_safetensors_file_like_any_other(tmp_path):
    checkpoints = saved(tmp_path, 1)
    read = load_file(checkpoints.open_step(1).folder / "shard-00000-of-00001.safetensors")
    assert read.keys() == state_of(1).keys()
    assert all(same_bits(read[name], tensor) for name, tensor in state_of(1).items())


def test_the_manifest_is_plain_json(tmp_path):
    checkpoints = saved(tmp_path, 1)
    manifest = json.loads((checkpoints.open_step(1).folder / "manifest.json").read_text())["content"]
    assert (manifest["step"], manifest["state"]) == (1, {"step": 1})


# ---------------------------------------------------------------- beside the training


def held_at(phase: str) -> tuple[threading.Event, threading.Event, object]:
    """(reached, go on, on_phase): a writer that stops at a phase until it is let go."""
    reached, go_on = threading.Event(), threading.Event()

    def on_phase(name: str) -> None:
        if name == phase:
            reached.set()
            assert go_on.wait(30)

    return reached, go_on, on_phase


def test_what_changes_after_save_is_not_in_it(tmp_path):
    reached, go_on, on_phase = held_at("begin")
    checkpoints = CheckpointFolder(tmp_path, max_to_keep=9, on_phase=on_phase)
    tensors, state = state_of(1), {"step": 1}
    checkpoints.save(1, whole(tensors), state)
    assert reached.wait(30)
    for tensor in tensors.values():
        tensor.fill_(7)
    state["step"] = 7
    assert checkpoints.steps() == [], "save returned before anything was complete"
    go_on.set()
    checkpoints.wait_for_save()
    assert holds(checkpoints.newest(), 1)


def test_the_next_save_waits_for_the_last_and_does_not_disturb_it(tmp_path):
    reached, go_on, on_phase = held_at("shard")
    checkpoints = CheckpointFolder(tmp_path, max_to_keep=9, on_phase=on_phase)
    checkpoints.save(1, whole(state_of(1)), {"step": 1})
    assert reached.wait(30)
    timer = threading.Timer(0.1, go_on.set)
    timer.start()
    checkpoints.save(2, whole(state_of(2)), {"step": 2}, wait=True)
    assert go_on.is_set()
    assert [holds(checkpoints.open_step(step), step) for step in (1, 2)] == [True, True]


def test_the_memory_of_a_snapshot_serves_again_where_shapes_change(tmp_path):
    checkpoints = CheckpointFolder(tmp_path, max_to_keep=9)
    shapes = [(2, 3), (2, 3), (3, 2), (6,)]
    for step, shape in enumerate(shapes):
        checkpoints.save(step, whole({"a": torch.full(shape, float(step))}), {})
    checkpoints.wait_for_save()
    for step, shape in enumerate(shapes):
        assert same_bits(checkpoints.open_step(step).read_tensor("a"), torch.full(shape, float(step)))


def test_an_error_of_the_writer_is_raised_once_at_the_next_call(tmp_path):
    def fail(name: str) -> None:
        raise RuntimeError("a bug")

    checkpoints = CheckpointFolder(tmp_path, max_to_keep=1, on_phase=fail)
    checkpoints.save(1, {}, {})
    with pytest.raises(RuntimeError, match="a bug"):
        checkpoints.wait_for_save()
    checkpoints.wait_for_save()


def test_every_phase_is_passed_in_order(tmp_path):
    seen: list[str] = []
    checkpoints = CheckpointFolder(tmp_path, max_to_keep=1, on_phase=seen.append)
    for _ in range(2):
        checkpoints.save(1, whole(state_of(1)), {}, wait=True)
    assert [*seen] == [*(phase for phase in SAVE_PHASES if phase != "aside"), *SAVE_PHASES]


# ---------------------------------------------------------------- which ones stay


def test_the_newest_few_stay(tmp_path):
    checkpoints = saved(tmp_path, 10, 20, 30, 40, keep=2)
    assert checkpoints.steps() == [30, 40]
    assert names_in(tmp_path) == ["step-000000030", "step-000000040"]


def test_older_ones_go_only_when_the_new_one_is_complete(tmp_path):
    reached, go_on, on_phase = held_at("rename")
    saved(tmp_path, 10)
    checkpoints = CheckpointFolder(tmp_path, max_to_keep=1, on_phase=on_phase)
    checkpoints.save(20, whole(state_of(20)), {"step": 20})
    assert reached.wait(30)
    assert holds(checkpoints.newest(), 10)
    go_on.set()
    checkpoints.wait_for_save()
    assert checkpoints.steps() == [20]


def test_the_best_stays_until_another_is_better(tmp_path):
    checkpoints = saved(tmp_path, 10, keep=1)
    checkpoints.mark_best(10)
    for step in (20, 30):
        checkpoints.save(step, whole(state_of(step)), {"step": step}, wait=True)
    assert checkpoints.steps() == [10, 30]
    assert holds(CheckpointFolder(tmp_path, max_to_keep=1).best(), 10)
    checkpoints.save(40, whole(state_of(40)), {"step": 40}, best=True, wait=True)
    assert checkpoints.steps() == [40]
    assert holds(checkpoints.best(), 40)


def test_a_checkpoint_that_is_still_being_written_can_be_marked_best(tmp_path):
    reached, go_on, on_phase = held_at("half")
    checkpoints = CheckpointFolder(tmp_path, max_to_keep=1, on_phase=on_phase)
    checkpoints.save(10, whole(state_of(10)), {"step": 10})
    assert reached.wait(30)
    checkpoints.mark_best(10)
    assert checkpoints.best() is None, "not before it is complete"
    go_on.set()
    checkpoints.wait_for_save()
    assert holds(checkpoints.best(), 10)


def test_there_is_no_best_that_was_not_saved(tmp_path):
    checkpoints = saved(tmp_path, 10)
    assert checkpoints.best() is None
    with pytest.raises(ValueError, match="no checkpoint of step 11"):
        checkpoints.mark_best(11)


def test_a_step_that_is_saved_again_is_replaced(tmp_path):
    checkpoints = saved(tmp_path, 10)
    checkpoints.save(10, whole(state_of(11)), {"again": True}, wait=True)
    assert checkpoints.open_step(10).state == {"again": True}
    assert same_bits(checkpoints.open_step(10).read_tensor("weight"), state_of(11)["weight"])
    assert names_in(tmp_path) == ["step-000000010"]


def test_a_future_that_is_trained_anew_goes(tmp_path):
    """Going back to an older checkpoint must not leave newer ones that a restart would take."""
    checkpoints = saved(tmp_path, 10, 20, 30)
    checkpoints.mark_best(20)
    checkpoints.save(15, whole(state_of(15)), {"step": 15}, wait=True)
    assert checkpoints.steps() == [10, 15]
    assert checkpoints.best() is None


def test_a_damaged_one_does_not_take_a_sound_ones_place(tmp_path):
    saved(tmp_path, 10, 20, 30)
    (tmp_path / "step-000000020" / "manifest.json").write_text("{}")
    (tmp_path / "step-000000030" / "manifest.json").write_text("{}")
    checkpoints = CheckpointFolder(tmp_path, max_to_keep=2)
    assert holds(checkpoints.newest(), 10)
    checkpoints.save(40, whole(state_of(40)), {"step": 40}, wait=True)
    assert checkpoints.steps() == [10, 40]


def test_the_step_saved_last_is_known_before_it_is_complete(tmp_path):
    _, go_on, on_phase = held_at("begin")
    checkpoints = CheckpointFolder(tmp_path, max_to_keep=1, on_phase=on_phase)
    assert checkpoints.last_step is None
    checkpoints.save(10, {}, {})
    assert checkpoints.last_step == 10
    go_on.set()
    checkpoints.wait_for_save()
    again = CheckpointFolder(tmp_path, max_to_keep=1)
    again.newest()
    assert again.last_step == 10


# ---------------------------------------------------------------- mistakes


def test_a_folder_without_checkpoints_has_none(tmp_path):
    checkpoints = CheckpointFolder(tmp_path / "none", max_to_keep=1)
    assert (checkpoints.newest(), checkpoints.best(), checkpoints.steps(), checkpoints.skipped) == (
        None,
        None,
        [],
        [],
    )
    checkpoints.recover()
    assert not (tmp_path / "none").exists(), "looking makes nothing"


def test_keeping_nothing_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"train\.keep_checkpoints = 0 must be at least 1"):
        CheckpointFolder(tmp_path, max_to_keep=0)


def test_a_tensor_that_is_not_there_is_named_with_the_nearest(tmp_path):
    checkpoint = saved(tmp_path, 1).open_step(1)
    with pytest.raises(QkvError, match="no tensor 'wieght'; did you mean 'weight'"):
        checkpoint.read_tensor("wieght")


def test_state_that_is_not_json_is_refused_before_anything_is_written(tmp_path):
    checkpoints = CheckpointFolder(tmp_path / "c", max_to_keep=1)
    with pytest.raises(TypeError):
        checkpoints.save(1, {}, {"a": object()})
    assert not (tmp_path / "c").exists()


def test_a_type_that_cannot_be_kept_is_named(tmp_path):
    with pytest.raises(TypeError, match=r"a: torch\.complex64 cannot be saved"):
        CheckpointFolder(tmp_path, max_to_keep=1).save(
            1, {"a": [TensorSlice.whole(torch.zeros(1, dtype=torch.complex64))]}, {}
        )


def test_one_that_is_taken_in_temporary_costs_no_other_its_place_and_goes_with_the_next(tmp_path):
    checkpoints = CheckpointFolder(tmp_path, max_to_keep=3)

    def save(step, **how):
        checkpoints.save(step, {"w": [TensorSlice.whole(torch.tensor([float(step)]))]}, {}, wait=True, **how)

    for step in (10, 20, 30):
        save(step)
    save(31, temporary=True)
    assert checkpoints.steps() == [10, 20, 30, 31]
    save(35, temporary=True)
    assert checkpoints.steps() == [10, 20, 30, 35]
    again = CheckpointFolder(tmp_path, max_to_keep=3)  # another process, which is told what it goes on from
    again.temporary_step = 35
    checkpoints = again
    save(40)
    assert again.steps() == [20, 30, 40]
    save(41, temporary=True, best=True)
    save(50)
    assert again.steps() == [30, 40, 41, 50]  # the best one stays
