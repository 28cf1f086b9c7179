"""The stream of rows: every example once an epoch, the same for any number of processes, nothing crossing documents."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows_made import OBJECTIVES, RAGGED, documents, paired, parts, quick, tokenizer

from qkv.data.load.loader import Loader
from qkv.data.objectives import IGNORE_INDEX, CausalLM, Seq2SeqLM
from qkv.data.stream.collate import collate
from qkv.data.stream.random_bits import EpochRng
from qkv.data.stream.sequences import STREAM_START, SequenceStream, StreamCursor
from qkv.errors import QkvError, UsageError

LAYOUTS = ("packed", "padded")


def small(layout="packed", seed=0, window=5, lengths=tuple(RAGGED), rows=3, **choices) -> SequenceStream:
    objective = CausalLM(documents(list(lengths)), tokenizer(), max_length=32, **choices)
    return SequenceStream(objective, batch_tokens=32 * rows, seed=seed, layout=layout, pool_size=window)


def ids_of(
    rows: SequenceStream, cursor=STREAM_START, rank=0, world=1, epochs=None, steps=None
) -> list[tuple[int, int]]:
    """(epoch, example) as one process sees them, in order."""
    taken = islice(rows.batch_plans(cursor, rank, world, epochs), steps)
    return [
        pair for step, _ in taken for pair in zip(step.refs.epoch.tolist(), step.refs.example.tolist(), strict=True)
    ]


# ---------------------------------------------------------------- exactly once


@quick
@given(
    st.lists(st.integers(0, 90), min_size=1, max_size=25).filter(any),
    st.integers(1, 40),
    st.integers(1, 7),
    st.integers(0, 3),
    st.sampled_from(LAYOUTS),
    st.booleans(),
)
def test_every_example_comes_exactly_once_an_epoch(lengths, window, rows, seed, layout, shift):
    stream = small(layout, seed, window, lengths, rows, random_offset=shift)
    seen = ids_of(stream, epochs=3)
    course = stream.order.epoch_orders[0]
    assert sorted(seen) == [(epoch, example) for epoch in range(3) for example in range(course.num_examples(epoch))]
    assert [epoch for epoch, _ in seen] == sorted(epoch for epoch, _ in seen), "one epoch after the other"


def test_an_endless_stream_goes_on_into_the_next_epoch_without_a_gap():
    stream = small(rows=4)
    finite, endless = ids_of(stream, epochs=3), ids_of(stream, steps=200)
    assert endless[: len(finite)] == finite
    assert len(endless) > 2 * len(finite)


def test_left_out_examples_are_in_no_row_and_counted():
    stream = small(too_long="skip")
    assert {example for _, example in ids_of(stream, epochs=1)} == set(
        range(stream.objectives[0].num_examples(EpochRng(0)))
    )
    tally = stream.objectives[0].tally
    assert (tally.skipped, tally.examples) == (sum(n + 1 > 32 for n in RAGGED), sum(0 < n < 32 for n in RAGGED))


def test_pairs_that_are_skipped_are_in_no_row():
    sizes = [(1 + i % 9, 1 + i % 13) for i in range(80)]
    objective = Seq2SeqLM(paired(sizes), tokenizer(), max_length=10, max_source_length=8, too_long="skip")
    seen = ids_of(SequenceStream(objective, batch_tokens=90, pool_size=20), epochs=1)
    fitting = [i for i, (source, target) in enumerate(sizes) if source + 1 <= 8 and target + 1 <= 10]
    assert sorted(example for _, example in seen) == fitting
    assert objective.tally.skipped == 80 - len(fitting) > 0


# ---------------------------------------------------------------- processes


@quick
@given(st.integers(1, 5), st.integers(1, 9), st.sampled_from(LAYOUTS), st.integers(1, 12))
def test_processes_share_the_rows_of_one_process(world, rows, layout, steps):
    stream = small(layout, rows=rows)
    alone = [step for step, _ in islice(stream.batch_plans(), steps)]
    shares = [
        [step for step, _ in islice(stream.batch_plans(STREAM_START, rank, world), steps)] for rank in range(world)
    ]
    for number, whole in enumerate(alone):
        joined = [example for rank in range(world) for example in shares[rank][number].refs.example.tolist()]
        assert joined == whole.refs.example.tolist()
        heights = {shares[rank][number].num_sequences for rank in range(world)}
        wanted = rows if layout == "packed" else whole.num_sequences
        assert heights == {-(-wanted // world)}, "one shape for all, so that all have as many micro-batches"
        assert len({shares[rank][number].sequence_lengths for rank in range(world)}) == 1


@quick
@given(st.integers(1, 5), st.integers(1, 9), st.sampled_from(LAYOUTS), st.integers(1, 400))
def test_no_part_of_a_step_has_more_places_than_it_may(world, rows, layout, most):
    stream = small(layout, rows=rows, window=9)
    parts = stream.num_micro_batches(most, world)
    for rank in range(world):
        for batch in islice(Loader(stream, rank=rank, world_size=world), 4):
            width = batch.ids.shape[1]
            assert max(part.batch_size for part in batch.split(parts)) * width <= max(most, width), (
                "a row is never split"
            )


def test_parts_are_not_smaller_than_they_need_be():
    """The control for the test above: four rows of 32 places."""
    assert [small(rows=4).num_micro_batches(most) for most in (31, 32, 63, 64, 127, 128, 999)] == [4, 4, 4, 2, 2, 1, 1]
    assert [small(rows=4).num_micro_batches(48, world) for world in (1, 2, 3, 4, 5)] == [4, 2, 2, 1, 1]
    assert small("padded", rows=4).num_micro_batches(10**6) == 1


@quick
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 6)), min_size=1, max_size=5),
    st.sampled_from(LAYOUTS),
    st.integers(0, 2),
)
def test_resuming_with_another_number_of_processes_changes_nothing(legs, layout, seed):
    """`legs`: so many processes for so many steps, then stop, and go on with another number (2 → 1 → 2)."""
    stream = small(layout, seed, random_offset=True)
    total = sum(steps for _, steps in legs)
    whole = ids_of(stream, steps=total)
    seen: list[tuple[int, int]] = []
    cursor = STREAM_START
    for world, steps in legs:
        fresh = small(layout, seed, random_offset=True)  # a new process knows nothing but the cursor
        ranks = [list(islice(fresh.batch_plans(cursor, rank, world), steps)) for rank in range(world)]
        for number in range(steps):
            for rank in range(world):
                picks = ranks[rank][number][0].refs
                seen += zip(picks.epoch.tolist(), picks.example.tolist(), strict=True)
        assert len({ranks[rank][-1][1] for rank in range(world)}) == 1, "all processes agree on the place"
        cursor = ranks[0][-1][1]
    assert seen == whole
    assert cursor.step == total


def test_a_cursor_from_elsewhere_gives_other_examples():
    stream = small()  # the control for the test above
    cursor = next(islice(stream.batch_plans(), 2, 3))[1]
    assert ids_of(stream, cursor, steps=3) != ids_of(stream, StreamCursor(cursor.pool, cursor.unit + 1), steps=3)


def test_rows_can_be_dealt_in_other_batches_from_a_place_on():
    stream, larger = small(rows=2), small(rows=6)
    cursor = next(islice(stream.batch_plans(), 5, 6))[1]
    assert ids_of(larger, cursor, steps=4) == ids_of(stream, cursor, steps=12)


# ---------------------------------------------------------------- what rows hold


def laid_alone(rows: SequenceStream, step) -> dict[str, np.ndarray]:
    """The slow way: build every example by itself and write it into its rows, place by place."""
    width = step.sequence_lengths
    shapes = {"ids": (step.num_sequences, width[0])} | (
        {"source_ids": (step.num_sequences, width[1])} if len(width) > 1 else {}
    )
    slow = {name: np.full(shape, rows.pad_token_id) for name, shape in shapes.items()}
    slow["document_ids"] = np.zeros(shapes["ids"], int)
    slow["positions"] = np.zeros(shapes["ids"], int)
    slow["labels"] = np.full(shapes["ids"], IGNORE_INDEX)
    for entry, (epoch, example) in enumerate(zip(step.refs.epoch, step.refs.example, strict=True)):
        objective = rows.objectives[int(step.refs.dataset[entry])]
        draw = rows.order.epoch_orders[int(step.refs.dataset[entry])].rng(int(epoch))
        part = parts(objective.build(np.array([example]), draw))[0]
        for place, token in enumerate(part["ids"]):
            at = step.sequence[entry], step.offset[entry, 0] + place
            assert slow["document_ids"][at] == 0
            slow["ids"][at], slow["document_ids"][at], slow["positions"][at] = token, step.document[entry], place
            if "labels" in part:
                slow["labels"][at] = part["labels"][place]
        for place, token in enumerate(part.get("source_ids", [])):
            slow["source_ids"][step.sequence[entry], step.offset[entry, 1] + place] = token
    return slow


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_batch_is_its_examples_each_in_its_place(name, layout):
    rows = SequenceStream(OBJECTIVES[name](), batch_tokens=400, layout=layout, pool_size=20)
    for step, _ in islice(rows.batch_plans(), 6):
        arrays = collate(rows, step)
        for field, expected in laid_alone(rows, step).items():
            if field in arrays:
                assert arrays[field].tolist() == expected.tolist(), field


@pytest.mark.parametrize("name", OBJECTIVES)
def test_packed_batches_have_one_shape(name):
    rows = SequenceStream(OBJECTIVES[name](), batch_tokens=400, pool_size=20)
    shapes = {
        tuple((field, values.shape) for field, values in collate(rows, step).items() if values.ndim == 2)
        for step, _ in rows.batch_plans(epochs=2)
    }
    assert len(shapes) == 1


def test_no_label_is_predicted_from_another_document():
    """Trap 21. Each label of a document is that document's own next token, which its own places alone decide."""
    examples = documents(RAGGED)
    rows = SequenceStream(CausalLM(examples, tokenizer(), max_length=32), batch_tokens=320, pool_size=20)
    end = tokenizer().special_tokens.eos
    edges = 0
    for step, _ in rows.batch_plans(epochs=1):
        arrays = collate(rows, step)
        record, first, _ = rows.objectives[0].windows.locate(step.refs.example, EpochRng(0))
        for entry in range(len(step.refs)):
            row, segment = step.sequence[entry], step.document[entry]
            places = np.flatnonzero(arrays["document_ids"][row] == segment)
            document = [*examples[int(record[entry])]["ids"].tolist(), end]
            for place in places:
                after = int(first[entry]) + int(arrays["positions"][row, place])
                assert arrays["labels"][row, place] == document[after]
            edges += places[-1] + 1 < 32 and arrays["document_ids"][row, places[-1] + 1] > 0
        assert (arrays["labels"][arrays["document_ids"] == 0] == IGNORE_INDEX).all()
    assert edges > 5  # documents do stand side by side here, so there was something to cross


def test_shifting_a_packed_row_would_cross_documents():
    """The control: labels made by shifting whole rows, as naive packing does, differ exactly where documents meet."""
    rows = SequenceStream(CausalLM(documents(RAGGED), tokenizer(), max_length=32), batch_tokens=320, pool_size=20)
    arrays = collate(rows, next(rows.batch_plans())[0])
    naive = np.where(arrays["document_ids"][:, 1:] > 0, arrays["ids"][:, 1:], IGNORE_INDEX)
    meeting = (arrays["document_ids"][:, 1:] != arrays["document_ids"][:, :-1]) & (arrays["document_ids"][:, 1:] > 0)
    assert meeting.sum() >= 5
    assert (naive[meeting] != arrays["labels"][:, :-1][meeting]).all()


def test_source_and_target_of_a_pair_have_the_same_segment():
    examples = paired([(1 + i % 9, 1 + i % 7) for i in range(60)])
    rows = SequenceStream(
        Seq2SeqLM(examples, tokenizer(), max_length=32, max_source_length=32), batch_tokens=640, pool_size=60
    )
    end = tokenizer().special_tokens.eos
    for step, _ in islice(rows.batch_plans(), 3):
        arrays = collate(rows, step)
        for example, row, segment in zip(step.refs.example, step.sequence, step.document, strict=True):
            target = arrays["labels"][row][arrays["document_ids"][row] == segment].tolist()
            source = arrays["source_ids"][row][arrays["source_document_ids"][row] == segment].tolist()
            assert target == [*examples[int(example)]["target"].tolist(), end]
            assert source == [*examples[int(example)]["source"].tolist(), end]


# ---------------------------------------------------------------- choices and errors


def test_texts_are_chosen_to_suit_the_data():
    long = SequenceStream(CausalLM(documents([500] * 50), tokenizer(), max_length=64), batch_tokens=640)
    short = SequenceStream(CausalLM(documents([4] * 500), tokenizer(), max_length=64), batch_tokens=640)
    assert long.max_documents < short.max_documents <= 64
    assert short.padding_fraction() < 0.2


def test_a_window_holds_more_examples_where_they_are_short():
    short = SequenceStream(CausalLM(documents([4] * 5000), tokenizer(), max_length=512), batch_tokens=640)
    assert short.order.pool_size > 10_000


def test_a_batch_smaller_than_a_row_is_refused():
    with pytest.raises(UsageError, match="batch_tokens = 31 is less than one sequence of 32"):
        SequenceStream(CausalLM(documents([4]), tokenizer(), max_length=32), batch_tokens=31)


def test_data_of_which_nothing_is_left_is_an_error():
    with pytest.raises(QkvError, match=r"nothing to train on: 2 records give 0 examples.*2 skipped"):
        SequenceStream(
            Seq2SeqLM(paired([(9, 9)] * 2), tokenizer(), max_length=4, max_source_length=4, too_long="skip"),
            batch_tokens=64,
        )


def test_an_unknown_layout_names_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'packed'"):
        small("pcked")


def test_an_objective_that_breaks_its_word_is_caught():
    rows = small()
    honest = rows.objectives[0].lengths
    rows.objectives[0].lengths = lambda examples, draw: np.maximum(honest(examples, draw) - 1, 1)
    with pytest.raises(AssertionError, match="CausalLM built examples of other lengths"):
        [collate(rows, step) for step, _ in rows.batch_plans(epochs=1)]
