"""The loss: over labelled places alone, counted by labels, the same however a batch is cut up."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from objective_cases import CASES, LM, a_batch, network
from synthetic_data import OBJECTIVES
from torch.nn import functional as F

from qkv.blocks import HeadConfig, Mask
from qkv.blocks.kernels import selection
from qkv.blocks.kernels.prepared import PreparedMask
from qkv.data.load.batch import Batch
from qkv.data.load.loader import Loader
from qkv.data.objectives import IGNORE_INDEX
from qkv.data.stream.sequences import SequenceStream
from qkv.train.loss import training_module as module
from qkv.train.loss.fused_cross_entropy import fused_cross_entropy
from qkv.train.loss.training_module import (
    DENSE_THRESHOLD,
    TrainingModule,
    find_labelled_positions,
    make_labelled_batch,
)
from qkv.train.recipe.schema import ObjectiveSection

CPU = torch.device("cpu")
ONE = torch.ones((), dtype=torch.float64)


def loss_of(learner: TrainingModule, batches: list[Batch], round_to: int = 1) -> torch.Tensor:
    labels, answers = (sum(counts) for counts in zip(*(batch.label_counts for batch in batches), strict=True))
    shares = [
        learner(make_labelled_batch(batch, CPU, round_to), ONE / max(labels, 1), ONE / max(answers, 1))
        for batch in batches
    ]
    return torch.stack(shares).sum()


def gradient_of(learner: TrainingModule, batches: list[Batch]) -> list[torch.Tensor]:
    learner.zero_grad()
    loss_of(learner, batches).backward()
    return [p.grad.clone() for p in learner.parameters() if p.grad is not None]


@pytest.mark.parametrize("name", CASES)
def test_every_objective_has_a_loss_that_reaches_the_embedding(name: str) -> None:
    learner = TrainingModule(network(*CASES[name]), ObjectiveSection())
    loss = loss_of(learner, [a_batch(name)])
    loss.backward()
    assert torch.isfinite(loss)
    first = next(learner.parameters())
    assert first.grad is not None
    assert first.grad.abs().sum() > 0


@pytest.mark.parametrize("name", [name for name in CASES if name != "contrast"])
def test_micro_batches_add_up_to_the_batch(name: str) -> None:
    """Trap 17: ragged rows, a short last part; averaging the parts' averages would differ."""
    learner = TrainingModule(network(*CASES[name]), ObjectiveSection(label_smoothing=0.1)).train()
    batch = a_batch(name, 3000)
    assert batch.batch_size > 2
    parts = batch.split(2)
    whole, split = gradient_of(learner, [batch]), gradient_of(learner, parts)
    for one, other in zip(whole, split, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-13)


def test_averages_of_averages_would_be_found() -> None:
    learner = TrainingModule(network(*CASES["next token"]), ObjectiveSection())
    parts = a_batch("next token", 3000).split(2)
    counts = [part.num_token_labels for part in parts]
    assert counts[0] != counts[1]
    wrong = sum(float(loss_of(learner, [part]).detach()) for part in parts) / len(parts)
    assert wrong != pytest.approx(float(loss_of(learner, parts).detach()), rel=1e-9)


def spied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by the number of queries of a row wherever the last block has fewer than all."""
    prepare, asked = selection.prepare_mask, list[int]()

    def seen(mask: Mask, *rest: Any, **more: Any) -> PreparedMask:
        asked.append(mask.query.positions.shape[1])
        return prepare(mask, *rest, **more)

    monkeypatch.setattr(selection, "prepare_mask", seen)
    return asked


FEW = {  # objectives whose loss reads some of the places only
    "masked": CASES["masked"],
    "tags": CASES["tags"],
    "classify": CASES["classify"],
    "classify by the last": ("decoder", HeadConfig(kind="classify", outputs=5, pool="last")),
}


@pytest.mark.parametrize("name", FEW)
def test_the_last_block_works_for_the_places_that_are_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the loss nor a gradient knows the difference; the feed-forward does."""
    learner = TrainingModule(network(*FEW[name]), ObjectiveSection(label_smoothing=0.1)).train()
    batch = a_batch(name.split(" by")[0], 3000)
    seen: list[int] = []
    stack = learner.network.encoder if FEW[name][0] == "encoder" else learner.network.decoder
    stack.blocks[-1].ffn.register_forward_hook(lambda _, inputs, out: seen.append(out.numel() // out.shape[-1]))
    asked = spied(monkeypatch)
    monkeypatch.setattr(module, "MAX_PADDING_RATIO", 2.0)  # its rows are short
    few = [loss_of(learner, [batch]).detach(), *gradient_of(learner, [batch])]
    assert len(asked) == (0 if name == "tags" else 2)  # every place of a text has a tag
    learner.can_select = False
    all_ = [loss_of(learner, [batch]).detach(), *gradient_of(learner, [batch])]
    assert seen[0] < DENSE_THRESHOLD * seen[2] == DENSE_THRESHOLD * batch.inputs.ids.numel()
    assert len(few) == len(all_)
    for one, other in zip(few, all_, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize(
    ("each", "shape", "rounded"),
    [
        ([19, 19, 18, 19], (4, 19), (4, 20)),  # about alike: as many for each row
        ([16, 16, 16, 16], (4, 16), (4, 16)),
        ([1, 1, 1, 1], (4, 1), (256,)),
        ([40, 40, 40, 40], (160,), (256,)),  # many: nothing would be saved
        ([30, 3, 0, 1], (34,), (256,)),  # not alike: end to end
        ([0, 0, 0, 0], (1,), (256,)),  # none: one place that says nothing
    ],
)
def test_labelled_places_row_by_row(each: list[int], shape: tuple[int, ...], rounded: tuple[int, ...]) -> None:
    """None is lost or counted twice, and what fills a row up lies in it."""
    draw = np.random.default_rng(0)
    labels = np.full((4, 128), IGNORE_INDEX)
    for row, count in enumerate(each):
        labels[row, draw.choice(128, count, replace=False)] = draw.integers(0, 9, count)
    for round_to, wanted in ((1, shape), (256, rounded)):
        places, real = find_labelled_positions(labels, round_to)
        assert places.shape == real.shape == wanted
        assert sorted(places[real].tolist()) == np.flatnonzero(labels != IGNORE_INDEX).tolist()
        assert places.ndim == 1 or bool((places // 128 == np.arange(4)[:, None]).all())


@pytest.mark.parametrize("pool", ["first", "last", "mean"])
def test_classes_are_read_where_the_head_reads_them(pool: str) -> None:
    """Against the head's own choice among all vectors."""
    head = HeadConfig(kind="classify", outputs=5, pool=pool)
    learner = TrainingModule(network("encoder", head), ObjectiveSection()).train()
    batch = a_batch("classify", 3000)
    logits = learner.network(batch.inputs).flatten(0, 1)
    wanted = F.cross_entropy(logits, batch.labels["classes"].flatten(), ignore_index=IGNORE_INDEX)
    torch.testing.assert_close(loss_of(learner, [batch]), wanted, rtol=1e-10, atol=0, check_dtype=False)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("name", ["next token", "masked", "pairs", "tags"])
def test_padding_changes_neither_loss_nor_gradient(name: str, smoothing: float) -> None:
    """Trap 16: places without a label count for nothing, smoothed or not."""
    learner = TrainingModule(network(*CASES[name]), ObjectiveSection(label_smoothing=smoothing)).train()
    batch = a_batch(name)

    longer = replace(
        batch,
        inputs=replace(
            batch.inputs,
            ids=F.pad(batch.inputs.ids, (0, 9), value=7),
            document_ids=F.pad(batch.inputs.document_ids, (0, 9)),
            positions=F.pad(batch.inputs.positions, (0, 9)),
        ),
        labels={"tokens": F.pad(batch.labels["tokens"], (0, 9), value=IGNORE_INDEX)},
    )
    torch.testing.assert_close(loss_of(learner, [batch]), loss_of(learner, [longer]), rtol=1e-12, atol=0)
    for one, other in zip(gradient_of(learner, [batch]), gradient_of(learner, [longer]), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize(("name", "cap"), [("masked", 0.0), ("pairs", 0.0), ("next token", 0.0), ("next token", 0.05)])
def test_the_loss_is_the_cross_entropy_of_all_logits_written_out(name: str, cap: float) -> None:
    family, head = CASES[name]
    learner = TrainingModule(
        network(family, replace(head, logit_cap=cap)), ObjectiveSection(label_smoothing=0.2)
    ).train()
    batch = a_batch(name)
    logits = learner.network(batch.inputs).flatten(0, 1)
    labels = batch.labels["tokens"].flatten()
    known = labels != IGNORE_INDEX
    likely = logits[known].log_softmax(-1)
    right = likely.gather(1, labels[known][:, None])[:, 0]
    written_out = -(0.8 * right + 0.2 * likely.mean(-1)).sum() / known.sum()
    torch.testing.assert_close(loss_of(learner, [batch]), written_out, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", ["next token", "pairs"])
def test_outputs_for_later_tokens_add_their_losses_in_training(name: str) -> None:
    family, head = CASES[name]
    learner = TrainingModule(network(family, replace(head, future_tokens=2)), ObjectiveSection()).train()
    batch = a_batch(name)
    x, _ = learner.network.hidden(batch.inputs)
    labels, documents = batch.labels["tokens"], batch.inputs.document_ids
    total = torch.zeros((), dtype=torch.float64)
    counts = []
    for distance, future in enumerate([torch.nn.Identity(), *learner.network.head.future]):
        log_probs = learner.network.head.project(future(x)).log_softmax(-1)
        counts.append(0)
        for row in range(len(labels)):
            for t in range(labels.shape[1] - distance):
                label = int(labels[row, t + distance])
                is_same = documents is None or documents[row, t] == documents[row, t + distance]
                if labels[row, t] != IGNORE_INDEX and label != IGNORE_INDEX and is_same:
                    total -= log_probs[row, t, label]
                    counts[-1] += 1
    assert counts[0] > counts[1] > counts[2] > 0, "the last tokens of a document have no later ones"
    torch.testing.assert_close(loss_of(learner, [batch]), total / counts[0], rtol=1e-10, atol=0)
    assert loss_of(learner.eval(), [batch]) < total / counts[0], "validation: the next token only"


def test_logits_are_made_for_labelled_places_only(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = TrainingModule(network(*CASES["masked"]), ObjectiveSection())
    batch = a_batch("masked")
    sizes: list[int] = []
    monkeypatch.setattr(
        module, "fused_cross_entropy", lambda x, *more: sizes.append(len(x)) or fused_cross_entropy(x, *more)
    )
    loss_of(learner, [batch])
    assert sizes == [batch.num_token_labels]
    assert batch.num_token_labels < batch.inputs.ids.numel() / 4


def test_rounding_up_the_places_changes_nothing() -> None:
    learner = TrainingModule(network(*CASES["masked"]), ObjectiveSection(label_smoothing=0.1))
    batch = a_batch("masked")
    assert make_labelled_batch(batch, CPU, 64).positions.numel() % 64 == 0
    torch.testing.assert_close(loss_of(learner, [batch]), loss_of(learner, [batch], 64), rtol=1e-13, atol=0)


@pytest.mark.parametrize("plain", [True, False])
def test_large_vocabularies_are_read_in_parts_with_the_same_result(
    plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the fused loss, or where the output is no plain matrix by making the logits again in the backward pass."""
    learner = TrainingModule(network(*CASES["pairs"]), ObjectiveSection(label_smoothing=0.1))
    batch = a_batch("pairs")
    assert batch.num_token_labels > 200
    whole = gradient_of(learner, [batch])
    sizes: list[int] = []
    linear = F.linear
    monkeypatch.setattr(F, "linear", lambda x, w, *b: (len(w) == 400 and sizes.append(len(x))) or linear(x, w, *b))
    if not plain:
        learner.network.head.out.__class__ = type("Adapted", (torch.nn.Linear,), {})
    monkeypatch.setitem(module.MAX_LOGITS, "cpu", 400 * 100)
    for one, other in zip(whole, gradient_of(learner, [batch]), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-14)
    assert sizes
    assert max(sizes) <= 100
    assert sum(sizes) == batch.num_token_labels * (1 if plain else 2)  # nothing twice


def test_evaluation_is_not_smoothed() -> None:
    learner = TrainingModule(network(*CASES["pairs"]), ObjectiveSection(label_smoothing=0.3))
    plain = TrainingModule(learner.network, ObjectiveSection())
    batch = a_batch("pairs")
    assert float(loss_of(learner.train(), [batch]).detach()) != float(loss_of(plain.train(), [batch]).detach())
    assert float(loss_of(learner.eval(), [batch]).detach()) == float(loss_of(plain.eval(), [batch]).detach())


def test_an_answer_is_chosen_within_its_own_text() -> None:
    """Changing another text of the row changes nothing of what a text's answer costs."""
    learner = TrainingModule(network(*CASES["answers"]), ObjectiveSection()).eval()
    batch = a_batch("answers", 2000)
    row = int(np.argmax([len(examples) for examples in batch.examples]))
    assert len(batch.examples[row]) > 1
    only = {name: torch.full_like(values, IGNORE_INDEX) for name, values in batch.labels.items()}
    for name, values in batch.labels.items():
        only[name][row, 0] = values[row, 0]
    asked = replace(batch, labels=only)
    ids = torch.where(batch.inputs.document_ids == 2, 9, batch.inputs.ids)
    other = replace(asked, inputs=replace(batch.inputs, ids=ids))
    assert not torch.equal(asked.inputs.ids[row], ids[row])
    torch.testing.assert_close(
        learner(make_labelled_batch(asked, CPU), ONE, ONE),
        learner(make_labelled_batch(other, CPU), ONE, ONE),
        rtol=1e-12,
        atol=0,
    )


def test_contrast_falls_when_partners_are_alike() -> None:
    learner = TrainingModule(network(*CASES["contrast"]), ObjectiveSection())
    batch = a_batch("contrast")
    same = replace(batch, inputs=replace(batch.inputs, source=batch.inputs))
    assert float(loss_of(learner, [same]).detach()) < float(loss_of(learner, [batch]).detach())


def test_rows_of_one_text_each_take_the_plain_way_to_the_same_gradient() -> None:
    """Pairs that are padded at their ends, and such that are not: known from counting, not from looking."""
    learner = TrainingModule(network("seq2seq", LM), ObjectiveSection())
    objective = OBJECTIVES["pairs"]()
    batches = list(Loader(SequenceStream(objective, batch_tokens=400, layout="padded", seed=1), epochs=1))
    ragged = next(batch for batch in batches if not batch.source_unpadded)
    assert ragged.one_document_each
    assert learner.can_skip_mask(ragged)
    assert not learner.can_skip_source_mask(ragged)
    even = cut_to_shortest(ragged)
    assert learner.can_skip_source_mask(even)
    for batch in (ragged, even):
        looked = replace(batch, one_document_each=False, unpadded=False, source_unpadded=False)
        assert not learner.can_skip_mask(looked)
        for fast, slow in zip(gradient_of(learner, [batch]), gradient_of(learner, [looked]), strict=True):
            torch.testing.assert_close(fast, slow, rtol=1e-9, atol=1e-12)
    lied = replace(ragged, source_unpadded=True)  # a control: padding that is taken for text is noticed
    pairs = zip(gradient_of(learner, [ragged]), gradient_of(learner, [lied]), strict=True)
    assert any((a - b).abs().max() > 1e-6 for a, b in pairs)


def cut_to_shortest(batch: Batch) -> Batch:
    """The same with sources as short as the shortest."""
    source = batch.inputs.source
    assert source is not None
    shortest = int((source.document_ids > 0).sum(1).min())
    return replace(batch, source_unpadded=True, inputs=replace(batch.inputs, source=source.columns(0, shortest)))


@pytest.mark.parametrize(
    ("positions", "outputs", "device", "chunks"),
    [(2048, 32_000, "cuda", 1), (2048, 5_000, "cpu", 8), (2048, 50_000, "cpu", 8), (10, 50_000, "cpu", 1)],
)
def test_the_loss_of_a_cpu_is_computed_in_chunks_that_are_not_tiny(
    positions: int, outputs: int, device: str, chunks: int
) -> None:
    assert module.count_chunks(positions, outputs, device) == chunks
