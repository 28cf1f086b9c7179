"""Embed: a vector for each text, near to those of texts that mean the same."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.data.cache.examples import InMemoryExamples
from qkv.data.objectives import Classification
from qkv.data.records import Record
from qkv.data.stream.random_bits import EpochRng
from qkv.models import Config, Network
from qkv.tasks import metrics as measure
from qkv.tasks.run.classify import check_text_lengths, select_scored
from qkv.tasks.run.example_batches import ExampleBatches, at_least_float32, batches, max_sequence_length
from qkv.tasks.task import Evaluation, ProgressCallback, UsableRecords, evaluating, require_tokenizer, select_metrics
from qkv.text import Tokenizer
from qkv.train.watch import Sample

SCORE_METRICS = ("spearman", "pearson")
RETRIEVAL_METRICS = ("retrieval_accuracy", "mean_reciprocal_rank")
SIMILARITY_BATCH = 1024  # whose similarities to everything are held at a time


def run(
    network: Network,
    tokenizer: Tokenizer | None,
    config: Config,
    texts: Sequence[str],
    *,
    batch_size: int = 32,
    progress: ProgressCallback | None = None,
) -> Tensor:
    """The vectors of texts, (N, C), on the CPU. A text that is too long is an error."""
    found, sizes = embed_texts(network, require_tokenizer(tokenizer), config, texts, batch_size, progress)
    check_text_lengths(texts, sizes, max_sequence_length(config))
    return found


def available_metrics(config: Config, records: Sequence[Record]) -> tuple[str, ...]:
    """The metrics that can be asked for; first what a model is judged by."""
    return SCORE_METRICS if any("score" in record.fields for record in records) else RETRIEVAL_METRICS


def evaluate(
    network: Network,
    tokenizer: Tokenizer | None,
    config: Config,
    records: Sequence[Record],
    *,
    batch_size: int = 32,
    beam: int = 1,
    progress: ProgressCallback | None = None,
    metrics: Sequence[str] = (),
    max_samples: int = 5,
) -> Evaluation:
    """Whether vectors are near where texts belong together.

    Where records have a score, how far the cosine of the two texts' vectors agrees with it. Else how often, among all
    second texts, the one that belongs to a first text is the nearest.
    """
    usable = UsableRecords.select(records, first=str, second=str)
    listed, notes = usable.records, usable.notes
    scored = any("score" in record.fields for record in listed)
    usual = available_metrics(config, listed)
    names = select_metrics(metrics, usual, usual)
    wanted: list[float] = []
    if scored:
        listed, wanted = select_scored(listed, notes)
    texts = list(dict.fromkeys(record.fields[side] for side in ("first", "second") for record in listed))
    place = {text: number for number, text in enumerate(texts)}
    found, sizes = embed_texts(network, require_tokenizer(tokenizer), config, texts, batch_size, progress)
    if cut := int((sizes > max_sequence_length(config)).sum()):
        notes.append(f"{cut:,} of {len(texts):,} texts were cut to the {max_sequence_length(config):,} tokens that fit")
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
                model_input=record.fields["first"],
            )
            for record, cosine, score in list(zip(listed, near, wanted, strict=True))[:max_samples]
        ]
    else:
        seconds = list(dict.fromkeys(record.fields["second"] for record in listed))
        number = {text: place for place, text in enumerate(seconds)}
        own = torch.tensor([number[record.fields["second"]] for record in listed])
        rank, nearest = rank_partners(one, unit[[place[text] for text in seconds]], own)
        both = {
            "retrieval_accuracy": float((rank == 1).double().mean()),
            "mean_reciprocal_rank": float((1 / rank.double()).mean()),
        }
        scores = {name: both[name] for name in names}
        shown = [
            Sample(record.fields["first"], seconds[number], record.fields["second"])
            for record, number in list(zip(listed, nearest.tolist(), strict=True))[:max_samples]
        ]
    return Evaluation(scores, shown, names[0], len(listed), tuple(notes))


def rank_partners(queries: Tensor, candidates: Tensor, partner: Tensor) -> tuple[Tensor, Tensor]:
    """The rank (from 1) of each row's own partner among all of `two`, and which is nearest. Ties count for it."""
    ranks, nearest = [], []
    for start in range(0, len(queries), SIMILARITY_BATCH):
        near = queries[start : start + SIMILARITY_BATCH] @ candidates.T
        mine = near.gather(1, partner[start : start + SIMILARITY_BATCH, None])
        ranks.append((near > mine).sum(-1) + 1)
        nearest.append(near.argmax(-1))
    return torch.cat(ranks), torch.cat(nearest)


def embed_texts(
    network: Network,
    tokenizer: Tokenizer,
    config: Config,
    texts: Sequence[str],
    batch_size: int,
    progress: ProgressCallback | None = None,
) -> tuple[Tensor, np.ndarray]:
    """The vector of each text (N, C), laid out as in training and cut to fit, and the tokens (N,) of each."""
    if not texts:
        return torch.zeros(0, config.stack.width), np.zeros(0, np.int64)
    examples = [{"first": ids, "label": 0} for ids in tokenizer.encode_batch(texts)]
    objective = Classification(
        InMemoryExamples(examples, ("first", "label")),
        tokenizer,
        max_length=max_sequence_length(config),
        too_long="truncate",
    )
    pieces = objective.build(np.arange(len(texts)), EpochRng(0))
    laid = ExampleBatches(network, pieces, objective.pad_token_id)
    out: list[Tensor] = [torch.zeros(0)] * len(texts)
    with evaluating(network):
        for chosen in batches(pieces.lengths, batch_size, progress):
            for i, vector in zip(chosen, at_least_float32(laid.outputs(chosen)).cpu(), strict=True):
                out[i] = vector
    return torch.stack(out), objective.required_lengths(slice(None))[:, 0]
