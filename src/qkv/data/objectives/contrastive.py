"""Contrastive learning of embeddings from pairs of texts that belong together.

Of single texts with a label or a score, `qkv.data.pairs` makes pairs with scores.

The first text of a pair is stored as the source and the second as the target, with the same document id, so that pairs
are packed as in sequence-to-sequence models. One encoder reads both texts. The model learns to make the two vectors of
a pair similar, and the vectors of different pairs dissimilar.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qkv.data.cache.examples import EncodedExamples
from qkv.data.cache.writer import RecordEncoder
from qkv.data.encode.encoders import EncodeClass
from qkv.data.objectives.base import IGNORE_INDEX, FlatExamples, Label, TooLongPolicy, check_length
from qkv.data.objectives.loss import ForwardPass, LossSums
from qkv.data.objectives.record_objective import RecordObjective
from qkv.data.objectives.seq2seq import proportional_source_length
from qkv.data.objectives.table import WHOLE, ObjectiveSetup, ObjectiveSpec, RecordField, bert_tokens
from qkv.data.objectives.template import SpecialTokenTemplate
from qkv.data.ragged import IntArray
from qkv.data.stream.random_bits import EpochRng
from qkv.errors import UsageError
from qkv.text import Tokenizer

SIDE_FIELDS = ("second", "first")  # the fields of the target and of the source
SCORES = Label("scores", "document", "float32")


class ContrastiveObjective(RecordObjective):
    """Records with `first` and `second`, and optionally `score`: the desired cosine similarity of the two vectors."""

    name = "contrastive"

    def __init__(
        self,
        examples: EncodedExamples,
        tokenizer: Tokenizer,
        *,
        max_length: int,
        max_source_length: int | None = None,
        too_long: TooLongPolicy = "error",
    ):
        super().__init__(examples, tokenizer, *SIDE_FIELDS)
        self.too_long = too_long
        self.template = SpecialTokenTemplate.from_tokenizer(tokenizer)
        self.has_scores = "score" in examples.fields
        if max_source_length is None:
            max_source_length = proportional_source_length(max_length, self.required_lengths(slice(None)))
        minimum = self.template.num_special_tokens() + 1
        check_length("max_length", max_length, minimum)
        check_length("max_source_length", max_source_length, minimum)
        self.max_lengths = (max_length, max_source_length)
        self.num_special_tokens = 2 * self.template.num_special_tokens()
        self.labels = (SCORES,) if self.has_scores else ()
        self.count_records()
        self._check_scores()

    def _check_scores(self) -> None:
        """Raise if a score is outside −1 to 1, the range of the cosine similarity."""
        if not self.has_scores or not len(self.examples):
            return
        scores = self.examples.gather("score", np.arange(len(self.examples)))[0]
        lowest, highest = float(np.nanmin(scores)), float(np.nanmax(scores))
        if lowest < -1 or highest > 1:
            raise UsageError(
                f"the scores range from {lowest:g} to {highest:g}, but they are compared with cosine similarities, "
                f"which range from -1 to 1: set data.max_score = {max(-lowest, highest):g} in the recipe"
            )

    def required_lengths(self, examples: IntArray | slice) -> IntArray:
        """The lengths of both texts with special tokens: (n, 2)."""
        lengths = [self.field_lengths(field, examples) for field in SIDE_FIELDS]
        return np.stack(lengths, axis=1) + self.template.num_special_tokens()

    def build(self, examples: IntArray, rng: EpochRng) -> FlatExamples:
        """The second text as the target and the first as the source, each with special tokens; and the scores."""
        kept = (
            np.minimum(self.required_lengths(examples), self.max_lengths) - self.template.num_special_tokens()
        )  # (n, 2)
        (ids, lengths), (source_ids, source_lengths) = (
            self.template.add_special_tokens(self.gather_first(field, examples, count))
            for field, count in zip(SIDE_FIELDS, kept.T, strict=True)
        )
        labels = {"scores": self.examples.gather("score", examples)[0]} if self.has_scores else {}
        return FlatExamples(lengths, ids, labels, source_lengths=source_lengths, source_ids=source_ids)

    def describe_labels(
        self, ids: IntArray, labels: Mapping[str, np.ndarray], decode: Callable[[Any], str], classes: Sequence[str]
    ) -> dict[str, str]:
        """The score, if there is one."""
        return {"score": f"{float(labels['scores']):g}"} if labels else {}


def contrastive_loss(run: ForwardPass) -> LossSums:
    """The InfoNCE loss of pairs of documents, or their squared error if they have scores.

    InfoNCE: each source must find its target among all targets of the micro-batch, and each target its source. The loss
    of a pair is the mean of both. The squared error compares the cosine of the two vectors with the score.
    """
    import torch
    from torch.nn.functional import normalize

    inputs, max_documents = run.inputs, run.inputs.max_documents
    assert inputs.source is not None
    embeddings = []
    for side in (inputs.source, inputs):
        x, layout = run.hidden(replace(side, source=None, max_document_length=0))
        pooled = run.head(x, layout, max_documents).flatten(0, 1)  # (B·E, C)
        embeddings.append(normalize(pooled.float(), dim=-1))
    source, target = embeddings
    if "scores" in run.labels:
        scores = run.labels["scores"].flatten()
        error = (source * target).sum(-1) - scores.nan_to_num()
        return LossSums(documents=(error.square() * scores.isfinite()).sum())
    assert inputs.document_ids is not None
    number = torch.arange(1, max_documents + 1, device=source.device)
    exists = (inputs.document_ids[:, :, None] == number).any(1).flatten()  # (B·E,) which slots hold a pair
    with torch.autocast(source.device.type, enabled=False):  # dividing by a small number magnifies rounding
        logits = (source @ target.T) / run.options.temperature
    labels = torch.arange(len(source), device=source.device).masked_fill(~exists, IGNORE_INDEX)
    forward = run.cross_entropy(logits.masked_fill(~exists[None], -1e9), labels)
    backward = run.cross_entropy(logits.T.masked_fill(~exists[None], -1e9), labels)
    return LossSums(documents=(forward + backward) / 2)


def make_encoder(setup: ObjectiveSetup) -> RecordEncoder:
    """The encoder of pairs of texts, with a score if the records have one."""
    score = "score" if "score" in setup.fields else None
    return EncodeClass(setup.tokenizer, "first", "second", score=score, max_score=setup.max_score)


SPEC = ObjectiveSpec(
    name="contrastive",
    families=("encoder",),
    head="embed",
    fields=(
        RecordField("first", ("anchor", "query", "question", "sentence1", "sentence_a", "text1", "a")),
        RecordField(
            "second",
            ("positive", "document", "passage", "answer", "sentence2", "sentence_b", "text2", "b"),
            unless=("label", "score"),
        ),
        RecordField("score", ("similarity", "relatedness_score", "label"), "number", optional=True),
        RecordField("label", ("class", "family", "category"), "label", optional=True),
    ),
    aligned_fields=("first", "second"),
    group_by="first",
    required_tokens=bert_tokens,
    too_long_policies=WHOLE,
    options=("temperature",),
    make_encoder=make_encoder,
    make_examples=lambda setup, encoded: ContrastiveObjective(
        encoded, setup.tokenizer, **setup.sequence_kwargs, max_source_length=setup.max_source_length
    ),
    loss=contrastive_loss,
    labels=lambda head: (),
)
