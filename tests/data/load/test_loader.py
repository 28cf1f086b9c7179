"""The loader: exact resume to the example, and workers that die loudly (trap 20, the data's part)."""

import json
import os
import signal
import time
from itertools import islice
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
from synthetic_data import OBJECTIVES, RAGGED, documents, paired, tokenizer

from qkv.data.cache.examples import InMemoryExamples
from qkv.data.load.batch import Batch
from qkv.data.load.loader import Loader
from qkv.data.load.workers import WorkerError
from qkv.data.objectives import IGNORE_INDEX
from qkv.data.objectives.causal_lm import CausalLMObjective
from qkv.data.objectives.classification import ClassificationObjective
from qkv.data.objectives.masked_lm import MaskedLMObjective
from qkv.data.objectives.seq2seq import Seq2SeqObjective
from qkv.data.stream.sequences import SequenceStream
from qkv.errors import QkvError, UsageError


def make_stream(seed=0, **choices) -> SequenceStream:
    made = {
        "a": MaskedLMObjective(documents(RAGGED), tokenizer(), max_length=32),
        "b": MaskedLMObjective(documents([9] * 30, 1), tokenizer(), max_length=32),
    }
    return SequenceStream(made, batch_tokens=32 * 4, seed=seed, pool_size=16, **choices)


def make_loader(examples, max_length=32) -> Loader:
    return Loader(SequenceStream(CausalLMObjective(examples, tokenizer(), max_length=max_length), batch_tokens=64))


def contents(batches) -> list[tuple[list[list[int]], list[list[int]]]]:
    """Which examples, and their ids with all masks."""
    return [(batch.examples, batch.inputs.ids.tolist()) for batch in batches]


@pytest.fixture(scope="module")
def uninterrupted() -> list:
    return contents(islice(Loader(make_stream()), 24))


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_change_nothing(workers, uninterrupted):
    loader = Loader(make_stream(), num_workers=workers, prefetch=2)
    assert contents(islice(loader, 24)) == uninterrupted
    loader.close()


@pytest.mark.parametrize(("first", "then"), [(0, 2), (2, 0), (1, 3)])
def test_resuming_changes_nothing_whatever_the_workers(first, then, uninterrupted):
    seen, state, workers = [], None, first
    for steps in (5, 1, 11, 7):
        loader = Loader(make_stream(), num_workers=workers, prefetch=3)
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        seen += contents(islice(loader, steps))
        state = loader.state_dict()
        loader.close()
        workers = then
    assert seen == uninterrupted


def test_two_processes_then_one_then_two(uninterrupted):
    """2 → 1 → 2, mixture, packing and masked tokens included; compared example by example and token by token."""
    seen, state = [], None
    for world, steps in ((2, 9), (1, 4), (2, 11)):
        loaders = [Loader(make_stream(), rank=rank, world_size=world, num_workers=rank) for rank in range(world)]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        for ranks in islice(zip(*loaders, strict=True), steps):
            together = [contents([batch])[0] for batch in ranks]
            seen.append(tuple([row for part in together for row in part[side]] for side in (0, 1)))
        states = [loader.state_dict() for loader in loaders]
        assert all(one == states[0] for one in states)
        state = states[0]
        for loader in loaders:
            loader.close()
    assert seen == uninterrupted


def test_the_state_is_a_few_integers():
    loader = Loader(make_stream())
    list(islice(loader, 3))
    state = loader.state_dict()
    assert all(type(value) is int for value in state.values())
    assert len(json.dumps(state)) < 300
    assert state["step"] == 3


def test_what_was_prefetched_is_not_in_the_state():
    loader = Loader(make_stream(), num_workers=2, prefetch=8)
    batches = iter(loader)
    next(batches)
    time.sleep(0.2)  # the workers run ahead
    assert loader.state_dict()["step"] == 1
    loader.close()


@pytest.mark.parametrize("changed", [{"seed": 1}, {"max_documents": 3}, {"weights": {"a": 1, "b": 5}}])
def test_a_state_of_another_stream_is_refused_with_the_difference(changed):
    state = Loader(make_stream()).state_dict()
    with pytest.raises(
        QkvError, match=r"cannot resume at the checkpoint's position in the data: \w+ was \d+ and is \d+"
    ):
        Loader(make_stream(**changed)).load_state_dict(state)


def test_a_state_of_other_data_is_refused():
    def make(count):
        return make_loader(documents([9] * count))

    with pytest.raises(QkvError, match="the training data has changed since the run began") as error:
        make(31).load_state_dict(make(30).state_dict())
    assert "it had 30 examples and has 31" in str(error.value)
    assert " was 30" not in str(error.value), "its consequences are not listed too"
    with pytest.raises(QkvError, match=r"the training data has changed .*, seed was 5 and is 0\. "):
        make(31).load_state_dict({**make(30).state_dict(), "seed": 5})


def test_another_length_is_not_reported_as_other_data():
    def make(max_length):
        return make_loader(documents([90] * 9), max_length)

    with pytest.raises(QkvError, match=r"examples was \d+ and is \d+, max_length was 32 and is 16") as error:
        make(16).load_state_dict(make(32).state_dict())
    assert "data has changed" not in str(error.value)


def test_other_data_of_the_same_size_is_refused():
    state = make_loader(documents([9] * 30, seed=0)).state_dict()
    with pytest.raises(QkvError, match="the training data has changed since the run began"):
        make_loader(documents([9] * 30, seed=1)).load_state_dict(state)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_with_epochs_ends_and_shows_all(workers):
    objective = CausalLMObjective(documents(RAGGED), tokenizer(), max_length=32)
    loader = Loader(SequenceStream(objective, batch_tokens=32 * 4, pool_size=9), num_workers=workers, epochs=2)
    seen = sorted(example for batch in loader for row in batch.examples for example in row)
    assert seen == sorted([*range(objective.counts.examples)] * 2)
    assert list(loader) == []


def test_a_mixture_has_no_common_epochs():
    with pytest.raises(UsageError, match="have different epochs"):
        next(iter(Loader(make_stream(), epochs=1)))


# ---------------------------------------------------------------- workers that end


def test_a_killed_worker_is_named():
    loader = Loader(make_stream(), num_workers=2, prefetch=1)
    batches = iter(loader)
    next(batches)
    pid = loader.workers.processes[1].pid
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(
        WorkerError, match=rf"data worker 1 \(process {pid}\) ended by signal SIGKILL \(out of memory\?\)"
    ):
        list(islice(batches, 20))
    assert loader.workers is None  # the others are gone too


def test_a_hung_worker_is_named():
    loader = Loader(make_stream(), num_workers=2, prefetch=1, timeout=0.5)
    batches = iter(loader)
    next(batches)
    os.kill(loader.workers.processes[0].pid, signal.SIGSTOP)
    with pytest.raises(WorkerError, match=r"data worker 0 \(process \d+\) has not responded for 0.5 s"):
        list(islice(batches, 20))


@pytest.mark.parametrize(
    ("error", "kind"), [(QkvError("the disk is gone"), WorkerError), (ValueError("a bug"), RuntimeError)]
)
def test_an_error_in_a_worker_comes_back_with_its_reason(error, kind):
    def broken(examples, rng):
        raise error

    stream = make_stream()
    stream.objectives[0].build = broken
    loader = Loader(stream, num_workers=2)
    with pytest.raises(kind, match=rf"data worker \d: (?s:.*){error}"):
        list(islice(loader, 20))


def test_workers_end_with_the_loader():
    loader = Loader(make_stream(), num_workers=2)
    next(iter(loader))
    pids = [process.pid for process in loader.workers.processes] if loader.workers else []
    loader.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_loader_can_be_sent_to_a_spawned_worker(name):
    loader = Loader(SequenceStream(OBJECTIVES[name](), batch_tokens=400, pool_size=20))
    work = ForkingPickler.loads(
        ForkingPickler.dumps(loader._worker_batches)
    )  # as multiprocessing does where it cannot fork
    header, arrays = next(work(0, 1))
    expected, expected_arrays = next(loader._worker_batches(0, 1))
    assert header == expected
    assert all(arrays[field].tolist() == values.tolist() for field, values in expected_arrays.items())


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"rank": 2, "world_size": 2}, "rank = 2 does not exist: with world_size = 2 it must be 0 to 1"),
        ({"num_workers": -1}, "num_workers = -1"),
        ({"prefetch": 0}, "prefetch = 0"),
    ],
)
def test_impossible_choices_are_refused(choices, message):
    with pytest.raises(UsageError, match=message):
        Loader(make_stream(), **choices)


# ---------------------------------------------------------------- batches


def one_batch(name: str = "pairs") -> Batch:
    return next(iter(Loader(SequenceStream(OBJECTIVES[name](), batch_tokens=500, pool_size=20))))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_batch_counts_what_it_holds(name):
    batch = one_batch(name)
    sides = [side.document_ids for side in (batch.inputs, batch.inputs.source) if side is not None]
    tokens, positions = sum(int((ids > 0).sum()) for ids in sides), sum(ids.numel() for ids in sides)
    assert batch.num_tokens == tokens
    assert batch.padding_fraction == pytest.approx(1 - tokens / positions)
    labels = {name: int((values != IGNORE_INDEX).sum()) for name, values in batch.labels.items()}
    per_document = [labels[name] for name in ("classes", "span_starts") if name in labels]
    if not labels:
        per_document = [len(batch.example_ids)]
    assert batch.label_counts == (labels.get("tokens", 0), sum(per_document))
    assert sum(map(len, batch.examples)) == len(batch.example_ids)
    assert batch.inputs.ids.dtype == batch.inputs.document_ids.dtype == torch.int64
    assert int(batch.inputs.document_ids.max()) <= batch.inputs.max_documents


def test_labels_of_packed_examples_are_at_their_document():
    batch = one_batch("classify")
    for labels, examples in zip(batch.labels["classes"], batch.examples, strict=True):
        assert labels[: len(examples)].tolist() == [example % 3 for example in examples]
        assert (labels[len(examples) :] == IGNORE_INDEX).all()


def test_spans_are_positions_in_the_sequence():
    batch = one_batch("answers")
    inputs, labels, starts = batch.inputs, batch.labels, 0
    for sequence, examples in enumerate(batch.examples):
        for index in range(len(examples)):
            first, last = (int(labels[name][sequence, index]) for name in ("span_starts", "span_ends"))
            assert inputs.document_ids[sequence, first] == inputs.document_ids[sequence, last] == index + 1
            starts += int(inputs.positions[sequence, first]) > 0
    assert starts > 2


def test_micro_batches_are_the_batch():
    batch = one_batch()
    split = batch.split(3)
    assert torch.equal(torch.cat([part.inputs.ids for part in split]), batch.inputs.ids)
    assert [row for part in split for row in part.examples] == batch.examples
    assert sum(part.num_token_labels for part in split) == batch.num_token_labels
    assert sum(part.num_tokens for part in split) == batch.num_tokens
    assert len(batch.split(1000)) == batch.batch_size


def test_a_batch_moves_whole():
    batch = one_batch().to("meta")
    assert len(batch.tensors) == 7
    assert all(tensor.device.type == "meta" for tensor in batch.tensors)
    assert batch.num_tokens > 0


def test_scores_are_fractions_and_nan_where_there_are_none():
    scored = [{"first": [200] * (1 + i % 5), "score": [i / 4]} for i in range(9)]
    from_memory = ClassificationObjective(InMemoryExamples(scored), tokenizer(), max_length=24)
    batch = next(iter(Loader(SequenceStream(from_memory, batch_tokens=96, pool_size=9), epochs=1)))
    for scores, examples in zip(batch.labels["scores"], batch.examples, strict=True):
        assert scores[: len(examples)].tolist() == [example / 4 for example in examples]
        assert scores[len(examples) :].isnan().all()
    assert batch.label_counts == (0, 9)


def test_an_example_of_a_batch_can_be_named():
    loader = Loader(make_stream())
    batch = next(iter(loader))
    origins = loader.origins(batch)
    assert len(origins) == len(batch.example_ids)
    assert {origin.split(":")[0] for origin in origins} == {"a", "b"}


def test_pairs_from_a_loader_are_the_pairs_of_the_data():
    examples = paired([(1 + i % 9, 1 + i % 7) for i in range(50)])
    loader = Loader(
        SequenceStream(Seq2SeqObjective(examples, tokenizer(), max_length=32), batch_tokens=64 * 3), epochs=1
    )
    labels: dict[int, list[int]] = {}
    for batch in loader:
        for sequence, numbers in enumerate(batch.examples):
            for index, number in enumerate(numbers):
                is_here = batch.inputs.document_ids[sequence] == index + 1
                labels[number] = batch.labels["tokens"][sequence][is_here].tolist()
    assert labels == {n: [*examples[n]["target"].tolist(), tokenizer().special_tokens.eos] for n in range(50)}
