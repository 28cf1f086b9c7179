"""Embed: a vector for each text, near to those of texts that mean the same."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.data.draw import Draw
from qkv.data.examples import MemoryExamples
from qkv.data.objectives import Classify
from qkv.data.records import Record
from qkv.models import Config, Network
from qkv.tasks import metrics as measure
from qkv.tasks.classify import refuse_long, with_scores
from qkv.tasks.layout import Laid, batches, exact, room
from qkv.tasks.task import Evaluation, Progress, Usable, choose, evaluating, tokenizer_of
from qkv.text import Tokenizer
from qkv.train.watch import Sample

SCORED = ("spearman", "pearson")
PAIRED = ("retrieval_accuracy", "mean_reciprocal_rank")
ROWS = 1024  # whose similarities to everything are held at a time


def run(
    network: Network,
    tokenizer: Tokenizer | None,
    config: Config,
    texts: Sequence[str],
    *,
    batch: int = 32,
    progress: Progress | None = None,
) -> Tensor:
    """The vectors of texts, (N, C), on the CPU. A text that is too long is an error."""
    found, sizes = read(network, tokenizer_of(tokenizer), config, texts, batch, progress)
    refuse_long(texts, sizes, room(config))
    return found


def known(config: Config, records: Sequence[Record]) -> tuple[str, ...]:
    """The metrics that can be asked for; first what a model is judged by."""
    return SCORED if any("score" in record.fields for record in records) else PAIRED


def evaluate(
    network: Network,
    tokenizer: Tokenizer | None,
    config: Config,
    records: Sequence[Record],
    *,
    batch: int = 32,
    beam: int = 1,
    progress: Progress | None = None,
    metrics: Sequence[str] = (),
    samples: int = 5,
) -> Evaluation:
    """Whether vectors are near where texts belong together.

    Where records have a score, how far the cosine of the two texts' vectors agrees with it. Else how often, among all
    second texts, the one that belongs to a first text is the nearest.
    """
    usable = Usable.of(records, first=str, second=str)
    listed, notes = usable.records, usable.notes
    scored = any("score" in record.fields for record in listed)
    usual = known(config, listed)
    names = choose(metrics, usual, usual)
    wanted: list[float] = []
    if scored:
        listed, wanted = with_scores(listed, notes)
    texts = list(dict.fromkeys(record.fields[side] for side in ("first", "second") for record in listed))
    place = {text: number for number, text in enumerate(texts)}
    found, sizes = read(network, tokenizer_of(tokenizer), config, texts, batch, progress)
    if cut := int((sizes > room(config)).sum()):
        notes.append(f"{cut:,} of {len(texts):,} texts were cut to the {room(config):,} tokens that fit")
    unit = F.normalize(found.double(), dim=-1)
    one = unit[[place[record.fields["first"]] for record in listed]]
    if scored:
        two = unit[[place[record.fields["second"]] for record in listed]]
        near = (one * two).sum(-1).tolist()
        scores = {name: getattr(measure, name)(near, wanted) for name in names}
        shown = [
            Sample(
                f"{record.fields['first']} ‖ {record.fields['second']}",
                f"cosine {cosine:.3f}",
                f"{score:.3g}",
                typed=record.fields["first"],
            )
            for record, cosine, score in list(zip(listed, near, wanted, strict=True))[:samples]
        ]
    else:
        seconds = list(dict.fromkeys(record.fields["second"] for record in listed))
        number = {text: place for place, text in enumerate(seconds)}
        own = torch.tensor([number[record.fields["second"]] for record in listed])
        rank, nearest = ranked(one, unit[[place[text] for text in seconds]], own)
        both = {
            "retrieval_accuracy": float((rank == 1).double().mean()),
            "mean_reciprocal_rank": float((1 / rank.double()).mean()),
        }
        scores = {name: both[name] for name in names}
        shown = [
            Sample(record.fields["first"], seconds[number], record.fields["second"])
            for record, number in list(zip(listed, nearest.tolist(), strict=True))[:samples]
        ]
    return Evaluation(scores, shown, names[0], len(listed), tuple(notes))


def ranked(one: Tensor, two: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """The rank (from 1) of each row's own partner among all of `two`, and which is nearest. Ties count for it."""
    ranks, nearest = [], []
    for start in range(0, len(one), ROWS):
        near = one[start : start + ROWS] @ two.T
        mine = near.gather(1, own[start : start + ROWS, None])
        ranks.append((near > mine).sum(-1) + 1)
        nearest.append(near.argmax(-1))
    return torch.cat(ranks), torch.cat(nearest)


def read(
    network: Network,
    tokenizer: Tokenizer,
    config: Config,
    texts: Sequence[str],
    batch: int,
    progress: Progress | None = None,
) -> tuple[Tensor, np.ndarray]:
    """The vector of each text (N, C), laid out as in training and cut to fit, and the tokens (N,) of each."""
    if not texts:
        return torch.zeros(0, config.stack.width), np.zeros(0, np.int64)
    examples = [{"first": ids, "label": 0} for ids in tokenizer.encode_batch(texts)]
    objective = Classify(MemoryExamples(examples, ("first", "label")), tokenizer, length=room(config), too_long="cut")
    pieces = objective.build(np.arange(len(texts)), Draw(0))
    laid = Laid(network, pieces, objective.pad)
    out: list[Tensor] = [torch.zeros(0)] * len(texts)
    with evaluating(network):
        for chosen in batches(pieces.lengths, batch, progress):
            for i, vector in zip(chosen, exact(laid.outputs(chosen)).cpu(), strict=True):
                out[i] = vector
    return torch.stack(out), objective.sizes(slice(None))[:, 0]
