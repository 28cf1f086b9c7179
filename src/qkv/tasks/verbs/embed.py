"""Embed: compute a vector for each text; texts with similar meanings have similar vectors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.blocks import pool
from qkv.data.modalities import reads_files
from qkv.data.objectives import FlatExamples
from qkv.data.records import Record
from qkv.data.stream.random_bits import EpochRng
from qkv.models import Config
from qkv.models.runtime import eval_mode
from qkv.tasks import metrics
from qkv.tasks.baselines import count_common_words, rank_by_words
from qkv.tasks.evaluation import select_usable
from qkv.tasks.record_task import RecordTask
from qkv.tasks.results import Result
from qkv.tasks.run.example_batches import ExampleBatches, at_least_float32, build_unlabelled_examples
from qkv.tasks.run.long_texts import add_truncation_note, handle_long_texts
from qkv.tasks.scorer import Baseline, Metric, Prediction, TaskScorer, has_number, has_texts
from qkv.tasks.starters.starter import Starter
from qkv.tasks.task import TaskOptions
from qkv.tasks.text_model import TextModel
from qkv.tasks.verbs.classify import NumberScorer, select_scored
from qkv.train.watch import Sample

SIMILARITY_BATCH = 1024  # queries whose similarities to all candidates are in memory at a time


@dataclass(frozen=True, kw_only=True)
class EmbedOptions(TaskOptions):
    """Options of `m.embed`."""

    too_long: Annotated[Literal["error", "truncate"], 'For a text with too many tokens: "error" or "truncate".'] = (
        "error"
    )


@dataclass(frozen=True, repr=False)
class TextVector(Result):
    """The vector of a text."""

    vector: Annotated[list[float], "The components of the vector."]

    def summary(self) -> str:
        return " ".join(f"{value:.6g}" for value in self.vector)


class SimilarityScorer(NumberScorer):
    """The cosine of the embeddings of two texts, correlated with a score."""

    input_fields = ("first", "second")
    baselines: Mapping[str, Baseline] = {"words in common": Baseline(count_common_words)}

    def is_usable(self, record: Record) -> bool:
        return has_texts(record, "first", "second") and has_number(record)

    def predict(self, model: TextModel, records: Sequence[Record], options: Any, notes: list[str]) -> list[Prediction]:
        first, second = embed_sides(model, records, notes)
        return [(cosine, None) for cosine in (first * second).sum(-1).tolist()]

    def make_sample(self, record: Record, predicted: Any, expected: Any) -> Sample:
        first, second = record.fields["first"], record.fields["second"]
        return Sample(f"{first} ‖ {second}", f"cosine {predicted:.3f}", self.show(expected), model_input=first)


class Ranked(NamedTuple):
    """The rank of a text's own partner among all candidates, and the nearest candidate."""

    rank: int
    nearest: str = ""


class RetrievalScorer(TaskScorer):
    """The rank of the second text of each pair among all second texts, by similarity to the pair's first text."""

    modality, metric, input_fields = "number", "retrieval_accuracy", ("first", "second")
    metrics: Mapping[str, Metric] = {
        "retrieval_accuracy": lambda ours, theirs: metrics.mean_score([float(one.rank == 1) for one in ours]),
        "mean_reciprocal_rank": lambda ours, theirs: metrics.mean_score([1 / one.rank for one in ours]),
    }
    baselines: Mapping[str, Baseline] = {
        "BM25": Baseline(lambda scorer, training, records: [*map(Ranked, rank_by_words(records))]),
    }

    def is_usable(self, record: Record) -> bool:
        return has_texts(record, "first", "second")

    def expected(self, record: Record) -> Ranked:
        return Ranked(1, record.fields["second"])

    def predict(self, model: TextModel, records: Sequence[Record], options: Any, notes: list[str]) -> list[Prediction]:
        first, second = embed_sides(model, records, notes)
        seconds = [record.fields["second"] for record in records]
        candidates = {text: row for row, text in reversed([*enumerate(seconds)])}
        texts = list(dict.fromkeys(seconds))
        number = {text: i for i, text in enumerate(texts)}
        partner = torch.tensor([number[text] for text in seconds])
        rank, nearest = rank_partners(first, second[[candidates[text] for text in texts]], partner)
        return [(Ranked(int(r), texts[int(n)]), None) for r, n in zip(rank, nearest, strict=True)]

    def score_each(self, predicted: Sequence[Ranked], expected: Sequence[Ranked]) -> list[float]:
        return [1 / one.rank for one in predicted]

    def show(self, value: Ranked, record: Record | None = None) -> str:
        return f"rank {value.rank}"

    def make_sample(self, record: Record, predicted: Ranked, expected: Ranked) -> Sample:
        return Sample(record.fields["first"], predicted.nearest, expected.nearest)


def embed_sides(model: TextModel, records: Sequence[Record], notes: list[str]) -> tuple[Tensor, Tensor]:
    """The normalised embeddings of the first and of the second texts, in float64. Each text is embedded once."""
    sides = [[record.fields[name] for record in records] for name in ("first", "second")]
    texts = list(dict.fromkeys([*sides[0], *sides[1]]))
    row = {text: i for i, text in enumerate(texts)}
    vectors, lengths = embed_texts(model, texts)
    add_truncation_note(notes, lengths, model.config)
    vectors = F.normalize(at_least_float32(vectors).cpu().double(), dim=-1)
    first, second = (vectors[[row[text] for text in side]] for side in sides)
    return first, second


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
    model: TextModel, texts: Sequence[Any], *, pooling: str | None = None, longest_first: bool = True
) -> tuple[Tensor, np.ndarray]:
    """The vector of each text (N, C) on the network's device, and the texts' lengths with special tokens (N,).

    For a model of images, `texts` are images, and their lengths are 0.

    Without `pooling`, the model must have an embedding head, and texts are laid out and truncated as in training. With
    `pooling` ("first", "last" or "mean"), the hidden states of any model are pooled, and the tokenizer alone adds
    special tokens.
    """
    network, tokenizer, config = model.network, model.tokenizer, model.config
    if not texts:
        return torch.zeros(0, config.head.outputs or config.stack.width), np.zeros(0, np.int64)
    if reads_files(config):
        from qkv.tasks.run.payloads import compute_payload_outputs

        return compute_payload_outputs(model, texts, pooling), np.zeros(len(texts), np.int64)
    if pooling is None:
        objective = build_unlabelled_examples(model, [(text,) for text in texts])
        examples = objective.build(np.arange(len(texts)), EpochRng(0))
        lengths, pad_token_id = objective.required_lengths(slice(None))[:, 0], objective.pad_token_id
    else:
        ids = [tokenizer.encode(text) for text in texts]
        lengths, pad_token_id = np.array([len(sequence) for sequence in ids], np.int64), config.pad_token_id or 0
        examples = FlatExamples(lengths, np.concatenate(ids).astype(np.int64))
    batched = ExampleBatches(model, examples, pad_token_id)
    vectors: list[Tensor] = [torch.zeros(0)] * len(texts)
    with eval_mode(network):
        for chosen in batched.batches(longest_first=longest_first):
            x, layout = batched.hidden(chosen)
            pooled = network.head(x, layout) if pooling is None else pool(x, layout, pooling)[:, 0]
            for i, vector in zip(chosen, pooled, strict=True):
                vectors[i] = vector
    return torch.stack(vectors), lengths


class EmbedTask(RecordTask):
    """Compute an embedding of a text."""

    name = "embed"
    description = "computes an embedding of a text"
    modalities = ("text", "image")
    question = "Compute embeddings of texts."
    title = "Embedding"
    objective = "contrastive"
    inputs, target = ("first",), "second"
    calls = ()
    Options, results, scorers = EmbedOptions, (TextVector,), (RetrievalScorer, SimilarityScorer)
    starter = Starter(
        "Embeddings: texts that belong together come close.",
        "train.tsv",
        256,
        pretrained="sentence-transformers/all-MiniLM-L6-v2",
        exportable_preset="bert-base",
        objective_lines=(("temperature", 0.05, "lower values separate similar texts more sharply"),),
    )

    def decode(self, model: TextModel, texts: Sequence[str], options: EmbedOptions) -> list[TextVector]:
        """The vectors of texts, or of images if the model reads images."""
        vectors, lengths = embed_texts(model, texts)
        handle_long_texts(texts, lengths, model.config, options)
        return [TextVector(vector) for vector in at_least_float32(vectors).cpu().tolist()]

    def select(self, config: Config, records: Sequence[Record], options: Any, notes: list[str]) -> list[Record]:
        usable = select_usable(records, notes, first=str, second=str)
        return select_scored(usable, notes) if any("score" in record.fields for record in usable) else usable

    def find_scorer(self, config: Config, records: Sequence[Record]) -> TaskScorer:
        return SimilarityScorer() if any("score" in record.fields for record in records) else RetrievalScorer()


EMBED = EmbedTask()
