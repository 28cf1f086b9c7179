"""Checkpoints of several processes: tensors in pieces, put together again as whole ones or as other pieces."""

import tempfile
from itertools import pairwise
from math import prod

import pytest
import torch
from checkpoint_states import holds, names_in, same_bits, state_of, whole
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.errors import QkvError
from qkv.train.checkpoint.folder import CheckpointFolder
from qkv.train.checkpoint.slices import TensorSlice, intersection, tiling_problem

FAST = settings(max_examples=60, deadline=None)


def save_together(folder, step, parts, state, **options) -> list[CheckpointFolder]:
    """Save `parts`, the pieces of each process, as that many processes would."""
    together = [
        CheckpointFolder(folder, max_to_keep=3, rank=rank, world_size=len(parts), **options)
        for rank in range(len(parts))
    ]
    for checkpoints, part in zip(together, parts, strict=True):
        checkpoints.save(step, part, state)
    return together


def wait_for_all(together: list[CheckpointFolder]) -> None:
    for checkpoints in together:
        checkpoints.wait_for_save()


def cut(tensor: torch.Tensor, dimension: int, places: list[int]) -> list[TensorSlice]:
    """A tensor cut along one dimension."""
    pieces = []
    for begin, end in pairwise([0, *sorted(places), tensor.shape[dimension]]):
        offset = [0] * tensor.ndim
        offset[dimension] = begin
        box = tensor.narrow(dimension, begin, end - begin)
        pieces.append(TensorSlice(box, tuple(offset), tuple(tensor.shape)))
    return pieces


@st.composite
def cut_tensors(draw):
    """(tensor, its pieces for each of 1 to 3 processes, a slice of it)."""
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    tensor = torch.arange(prod(shape), dtype=draw(st.sampled_from([torch.float32, torch.bfloat16, torch.int64])))
    tensor = tensor.reshape(shape)
    ranks = draw(st.integers(1, 3))
    dimension = draw(st.integers(0, len(shape) - 1))
    places = draw(st.lists(st.integers(0, shape[dimension]), min_size=ranks - 1, max_size=ranks - 1))
    begin = [draw(st.integers(0, n)) for n in shape]
    size = [draw(st.integers(0, n - b)) for n, b in zip(shape, begin, strict=True)]
    return tensor, cut(tensor, dimension, places), (begin, size)


@given(cut_tensors())
@FAST
def test_pieces_of_any_cut_load_whole_and_as_any_other_box(case):
    tensor, pieces, (begin, size) = case
    with tempfile.TemporaryDirectory() as folder:
        wait_for_all(save_together(folder, 1, [{"a": [piece]} for piece in pieces], {}))
        checkpoint = CheckpointFolder(folder, max_to_keep=1).newest()
        assert same_bits(checkpoint.read_tensor("a"), tensor)
        expected = tensor[tuple(slice(b, b + n) for b, n in zip(begin, size, strict=True))]
        assert same_bits(checkpoint.read_slice("a", begin, size), expected.contiguous())


def test_a_grid_of_pieces_loads_whole(tmp_path):
    """Cut along both dimensions, as by sharding and tensor parallelism together; two pieces in each process."""
    tensor = torch.randn(6, 8)
    boxes = [TensorSlice(tensor[i : i + 3, j : j + 2], (i, j), (6, 8)) for i in (0, 3) for j in (0, 2, 4, 6)]
    wait_for_all(save_together(tmp_path, 1, [{"a": boxes[2 * rank : 2 * rank + 2]} for rank in range(4)], {}))
    assert same_bits(CheckpointFolder(tmp_path, max_to_keep=1).open_step(1).read_tensor("a"), tensor)


def test_a_tensor_that_only_one_process_holds_is_written_by_it(tmp_path):
    tensors = state_of(1)
    parts = [dict.fromkeys(tensors, ()), whole(tensors), {}]
    wait_for_all(save_together(tmp_path, 1, parts, {"step": 1}))
    assert holds(CheckpointFolder(tmp_path, max_to_keep=1).newest(), 1)
    assert names_in(tmp_path / "step-000000001") == [
        "manifest.json",
        "shard-00000-of-00003.safetensors",
        "shard-00001-of-00003.safetensors",
        "shard-00002-of-00003.safetensors",
    ]


def test_a_process_without_rows_of_a_tensor_does_no_harm(tmp_path):
    """One row, three processes: two of them hold an empty piece."""
    row = torch.randn(1, 4)
    parts = [{"a": [piece]} for piece in cut(row, 0, [1, 1])]
    wait_for_all(save_together(tmp_path, 1, parts, {}))
    assert same_bits(CheckpointFolder(tmp_path, max_to_keep=1).open_step(1).read_tensor("a"), row)


def test_it_exists_only_when_all_parts_are_there(tmp_path):
    pieces = cut(torch.arange(4.0), 0, [2])
    first = CheckpointFolder(tmp_path, max_to_keep=1, rank=0, world_size=2)
    second = CheckpointFolder(tmp_path, max_to_keep=1, rank=1, world_size=2)
    first.save(1, {"a": [pieces[0]]}, {})
    first._writer.join(0.2)
    assert first._writer.is_alive(), "the first process waits for the second"
    assert first.steps() == []
    second.save(1, {"a": [pieces[1]]}, {}, wait=True)
    first.wait_for_save()
    assert first.steps() == [1]


def test_a_process_that_runs_ahead_to_the_same_step_does_not_lose_the_others(tmp_path):
    """The folder that the second process waits for is gone for a moment only, then there again for the next save."""
    pieces = cut(torch.arange(4.0), 0, [2])
    first, second = (
        CheckpointFolder(tmp_path, max_to_keep=1, rank=rank, world_size=2, timeout_seconds=5) for rank in range(2)
    )
    for version in range(4):
        first.save(1, {"a": [pieces[0]]}, {"version": version})  # comes back when the last version is complete
        second.save(1, {"a": [pieces[1]]}, {})
    wait_for_all([first, second])
    assert first.open_step(1).state == {"version": 3}


def empty_shard(folder):
    next(folder.glob(".step-*/shard-00001-*")).write_bytes(b"")


def fill_disk(folder):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("rank", "phase", "fault", "first_error", "second_error"),
    [
        (1, "part", empty_shard, "the size that rank 1 wrote; another job may be using this folder", None),
        (1, "shard", fill_disk, r"rank 1 could not write its part.*No space left", r"be written \(No space left"),
        (0, "manifest", fill_disk, "No space left", "rank 0 could not complete this checkpoint"),
    ],
)
def test_a_process_that_fails_tells_the_other_and_no_checkpoint_is_left(
    tmp_path, rank, phase, fault, first_error, second_error
):
    def on_phase(name: str) -> None:
        if name == phase:
            fault(tmp_path)

    first, second = (
        CheckpointFolder(
            tmp_path, max_to_keep=1, rank=number, world_size=2, **({"on_phase": on_phase} if number == rank else {})
        )
        for number in range(2)
    )
    first.save(1, {}, {})
    second.save(1, {}, {})
    with pytest.raises(QkvError, match=first_error):
        first.wait_for_save()
    if second_error is not None:
        with pytest.raises(QkvError, match=second_error):
            second.wait_for_save()
    assert first.steps() == []
    assert fault is empty_shard or names_in(tmp_path) == []


def test_a_part_that_does_not_come_is_told(tmp_path):
    first = CheckpointFolder(tmp_path, max_to_keep=1, rank=0, world_size=2, timeout_seconds=0.05)
    first.save(1, {}, {})
    with pytest.raises(QkvError, match="the shard of rank 1 did not arrive within 0 s; all ranks must see the same"):
        first.wait_for_save()
    assert names_in(tmp_path) == []


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ([[((0,), (2,))], [((1,), (3,))]], "two slices overlap"),
        ([[((0,), (2,))], [((3,), (1,))]], "the slices hold 3 of 4 elements"),
        ([[((0,), (4,))], [((0,), (4,))]], "two slices overlap"),
    ],
    ids=["overlap", "gap", "twice"],
)
def test_pieces_that_are_not_a_whole_tensor_are_never_written_as_one(tmp_path, parts, problem):
    values = torch.arange(4.0)
    given_ = [{"a": [TensorSlice(values[o : o + n], (o,), (4,)) for (o,), (n,) in boxes]} for boxes in parts]
    first, second = save_together(tmp_path, 1, given_, {}, timeout_seconds=5)
    with pytest.raises(ValueError, match=f"a: {problem}"):
        first.wait_for_save()
    with pytest.raises(QkvError, match="could not complete this checkpoint"):
        second.wait_for_save()
    assert first.steps() == []


def test_a_piece_outside_its_tensor_is_refused():
    with pytest.raises(ValueError, match=r"a slice of \(2,\) at \(3,\) is not inside \(4,\)"):
        TensorSlice(torch.zeros(2), (3,), (4,))


def test_a_box_outside_the_tensor_is_refused(tmp_path):
    checkpoints = CheckpointFolder(tmp_path, max_to_keep=1)
    checkpoints.save(1, whole({"a": torch.zeros(4)}), {}, wait=True)
    with pytest.raises(ValueError, match="not inside"):
        checkpoints.open_step(1).read_slice("a", (2,), (3,))


boxes = st.integers(1, 3).flatmap(
    lambda dimensions: st.lists(
        st.tuples(
            st.tuples(*[st.integers(0, 3)] * dimensions),
            st.tuples(*[st.integers(0, 3)] * dimensions),
        ),
        max_size=5,
    ).map(lambda found: (dimensions, found))
)


@given(boxes)
@settings(max_examples=300, deadline=None)
def test_a_tiling_covers_each_place_once(case):
    """Against counting: how often is each place of the tensor held?"""
    dimensions, found = case
    shape = (3,) * dimensions
    found = [(o, s) for o, s in found if all(b + n <= 3 for b, n in zip(o, s, strict=True))]
    held = torch.zeros(shape, dtype=torch.int64)
    for offset, size in found:
        held[tuple(slice(b, b + n) for b, n in zip(offset, size, strict=True))] += 1
    assert (tiling_problem(shape, found) == "") == bool((held == 1).all())


@given(boxes)
@settings(max_examples=100, deadline=None)
def test_an_overlap_is_what_both_boxes_hold(case):
    """Against counting, too."""
    dimensions, found = case
    for a in found:
        for b in found:
            held = torch.zeros((6,) * dimensions, dtype=torch.int64)
            for offset, size in (a, b):
                held[tuple(slice(o, o + n) for o, n in zip(offset, size, strict=True))] += 1
            both = intersection(a, b)
            expected = torch.zeros_like(held)
            if both:
                expected[tuple(slice(o, o + n) for o, n in zip(*both, strict=True))] = 1
            assert torch.equal(held == 2, expected == 1)
