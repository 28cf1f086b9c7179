"""The loader: exact resume to the example, and workers that die loudly (trap 20, the data's part)."""

import json
import os
import signal
import time
from itertools import islice
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch
from rows_made import OBJECTIVES, RAGGED, documents, paired, tokenizer

from qkv.data.cache.examples import InMemoryExamples
from qkv.data.load.batch import Batch
from qkv.data.load.loader import Loader
from qkv.data.load.workers import WorkerError
from qkv.data.objectives import IGNORE_INDEX, CausalLM, Classification, MaskedLM, Seq2SeqLM
from qkv.data.stream.sequences import SequenceStream
from qkv.errors import QkvError, UsageError


def rows(seed=0, **choices) -> SequenceStream:
    made = {
        "a": MaskedLM(documents(RAGGED), tokenizer(), max_length=32),
        "b": MaskedLM(documents([9] * 30, 1), tokenizer(), max_length=32),
    }
    return SequenceStream(made, batch_tokens=32 * 4, seed=seed, pool_size=16, **choices)


def told(batches) -> list[tuple[list[list[int]], list[list[int]]]]:
    """Which examples, and what was made of them: hidden tokens and all."""
    return [(batch.examples, batch.ids.tolist()) for batch in batches]


@pytest.fixture(scope="module")
def uninterrupted() -> list:
    return told(islice(Loader(rows()), 24))


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_change_nothing(workers, uninterrupted):
    loader = Loader(rows(), num_workers=workers, prefetch=2)
    assert told(islice(loader, 24)) == uninterrupted
    loader.close()


@pytest.mark.parametrize(("first", "then"), [(0, 2), (2, 0), (1, 3)])
def test_resuming_changes_nothing_whatever_the_workers(first, then, uninterrupted):
    seen, state, workers = [], None, first
    for steps in (5, 1, 11, 7):
        loader = Loader(rows(), num_workers=workers, prefetch=3)
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        seen += told(islice(loader, steps))
        state = loader.state_dict()
        loader.close()
        workers = then
    assert seen == uninterrupted


def test_two_processes_then_one_then_two(uninterrupted):
    """2 → 1 → 2, mixture, packing and hidden tokens included; compared example by example and token by token."""
    seen, state = [], None
    for world, steps in ((2, 9), (1, 4), (2, 11)):
        loaders = [Loader(rows(), rank=rank, world_size=world, num_workers=rank) for rank in range(world)]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        for ranks in islice(zip(*loaders, strict=True), steps):
            together = [told([batch])[0] for batch in ranks]
            seen.append(tuple([row for part in together for row in part[side]] for side in (0, 1)))
        states = [loader.state_dict() for loader in loaders]
        assert all(one == states[0] for one in states)
        state = states[0]
        for loader in loaders:
            loader.close()
    assert seen == uninterrupted


def test_the_state_is_a_few_integers():
    loader = Loader(rows())
    list(islice(loader, 3))
    state = loader.state_dict()
    assert all(type(value) is int for value in state.values())
    assert len(json.dumps(state)) < 300
    assert state["step"] == 3


def test_what_was_prefetched_is_not_in_the_state():
    loader = Loader(rows(), num_workers=2, prefetch=8)
    batches = iter(loader)
    next(batches)
    time.sleep(0.2)  # the workers run ahead
    assert loader.state_dict()["step"] == 1
    loader.close()


@pytest.mark.parametrize("changed", [{"seed": 1}, {"max_documents": 3}, {"weights": {"a": 1, "b": 5}}])
def test_a_state_of_other_rows_is_refused_with_the_difference(changed):
    state = Loader(rows()).state_dict()
    with pytest.raises(QkvError, match=r"cannot restore the position in the data: \w+ was \d+ and is \d+"):
        Loader(rows(**changed)).load_state_dict(state)


def test_a_state_of_other_data_is_refused():
    make = lambda count: Loader(
        SequenceStream(CausalLM(documents([9] * count), tokenizer(), max_length=32), batch_tokens=64)
    )
    with pytest.raises(QkvError, match="the data is not what it was when the run began") as error:
        make(31).load_state_dict(make(30).state_dict())
    assert "30 examples then, 31 now" in str(error.value)
    assert " was 30" not in str(error.value), "what follows from it is not listed too"
    with pytest.raises(QkvError, match=r"the data is not what it was .*, seed was 5 and is 0\. "):
        make(31).load_state_dict({**make(30).state_dict(), "seed": 5})


def test_the_same_data_in_other_rows_is_not_said_to_have_changed():
    make = lambda length: Loader(
        SequenceStream(CausalLM(documents([90] * 9), tokenizer(), max_length=length), batch_tokens=64)
    )
    with pytest.raises(QkvError, match=r"examples was \d+ and is \d+, max_length was 32 and is 16") as error:
        make(16).load_state_dict(make(32).state_dict())
    assert "the data is not" not in str(error.value)


def test_other_data_of_the_same_size_is_refused():
    make = lambda seed: Loader(
        SequenceStream(CausalLM(documents([9] * 30, seed), tokenizer(), max_length=32), batch_tokens=64)
    )
    with pytest.raises(QkvError, match="the data is not what it was when the run began"):
        make(1).load_state_dict(make(0).state_dict())


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_with_epochs_ends_and_shows_all(workers):
    objective = CausalLM(documents(RAGGED), tokenizer(), max_length=32)
    loader = Loader(SequenceStream(objective, batch_tokens=32 * 4, pool_size=9), num_workers=workers, epochs=2)
    seen = sorted(example for batch in loader for row in batch.examples for example in row)
    assert seen == sorted([*range(objective.tally.examples)] * 2)
    assert list(loader) == []
    loader.rewind()
    assert len(list(loader)) > 0


def test_a_mixture_has_no_common_epochs():
    with pytest.raises(UsageError, match="have different epochs"):
        next(iter(Loader(rows(), epochs=1)))


# ---------------------------------------------------------------- workers that end


def test_a_killed_worker_is_named():
    loader = Loader(rows(), num_workers=2, prefetch=1)
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
    loader = Loader(rows(), num_workers=2, prefetch=1, timeout=0.5)
    batches = iter(loader)
    next(batches)
    os.kill(loader.workers.processes[0].pid, signal.SIGSTOP)
    with pytest.raises(WorkerError, match=r"data worker 0 \(process \d+\) has not responded for 0.5 s"):
        list(islice(batches, 20))


@pytest.mark.parametrize(
    ("error", "kind"), [(QkvError("the disk is gone"), WorkerError), (ValueError("a bug"), RuntimeError)]
)
def test_an_error_in_a_worker_comes_back_with_its_reason(error, kind):
    def broken(examples, draw):
        raise error

    stream = rows()
    stream.objectives[0].build = broken
    loader = Loader(stream, num_workers=2)
    with pytest.raises(kind, match=rf"data worker \d: (?s:.*){error}"):
        list(islice(loader, 20))


def test_workers_end_with_the_loader():
    loader = Loader(rows(), num_workers=2)
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
        ({"rank": 2, "world_size": 2}, "rank = 2 is not below world_size = 2"),
        ({"num_workers": -1}, "num_workers = -1"),
        ({"prefetch": 0}, "prefetch = 0"),
    ],
)
def test_impossible_choices_are_refused(choices, message):
    with pytest.raises(UsageError, match=message):
        Loader(rows(), **choices)


# ---------------------------------------------------------------- batches


def one_batch(name: str = "pairs") -> Batch:
    return next(iter(Loader(SequenceStream(OBJECTIVES[name](), batch_tokens=500, pool_size=20))))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_batch_counts_what_it_holds(name):
    batch = one_batch(name)
    tokens, places = int((batch.document_ids > 0).sum()), batch.document_ids.numel()
    if batch.source_document_ids is not None:
        tokens += int((batch.source_document_ids > 0).sum())
        places += batch.source_document_ids.numel()
    assert batch.num_tokens == tokens
    assert batch.padding_fraction == pytest.approx(1 - tokens / places)
    assert batch.num_labels == (0 if batch.labels is None else int((batch.labels != IGNORE_INDEX).sum()))
    per_text = batch.class_labels if batch.class_labels is not None else batch.span_starts
    assert batch.num_answers == (0 if per_text is None else int((per_text != IGNORE_INDEX).sum()))
    assert sum(map(len, batch.examples)) == len(batch.example_ids)
    assert batch.ids.dtype == batch.document_ids.dtype == torch.int64
    assert int(batch.document_ids.max()) <= batch.max_documents


def test_answers_of_packed_rows_stand_at_their_segment():
    batch = one_batch("classify")
    for row, examples in enumerate(batch.examples):
        assert batch.class_labels[row, : len(examples)].tolist() == [example % 3 for example in examples]
        assert (batch.class_labels[row, len(examples) :] == IGNORE_INDEX).all()


def test_spans_point_into_the_row():
    rows_ = SequenceStream(OBJECTIVES["answers"](), batch_tokens=500, pool_size=20)
    batch = next(iter(Loader(rows_)))
    starts = 0
    for row, examples in enumerate(batch.examples):
        for place in range(len(examples)):
            first, last = int(batch.span_starts[row, place]), int(batch.span_ends[row, place])
            assert batch.document_ids[row, first] == batch.document_ids[row, last] == place + 1
            starts += int(batch.positions[row, first]) > 0
    assert starts > 2


def test_micro_batches_are_the_batch():
    batch = one_batch()
    split = batch.split(3)
    assert torch.equal(torch.cat([part.ids for part in split]), batch.ids)
    assert [row for part in split for row in part.examples] == batch.examples
    assert sum(part.num_labels for part in split) == batch.num_labels
    assert sum(part.num_tokens for part in split) == batch.num_tokens
    assert len(batch.split(1000)) == batch.batch_size


def test_a_batch_moves_whole():
    batch = one_batch().to("meta")
    tensors = [value for value in vars(batch).values() if isinstance(value, torch.Tensor)]
    assert len(tensors) == 7
    assert all(tensor.device.type == "meta" for tensor in tensors)
    assert batch.num_tokens > 0


def test_scores_are_fractions_and_nan_where_there_are_none():
    examples = [{"first": [200] * (1 + i % 5), "score": [i / 4]} for i in range(9)]
    from_memory = Classification(InMemoryExamples(examples), tokenizer(), max_length=24)
    batch = next(iter(Loader(SequenceStream(from_memory, batch_tokens=96, pool_size=9), epochs=1)))
    for row, numbers in enumerate(batch.examples):
        assert batch.scores[row, : len(numbers)].tolist() == [number / 4 for number in numbers]
        assert batch.scores[row, len(numbers) :].isnan().all()
    assert batch.num_answers == 9


def test_an_example_of_a_batch_can_be_named():
    loader = Loader(rows())
    batch = next(iter(loader))
    origins = loader.origins(batch)
    assert len(origins) == len(batch.example_ids)
    assert {origin.split(":")[0] for origin in origins} == {"a", "b"}


def test_pairs_from_a_loader_are_the_pairs_of_the_data():
    examples = paired([(1 + i % 9, 1 + i % 7) for i in range(50)])
    loader = Loader(SequenceStream(Seq2SeqLM(examples, tokenizer(), max_length=32), batch_tokens=64 * 3), epochs=1)
    said: dict[int, list[int]] = {}
    for batch in loader:
        for row, numbers in enumerate(batch.examples):
            for place, number in enumerate(numbers):
                said[number] = batch.labels[row][batch.document_ids[row] == place + 1].tolist()
    assert said == {n: [*examples[n]["target"].tolist(), tokenizer().special_tokens.eos] for n in range(50)}
    assert np.unique(list(said)).size == 50
