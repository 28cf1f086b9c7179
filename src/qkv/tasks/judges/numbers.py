"""Judges of scores and embeddings: correlations, and the ranks of texts."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch.nn import functional as F

from qkv.data.modalities import parse_number
from qkv.data.records import Record
from qkv.tasks import metrics
from qkv.tasks.judges.judge import BATCH_SIZE, Judge, Prediction, has_number, has_texts
from qkv.tasks.run.classify import compute_logits, record_text
from qkv.tasks.run.embed import embed_texts, rank_partners
from qkv.tasks.run.example_batches import at_least_float32
from qkv.tasks.task import TextModel


class NumberJudge(Judge):
    """A score for each text or pair of texts, compared by a correlation."""

    metric = "spearman"
    measures: ClassVar = {"spearman": metrics.spearman, "pearson": metrics.pearson}

    def is_usable(self, record: Record) -> bool:
        """Text and number."""
        return isinstance(record.fields.get("text"), str) and has_number(record)

    def expected(self, record: Record) -> float:
        """The score."""
        return parse_number(record, "score")

    def predict(self, model: TextModel, records: Sequence[Record]) -> list[Prediction]:
        """The predicted scores."""
        logits, _ = compute_logits(model, [record_text(one) for one in records], BATCH_SIZE)
        return [(float(row[0]), None) for row in logits]

    def score_each(self, predicted: Sequence[float], expected: Sequence[float]) -> list[float]:
        """1 minus the difference of the ranks, as a fraction of all ranks."""
        ours, theirs = ranks(predicted), ranks(expected)
        last = max(1, len(ours) - 1)
        return [1 - abs(one - two) / last for one, two in zip(ours, theirs, strict=True)]

    def show(self, value: float, record: Record | None = None) -> str:
        """Three significant digits."""
        return f"{value:.3g}"


class SimilarityJudge(NumberJudge):
    """The cosine of the embeddings of two texts, compared with a score."""

    input_fields = ("first", "second")

    def is_usable(self, record: Record) -> bool:
        """Two texts and a score."""
        return has_texts(record, "first", "second") and has_number(record)

    def predict(self, model: TextModel, records: Sequence[Record]) -> list[Prediction]:
        """The cosines."""
        first, second = (embed(model, [one.fields[name] for one in records]) for name in self.input_fields)
        return [(float(cosine), None) for cosine in (first * second).sum(-1)]


class RetrievalJudge(Judge):
    """The rank of each first text's own second text among all second texts."""

    metric, input_fields = "retrieval_accuracy", ("first", "second")

    def is_usable(self, record: Record) -> bool:
        """Two texts."""
        return has_texts(record, "first", "second")

    def expected(self, record: Record) -> int:
        """The first rank."""
        return 1

    def predict(self, model: TextModel, records: Sequence[Record]) -> list[Prediction]:
        """The ranks."""
        first = embed(model, [one.fields["first"] for one in records])
        seconds = [one.fields["second"] for one in records]
        number = {text: i for i, text in enumerate(dict.fromkeys(seconds))}
        partner = torch.tensor([number[text] for text in seconds])
        return [(int(rank), None) for rank in rank_partners(first, embed(model, list(number)), partner)[0]]

    def measure(self, predicted: Sequence[int], expected: Sequence[int]) -> float:
        """The fraction of first ranks."""
        return metrics.mean_score([float(rank == 1) for rank in predicted])

    def score_each(self, predicted: Sequence[int], expected: Sequence[int]) -> list[float]:
        """The reciprocal ranks."""
        return [1 / rank for rank in predicted]

    def show(self, value: int, record: Record | None = None) -> str:
        """The rank."""
        return f"rank {value}"


def embed(model: TextModel, texts: Sequence[str]) -> torch.Tensor:
    """The normalised embeddings of texts."""
    vectors = at_least_float32(embed_texts(model, texts, BATCH_SIZE)[0]).cpu().double()
    return F.normalize(vectors, dim=-1)


def ranks(values: Sequence[float]) -> list[int]:
    """The rank of each value, from 0.

    >>> ranks([0.5, 0.1, 0.9])
    [1, 0, 2]
    """
    order = sorted(range(len(values)), key=lambda i: values[i])
    found = [0] * len(values)
    for rank, i in enumerate(order):
        found[i] = rank
    return found
