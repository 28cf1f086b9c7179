"""The losses of transcripts (CTC) and of frames, against slow references."""

from itertools import groupby, product

import numpy as np
import pytest
import torch
from square_files import SquareFiles, make_file
from squares import make_network
from synthetic_data import record, token_lists, tokenizer

from qkv.blocks import HeadConfig, Inputs
from qkv.blocks.inputs import PayloadItem
from qkv.data import InMemoryExamples
from qkv.data.encode.encoders import EncodeTexts
from qkv.data.encode.payloads import EncodePayloads
from qkv.data.load.batch import Batch
from qkv.data.load.loader import Loader
from qkv.data.objectives import Objective, ctc, frames
from qkv.data.objectives.ctc import CTCObjective, count_frames
from qkv.data.objectives.frames import FramesObjective
from qkv.data.objectives.table import OBJECTIVES, register_objective
from qkv.data.stream.random_bits import EpochRng
from qkv.data.stream.sequences import SequenceStream
from qkv.errors import UsageError
from qkv.models import Network
from qkv.train.loss.training_module import TrainingModule, make_labelled_batch
from qkv.train.recipe.schema import ObjectiveSection

ONE = torch.ones((), dtype=torch.float64)
VOCAB = 400


@pytest.fixture(autouse=True)
def rows():
    for spec in (ctc.SPEC, frames.SPEC):
        register_objective(spec)
    yield
    for spec in (ctc.SPEC, frames.SPEC):
        OBJECTIVES.unregister(spec.name)


def loss_sums(network: Network, objective: Objective, layout: str, batch_tokens: int = 120) -> tuple[float, int]:
    """The sum of the losses of all examples, and the number of labels."""
    module, total, count = TrainingModule(network, ObjectiveSection()).eval(), 0.0, 0
    with torch.no_grad():
        for batch in Loader(SequenceStream(objective, batch_tokens=batch_tokens, layout=layout), epochs=1):
            total += float(module(make_labelled_batch(batch, torch.device("cpu")), ONE, ONE))
            count += sum(batch.label_counts)
    return total, count


def first_batch(objective: Objective) -> Batch:
    return next(iter(Loader(SequenceStream(objective, batch_tokens=120))))


SOURCES = token_lists([3, 5, 4, 6, 1, 5, 2, 4])
TARGETS = [[7], [7, 8], [8, 8], [9, 7, 9], [9], [], [7, 7], [200]]  # [7, 7] needs three frames: one too many


def transcripts() -> CTCObjective:
    made = [{"source": source, "target": target} for source, target in zip(SOURCES, TARGETS, strict=True)]
    return CTCObjective(InMemoryExamples(made, ["source", "target"]), tokenizer(), max_length=16)


def ctc_slowly(logits: torch.Tensor, target: list[int]) -> float:
    """−log of the summed probability of every alignment that becomes the target without repeats and blanks."""
    logprobs, blank, total = logits.log_softmax(-1), logits.shape[-1] - 1, 0.0
    for alignment in product({*target, blank}, repeat=len(logits)):
        if [symbol for symbol, _ in groupby(alignment) if symbol != blank] == target:
            total += float(sum(logprobs[i, symbol] for i, symbol in enumerate(alignment)).exp())
    return -np.log(total)


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_ctc_is_the_sum_over_all_alignments(layout: str) -> None:
    network = make_network("encoder", vocab_size=VOCAB, head=HeadConfig(kind="ctc", outputs=VOCAB + 1, bias=True))
    expected = [
        ctc_slowly(network(torch.tensor([source]))[0], target)
        for source, target in zip(SOURCES, TARGETS, strict=True)
        if target not in ([], [7, 7])  # an empty transcript has no label
    ]
    total, count = loss_sums(network, transcripts(), layout)
    assert total == pytest.approx(sum(expected), rel=1e-5)
    assert count == sum(len(target) for target in TARGETS if target != [7, 7])


def test_ctc_has_a_gradient_at_every_layer() -> None:
    network = make_network("encoder", vocab_size=VOCAB, head=HeadConfig(kind="ctc", outputs=VOCAB + 1, bias=True))
    module = TrainingModule(network.requires_grad_(True), ObjectiveSection())
    module(make_labelled_batch(first_batch(transcripts()), torch.device("cpu")), ONE, ONE).backward()
    trained = {name: p for name, p in network.named_parameters() if not name.startswith("front_ends.")}
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) and bool(p.grad.any()) for p in trained.values())


def test_transcripts_that_do_not_fit_are_left_out() -> None:
    objective = transcripts()
    assert objective.lengths(np.arange(8), EpochRng(0))[:, 0].tolist() == [3, 5, 4, 6, 1, 5, 0, 4]
    assert count_frames(np.array([1, 1, 1, 2, 2]), np.array([3, 2])).tolist() == [5, 3]


SECONDS = [1, 2, 3, 5, 4, 3, 1, 2]
FILES = [make_file(length, 1, seed=length) for length in SECONDS]
FORMAT = SquareFiles(mirrors=False)


def spoken() -> FramesObjective:
    texts = EncodeTexts("source", tokenizer(), {"source": "text"})
    records = [record(text="abc"[: 1 + i % 3], frames=file) for i, file in enumerate(FILES)]
    examples = InMemoryExamples.from_records(records, EncodePayloads(texts, {"target": ("frames", FORMAT)}))
    return FramesObjective(examples, tokenizer(), target_format=FORMAT, max_length=8, max_source_length=8)


def frames_slowly(network: Network, source: list[int], vectors: torch.Tensor, start: int) -> float:
    """The mean squared error of each frame, predicted from the frames before it; one forward pass for each frame."""
    total = 0.0
    for number, frame in enumerate(vectors):
        parts: list = [[start]]
        if number:
            parts.append(PayloadItem("squares", vectors[:number], (number, 1), number))
        inputs = Inputs.from_parts(parts, share_positions=False, placeholder_id=tokenizer().special_tokens.pad)
        out = network(Inputs(**{**vars(inputs), "source": Inputs(torch.tensor([source]))}))[0, -1]
        total += float((out - frame).square().mean())
    return total


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_frames_are_predicted_from_the_frames_before_them(layout: str) -> None:
    network = make_network("seq2seq", vocab_size=VOCAB, head=HeadConfig(kind="frames", outputs=3, bias=True))
    special, expected = tokenizer().special_tokens, 0.0
    for i, file in enumerate(FILES):
        vectors = torch.from_numpy(FORMAT.decode(*FORMAT.store(file), 0)).double()
        source = [*tokenizer().encode("abc"[: 1 + i % 3], add_special_tokens=False), special.eos]
        expected += frames_slowly(network, source, vectors, special.bos)
    total, count = loss_sums(network, spoken(), layout)
    assert count == sum(SECONDS)
    assert total == pytest.approx(expected, rel=1e-5)


def test_frames_need_one_position_each() -> None:
    merged = SquareFiles(merge=2)
    texts = EncodeTexts("source", tokenizer(), {"source": "text"})
    records = [record(text="a", frames=make_file(1, 4))]
    examples = InMemoryExamples.from_records(records, EncodePayloads(texts, {"target": ("frames", merged)}))
    with pytest.raises(UsageError, match="each frame must take one position"):
        FramesObjective(examples, tokenizer(), target_format=merged, max_length=8)
