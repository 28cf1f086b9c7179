"""The stream of sequences: every example once an epoch, the same for any world size, no label across documents."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_data import OBJECTIVES, RAGGED, documents, paired, parts, quick, tokenizer

from qkv.data.load.loader import Loader
from qkv.data.objectives import IGNORE_INDEX
from qkv.data.objectives.causal_lm import CausalLMObjective
from qkv.data.objectives.seq2seq import Seq2SeqObjective
from qkv.data.stream.collate import collate
from qkv.data.stream.random_bits import EpochRng
from qkv.data.stream.sequences import FIRST_CURSOR, SequenceStream, StreamCursor
from qkv.errors import QkvError, UsageError

LAYOUTS = ("packed", "padded")


def make_stream(layout="packed", seed=0, pool_size=5, lengths=tuple(RAGGED), batch_size=3, **choices) -> SequenceStream:
    objective = CausalLMObjective(documents(list(lengths)), tokenizer(), max_length=32, **choices)
    return SequenceStream(objective, batch_tokens=32 * batch_size, seed=seed, layout=layout, pool_size=pool_size)


def refs_of(plan) -> list[tuple[int, int]]:
    """(epoch, example) of a batch."""
    return list(zip(plan.refs.epoch.tolist(), plan.refs.example.tolist(), strict=True))


def read_refs(stream: SequenceStream, cursor=FIRST_CURSOR, epochs=None, steps=None) -> list[tuple[int, int]]:
    """(epoch, example) as one process sees them, in order."""
    plans = islice(stream.batch_plans(cursor, epochs=epochs), steps)
    return [ref for plan, _ in plans for ref in refs_of(plan)]


def test_windows_of_one_long_text_are_not_packed():
    """Packing would save one sequence in a hundred, and make attention use document masks."""
    window = make_stream(lengths=(32 * 150 + 5,), pool_size=None, random_offset=True, add_bos_eos=False)
    assert window.max_documents == 1
    batches = list(islice(Loader(window), 120))  # some have the short windows at both ends of the text
    assert all(batch.one_document_each for batch in batches)
    assert not all(batch.unpadded for batch in batches)
    assert make_stream(pool_size=None).max_documents > 1


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
def test_every_example_comes_exactly_once_an_epoch(lengths, pool_size, batch_size, seed, layout, random_offset):
    stream = make_stream(layout, seed, pool_size, lengths, batch_size, random_offset=random_offset)
    seen = read_refs(stream, epochs=3)
    order = stream.order.epoch_orders[0]
    assert sorted(seen) == [(epoch, example) for epoch in range(3) for example in range(order.num_examples(epoch))]
    assert [epoch for epoch, _ in seen] == sorted(epoch for epoch, _ in seen), "one epoch after the other"


def test_an_endless_stream_continues_into_the_next_epoch_without_a_gap():
    stream = make_stream(batch_size=4)
    finite, endless = read_refs(stream, epochs=3), read_refs(stream, steps=200)
    assert endless[: len(finite)] == finite
    assert len(endless) > 2 * len(finite)


def test_skipped_examples_are_in_no_sequence_and_counted():
    stream = make_stream(too_long="skip")
    assert {example for _, example in read_refs(stream, epochs=1)} == set(
        range(stream.objectives[0].num_examples(EpochRng(0)))
    )
    counts = stream.objectives[0].counts
    assert (counts.skipped, counts.examples) == (sum(n + 1 > 32 for n in RAGGED), sum(0 < n < 32 for n in RAGGED))


def test_skipped_pairs_are_in_no_sequence():
    sizes = [(1 + i % 9, 1 + i % 13) for i in range(80)]
    objective = Seq2SeqObjective(paired(sizes), tokenizer(), max_length=10, max_source_length=8, too_long="skip")
    seen = read_refs(SequenceStream(objective, batch_tokens=90, pool_size=20), epochs=1)
    fitting = [i for i, (source, target) in enumerate(sizes) if source + 1 <= 8 and target + 1 <= 10]
    assert sorted(example for _, example in seen) == fitting
    assert objective.counts.skipped == 80 - len(fitting) > 0


# ---------------------------------------------------------------- processes


@quick
@given(st.integers(1, 5), st.integers(1, 9), st.sampled_from(LAYOUTS), st.integers(1, 12))
def test_ranks_have_the_shards_of_one_process(world_size, batch_size, layout, steps):
    stream = make_stream(layout, batch_size=batch_size)
    alone = [plan for plan, _ in islice(stream.batch_plans(), steps)]
    shards = [
        [plan for plan, _ in islice(stream.batch_plans(FIRST_CURSOR, rank, world_size), steps)]
        for rank in range(world_size)
    ]
    for step, plan in enumerate(alone):
        shard_plans = [shards[rank][step] for rank in range(world_size)]
        assert [ref for shard in shard_plans for ref in refs_of(shard)] == refs_of(plan)
        total = batch_size if layout == "packed" else plan.num_sequences
        assert {shard.num_sequences for shard in shard_plans} == {-(-total // world_size)}, "the same on every rank"
        assert len({shard.sequence_lengths for shard in shard_plans}) == 1


@quick
@given(st.integers(1, 5), st.integers(1, 9), st.sampled_from(LAYOUTS), st.integers(1, 400))
def test_no_micro_batch_has_more_than_its_tokens(world_size, batch_size, layout, max_tokens):
    stream = make_stream(layout, batch_size=batch_size, pool_size=9)
    num_parts = stream.num_micro_batches(max_tokens, world_size)
    for rank in range(world_size):
        for batch in islice(Loader(stream, rank=rank, world_size=world_size), 4):
            length = batch.inputs.ids.shape[1]
            largest = max(part.batch_size for part in batch.split(num_parts))
            assert largest * length <= max(max_tokens, length), "a sequence is never split"


def test_there_are_no_more_micro_batches_than_necessary():
    """The control for the test above: four sequences of 32 tokens."""
    assert [make_stream(batch_size=4).num_micro_batches(tokens) for tokens in (31, 32, 63, 64, 127, 128, 999)] == [
        4,
        4,
        4,
        2,
        2,
        1,
        1,
    ]
    assert [make_stream(batch_size=4).num_micro_batches(48, world_size) for world_size in (1, 2, 3, 4, 5)] == [
        4,
        2,
        2,
        1,
        1,
    ]
    assert make_stream("padded", batch_size=4).num_micro_batches(10**6) == 1


@quick
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 6)), min_size=1, max_size=5),
    st.sampled_from(LAYOUTS),
    st.integers(0, 2),
)
def test_resuming_with_another_world_size_changes_nothing(legs, layout, seed):
    """`legs` are (world size, steps): stop after each, and resume with the next (2 → 1 → 2)."""
    seen: list[tuple[int, int]] = []
    cursor = FIRST_CURSOR
    for world_size, steps in legs:
        stream = make_stream(layout, seed, random_offset=True)  # a new process knows only the cursor
        ranks = [list(islice(stream.batch_plans(cursor, rank, world_size), steps)) for rank in range(world_size)]
        for step in range(steps):
            seen += [ref for rank in range(world_size) for ref in refs_of(ranks[rank][step][0])]
        assert len({ranks[rank][-1][1] for rank in range(world_size)}) == 1, "all ranks have the same cursor"
        cursor = ranks[0][-1][1]
    total = sum(steps for _, steps in legs)
    assert seen == read_refs(make_stream(layout, seed, random_offset=True), steps=total)
    assert cursor.step == total


def test_a_cursor_from_elsewhere_gives_other_examples():
    stream = make_stream()  # the control for the test above
    cursor = next(islice(stream.batch_plans(), 2, 3))[1]
    assert read_refs(stream, cursor, steps=3) != read_refs(stream, StreamCursor(cursor.pool, cursor.item + 1), steps=3)


def test_the_batch_size_can_change_at_a_cursor():
    stream, larger = make_stream(batch_size=2), make_stream(batch_size=6)
    cursor = next(islice(stream.batch_plans(), 5, 6))[1]
    assert read_refs(larger, cursor, steps=4) == read_refs(stream, cursor, steps=12)


# ---------------------------------------------------------------- content


def collate_slowly(stream: SequenceStream, plan) -> dict[str, np.ndarray]:
    """The reference: build every example by itself and write it into its sequence, token by token."""
    arrays = {}
    for prefix, length in zip(("", "source_"), plan.sequence_lengths, strict=False):
        shape = (plan.num_sequences, length)
        arrays[f"{prefix}ids"] = np.full(shape, stream.pad_token_id)
        arrays[f"{prefix}document_ids"], arrays[f"{prefix}positions"] = np.zeros(shape, int), np.zeros(shape, int)
    arrays["labels.tokens"] = np.full(arrays["ids"].shape, IGNORE_INDEX)
    for entry, (epoch, example) in enumerate(refs_of(plan)):
        dataset = int(plan.refs.dataset[entry])
        rng = stream.order.epoch_orders[dataset].rng(epoch)
        built = parts(stream.objectives[dataset].build(np.array([example]), rng))[0]
        for side, prefix in enumerate(("", "source_")):
            for position, token in enumerate(built.get(f"{prefix}ids", [])):
                at = plan.sequence[entry], plan.offset[entry, side] + position
                assert arrays[f"{prefix}document_ids"][at] == 0
                arrays[f"{prefix}ids"][at], arrays[f"{prefix}positions"][at] = token, position
                arrays[f"{prefix}document_ids"][at] = plan.document[entry]
                if side == 0 and "tokens" in built:
                    arrays["labels.tokens"][at] = built["tokens"][position]
    return arrays


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_collate_is_the_slow_reference(name, layout):
    stream = SequenceStream(OBJECTIVES[name](), batch_tokens=400, layout=layout, pool_size=20)
    for plan, _ in islice(stream.batch_plans(), 6):
        arrays = collate(stream, plan)
        for field, expected in collate_slowly(stream, plan).items():
            if field in arrays:
                assert arrays[field].tolist() == expected.tolist(), field


@pytest.mark.parametrize("name", OBJECTIVES)
def test_packed_batches_have_one_shape(name):
    stream = SequenceStream(OBJECTIVES[name](), batch_tokens=400, pool_size=20)
    shapes = {
        tuple((field, values.shape) for field, values in collate(stream, plan).items() if values.ndim == 2)
        for plan, _ in stream.batch_plans(epochs=2)
    }
    assert len(shapes) == 1


def test_no_label_is_predicted_from_another_document():
    """Trap 21. Each label of a document is that document's own next token."""
    examples = documents(RAGGED)
    stream = SequenceStream(CausalLMObjective(examples, tokenizer(), max_length=32), batch_tokens=320, pool_size=20)
    eos = tokenizer().special_tokens.eos
    edges = 0
    for plan, _ in stream.batch_plans(epochs=1):
        arrays = collate(stream, plan)
        record, first, _ = stream.objectives[0].windows.locate(plan.refs.example, EpochRng(0))
        for entry in range(len(plan.refs)):
            sequence, document_id = plan.sequence[entry], plan.document[entry]
            tokens = np.flatnonzero(arrays["document_ids"][sequence] == document_id)
            document = [*examples[int(record[entry])]["ids"].tolist(), eos]
            for token in tokens:
                after = int(first[entry]) + int(arrays["positions"][sequence, token])
                assert arrays["labels.tokens"][sequence, token] == document[after]
            edges += tokens[-1] + 1 < 32 and arrays["document_ids"][sequence, tokens[-1] + 1] > 0
        assert (arrays["labels.tokens"][arrays["document_ids"] == 0] == IGNORE_INDEX).all()
    assert edges > 5  # there are adjacent documents here, so there was something to cross


def test_shifting_a_packed_sequence_would_cross_documents():
    """The control: labels made by shifting the sequence, as naive packing does, differ exactly where documents meet."""
    stream = SequenceStream(
        CausalLMObjective(documents(RAGGED), tokenizer(), max_length=32), batch_tokens=320, pool_size=20
    )
    arrays = collate(stream, next(stream.batch_plans())[0])
    naive = np.where(arrays["document_ids"][:, 1:] > 0, arrays["ids"][:, 1:], IGNORE_INDEX)
    meeting = (arrays["document_ids"][:, 1:] != arrays["document_ids"][:, :-1]) & (arrays["document_ids"][:, 1:] > 0)
    assert meeting.sum() >= 5
    assert (naive[meeting] != arrays["labels.tokens"][:, :-1][meeting]).all()


def test_source_and_target_of_a_pair_have_the_same_document_id():
    examples = paired([(1 + i % 9, 1 + i % 7) for i in range(60)])
    stream = SequenceStream(
        Seq2SeqObjective(examples, tokenizer(), max_length=32, max_source_length=32), batch_tokens=640, pool_size=60
    )
    eos = tokenizer().special_tokens.eos
    for plan, _ in islice(stream.batch_plans(), 3):
        arrays = collate(stream, plan)
        for example, sequence, document in zip(plan.refs.example, plan.sequence, plan.document, strict=True):
            target = arrays["labels.tokens"][sequence][arrays["document_ids"][sequence] == document].tolist()
            source = arrays["source_ids"][sequence][arrays["source_document_ids"][sequence] == document].tolist()
            assert target == [*examples[int(example)]["target"].tolist(), eos]
            assert source == [*examples[int(example)]["source"].tolist(), eos]


# ---------------------------------------------------------------- choices and errors


def test_max_documents_suits_the_data():
    long = SequenceStream(CausalLMObjective(documents([500] * 50), tokenizer(), max_length=64), batch_tokens=640)
    short = SequenceStream(CausalLMObjective(documents([4] * 500), tokenizer(), max_length=64), batch_tokens=640)
    assert long.max_documents < short.max_documents <= 64
    assert short.padding_fraction() < 0.2


def test_a_pool_has_more_examples_if_they_are_short():
    short = SequenceStream(CausalLMObjective(documents([4] * 5000), tokenizer(), max_length=512), batch_tokens=640)
    assert short.order.pool_size > 10_000


def test_a_batch_smaller_than_a_sequence_is_refused():
    with pytest.raises(UsageError, match="batch_tokens = 31 is less than one sequence of 32"):
        SequenceStream(CausalLMObjective(documents([4]), tokenizer(), max_length=32), batch_tokens=31)


def test_data_without_examples_is_an_error():
    with pytest.raises(QkvError, match=r"no training examples are left: 2 records give 0 examples.*2 skipped"):
        SequenceStream(
            Seq2SeqObjective(paired([(9, 9)] * 2), tokenizer(), max_length=4, max_source_length=4, too_long="skip"),
            batch_tokens=64,
        )


def test_an_unknown_layout_names_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'packed'"):
        make_stream("pcked")


def test_an_objective_with_wrong_lengths_is_caught():
    stream = make_stream()
    honest = stream.objectives[0].lengths
    stream.objectives[0].lengths = lambda examples, rng: np.maximum(honest(examples, rng) - 1, 1)
    with pytest.raises(AssertionError, match="CausalLMObjective built examples of other lengths"):
        [collate(stream, plan) for plan, _ in stream.batch_plans(epochs=1)]
