"""Embed: compute a vector for each text; texts with similar meanings have similar vectors."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.blocks import pool
from qkv.data.objectives import FlatExamples
from qkv.data.objectives.table import OBJECTIVES
from qkv.data.records import Record
from qkv.data.stream.random_bits import EpochRng
from qkv.models import Config
from qkv.models.runtime.eval_mode import eval_mode
from qkv.progress import OnProgress
from qkv.tasks import metrics
from qkv.tasks.run.classify import select_scored
from qkv.tasks.run.example_batches import ExampleBatches, at_least_float32, batches, build_unlabelled_examples
from qkv.tasks.run.long_texts import add_truncation_note, check_too_long, handle_long_texts
from qkv.tasks.task import Evaluation, EvaluationOptions, TextModel, select_metrics, select_usable
from qkv.train.watch import Sample

METRICS = OBJECTIVES["contrastive"].metrics
TOO_LONG_CHOICES = ("error", "truncate")  # an embedding needs the whole text, so it cannot be split
SIMILARITY_BATCH = 1024  # queries whose similarities to all candidates are in memory at a time


def run(
    model: TextModel,
    texts: Sequence[str],
    *,
    too_long: str = "error",
    batch_size: int = 32,
    progress: OnProgress | None = None,
) -> Tensor:
    """The vectors of texts, (N, C), on the CPU. A text that is too long is an error, or truncated (`too_long`)."""
    check_too_long(too_long, TOO_LONG_CHOICES)
    vectors, lengths = embed_texts(model, texts, batch_size, progress)
    handle_long_texts(texts, lengths, model.config, too_long, TOO_LONG_CHOICES)
    return at_least_float32(vectors).cpu()


def available_metrics(config: Config, records: Sequence[Record]) -> tuple[str, ...]:
    """The metrics, the main one first."""
    return METRICS["score" if any("score" in record.fields for record in records) else "pair"]


def evaluate(model: TextModel, records: Sequence[Record], options: EvaluationOptions) -> Evaluation:
    """Evaluate whether the texts of a pair have similar vectors.

    If the records have scores, the metrics correlate the cosine of the two vectors with the score. Otherwise, each
    first text is a query, all second texts are candidates, and the metrics measure the rank of the query's own second
    text.
    """
    records, notes = select_usable(records, first=str, second=str)
    has_scores = any("score" in record.fields for record in records)
    usual = available_metrics(model.config, records)
    names = select_metrics(options.metrics, usual, usual)
    targets: list[float] = []
    if has_scores:
        records, targets = select_scored(records, notes)
    first_texts, second_texts = ([record.fields[side] for record in records] for side in ("first", "second"))
    texts = list(dict.fromkeys([*first_texts, *second_texts]))
    index = {text: i for i, text in enumerate(texts)}
    vectors, lengths = embed_texts(model, texts, options.batch_size, options.progress)
    add_truncation_note(notes, lengths, model.config)
    vectors = F.normalize(at_least_float32(vectors).cpu().double(), dim=-1)
    first = vectors[[index[text] for text in first_texts]]
    samples: list[Sample] = []
    shown = list(range(len(records)))[: options.max_samples]
    if has_scores:
        cosines = (first * vectors[[index[text] for text in second_texts]]).sum(-1).tolist()
        scores = {name: getattr(metrics, name)(cosines, targets) for name in names}
        for i in shown:
            pair = f"{first_texts[i]} ‖ {second_texts[i]}"
            samples.append(Sample(pair, f"cosine {cosines[i]:.3f}", f"{targets[i]:.3g}", model_input=first_texts[i]))
    else:
        candidates = list(dict.fromkeys(second_texts))
        number = {text: i for i, text in enumerate(candidates)}
        partner = torch.tensor([number[text] for text in second_texts])
        rank, nearest = rank_partners(first, vectors[[index[text] for text in candidates]], partner)
        both = {
            "retrieval_accuracy": metrics.mean_score((rank == 1).double().numpy()),
            "mean_reciprocal_rank": metrics.mean_score((1 / rank.double()).numpy()),
        }
        scores = {name: both[name] for name in names}
        samples = [Sample(first_texts[i], candidates[int(nearest[i])], second_texts[i]) for i in shown]
    return Evaluation(scores, samples, names[0], len(records), tuple(notes))


def rank_partners(queries: Tensor, candidates: Tensor, partner: Tensor) -> tuple[Tensor, Tensor]:
    """The rank (from 1) of each query's partner among all candidates, and the index of the nearest candidate.

    Ties count in favour of the partner.
    """
    ranks, nearest = [], []
    for start in range(0, len(queries), SIMILARITY_BATCH):
        similarity = queries[start : start + SIMILARITY_BATCH] @ candidates.T
        own = similarity.gather(1, partner[start : start + SIMILARITY_BATCH, None])
        ranks.append((similarity > own).sum(-1) + 1)
        nearest.append(similarity.argmax(-1))
    return torch.cat(ranks), torch.cat(nearest)


def embed_texts(
    model: TextModel,
    texts: Sequence[str],
    batch_size: int,
    progress: OnProgress | None = None,
    *,
    pooling: str | None = None,
    longest_first: bool = True,
) -> tuple[Tensor, np.ndarray]:
    """The vector of each text (N, C) on the network's device, and the texts' lengths with special tokens (N,).

    Without `pooling`, the model must have an embedding head, and texts are laid out and truncated as in training. With
    `pooling` ("first", "last" or "mean"), the hidden states of any model are pooled, and the tokenizer alone adds
    special tokens.
    """
    network, tokenizer, config = model.network, model.tokenizer, model.config
    if not texts:
        return torch.zeros(0, config.stack.width), np.zeros(0, np.int64)
    if pooling is None:
        objective = build_unlabelled_examples(model, [(text,) for text in texts])
        examples = objective.build(np.arange(len(texts)), EpochRng(0))
        lengths, pad_token_id = objective.required_lengths(slice(None))[:, 0], objective.pad_token_id
    else:
        ids = [tokenizer.encode(text) for text in texts]
        lengths, pad_token_id = np.array([len(one) for one in ids], np.int64), config.pad_token_id or 0
        examples = FlatExamples(lengths, np.concatenate(ids).astype(np.int64))
    batched = ExampleBatches(network, examples, pad_token_id)
    vectors: list[Tensor] = [torch.zeros(0)] * len(texts)
    with eval_mode(network):
        for chosen in batches(examples.lengths, batch_size, progress, longest_first=longest_first):
            x, layout = batched.hidden(chosen)
            pooled = network.head(x, layout) if pooling is None else pool(x, layout, pooling)[:, 0]
            for i, vector in zip(chosen, pooled, strict=True):
                vectors[i] = vector
    return torch.stack(vectors), lengths
