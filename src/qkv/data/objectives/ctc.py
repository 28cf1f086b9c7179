"""Connectionist temporal classification (CTC): transcribe a sound without knowing where in it each token is.

The encoder reads the frames of the input. At each frame the head predicts a token or the blank, its last output. The
probability of a transcript is the sum over all alignments. An alignment is a sequence of predictions that gives the
transcript after equal neighbours are merged and blanks are removed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qkv.data.cache.examples import EncodedExamples
from qkv.data.cache.writer import RecordEncoder
from qkv.data.encode.encoders import EncodeTexts
from qkv.data.encode.payloads import EncodePayloads
from qkv.data.objectives.base import IGNORE_INDEX, FlatExamples, Label, TooLongPolicy, check_length
from qkv.data.objectives.loss import ForwardPass, LossSums
from qkv.data.objectives.record_objective import RecordObjective
from qkv.data.objectives.seq2seq import EncodePair
from qkv.data.objectives.table import ObjectiveSetup, ObjectiveSpec, RecordField, RequiredTokens
from qkv.data.payloads import PayloadField, PayloadFormat, PayloadSlot
from qkv.data.ragged import IntArray, ragged_index, ragged_starts
from qkv.data.stream.random_bits import EpochRng
from qkv.text import Tokenizer

WIDTH_MULTIPLE = 8


class CTCObjective(RecordObjective):
    """Records with `source`, a payload or a text, and `target`: the tokens of its transcript.

    A record is left out if its source has too few frames for its target: one for each token, and one for the blank
    between two equal tokens.
    """

    name = "ctc"

    def __init__(
        self,
        examples: EncodedExamples,
        tokenizer: Tokenizer,
        *,
        max_length: int,
        too_long: TooLongPolicy = "error",
        source_format: PayloadFormat | None = None,
    ):
        super().__init__(examples, tokenizer, "source", "target")
        check_length("max_length", max_length, 1)
        self.source_payloads = None if source_format is None else PayloadField(examples, "source", source_format)
        self.payloads = () if source_format is None else (PayloadSlot(source_format),)
        self.too_long = too_long
        self.max_lengths = (max_length,)
        self.num_special_tokens = 0
        if self.source_payloads is not None:
            self.source_payloads.check_lengths("max_length", max_length, too_long, 0)
        flat, offsets = examples.gather("target", np.arange(len(examples)))
        self.required_frames = count_frames(flat, np.diff(offsets))
        longest = max(1, int(np.diff(offsets).max()))
        width = -(-longest // WIDTH_MULTIPLE) * WIDTH_MULTIPLE
        self.labels = (Label("targets", "document", width=width, counts_values=True),)
        self.count_records()

    def count_records(self) -> None:
        """Records with too few frames count as skipped, too."""
        super().count_records()
        num_short = int((self.required_lengths(slice(None))[:, 0] == 0).sum())
        counts = self.counts
        self.counts = replace(counts, examples=counts.examples - num_short, skipped=counts.skipped + num_short)

    def required_lengths(self, examples: IntArray | slice) -> IntArray:
        """The number of frames of each source: (n, 1); 0 if they are too few for the target."""
        payloads = self.source_payloads
        frames = self.field_lengths("source", examples) if payloads is None else payloads.lengths[examples]
        return np.where(frames >= self.required_frames[examples], frames, 0)[:, None]

    def build(self, examples: IntArray, rng: EpochRng) -> FlatExamples:
        """Sources, and the tokens of their transcripts."""
        count, payloads = self.lengths(examples, rng)[:, 0], self.source_payloads
        if payloads is None:
            ids, _ = self.gather_first("source", examples, count)
        else:
            ids, _ = payloads.placeholders(examples, self.pad_token_id)
        flat, offsets = self.examples.gather("target", examples)
        targets = np.full((len(examples), self.labels[0].width), IGNORE_INDEX, np.int64)
        lengths = np.diff(offsets)
        rows = np.repeat(np.arange(len(examples)), lengths)
        targets[rows, ragged_index(np.zeros_like(lengths), lengths)] = flat
        found = [] if payloads is None else [payloads.read(examples, rng, count, 0)]
        return FlatExamples(count, ids, {"targets": targets}, payloads=found)

    def describe_labels(
        self, ids: IntArray, labels: Mapping[str, np.ndarray], decode: Callable[[Any], str], classes: Sequence[str]
    ) -> dict[str, str]:
        """The transcript."""
        return {"target": decode(labels["targets"][labels["targets"] != IGNORE_INDEX])}


def count_frames(flat: IntArray, lengths: IntArray) -> IntArray:
    """The least number of frames for each of n concatenated targets, at least 1.

    >>> count_frames(np.array([5, 5, 6, 7]), np.array([3, 1, 0])).tolist()
    [4, 1, 1]
    """
    repeats = np.zeros(len(flat) + 1, np.int64)
    repeats[1 : len(flat)] = flat[1:] == flat[:-1]
    starts = ragged_starts(lengths)
    repeats[starts] = 0  # the first token of a target has no neighbour before it
    sums = np.concatenate([[0], np.cumsum(repeats)])
    required: IntArray = np.maximum(lengths + sums[starts + lengths] - sums[starts], 1)
    return required


def ctc_loss(run: ForwardPass) -> LossSums:
    """The negative log-probability of each transcript: the sum over all of its alignments."""
    import torch
    from torch.nn import functional as F

    from qkv.blocks.head import document_membership

    inputs, targets = run.inputs, run.labels["targets"].flatten(0, 1)  # (B·E, L)
    assert inputs.document_ids is not None
    logits = run.head.project(run.hidden()[0])  # (B, T, V)
    member = document_membership(inputs.document_ids, inputs.max_documents)  # (B, E, T)
    lengths = member.sum(-1).flatten()  # (B·E,)
    num_targets = (targets != IGNORE_INDEX).sum(-1)
    exists = num_targets > 0
    max_length = inputs.max_document_length or logits.shape[1]
    first = member.int().argmax(-1)  # (B, E)
    index = first[..., None] + torch.arange(max_length, device=logits.device)  # (B, E, max_length)
    index = index.clamp(max=logits.shape[1] - 1).flatten(1)[..., None]
    frames = logits.gather(1, index.expand(-1, -1, logits.shape[2])).unflatten(1, (inputs.max_documents, max_length))
    losses = F.ctc_loss(
        frames.flatten(0, 1).transpose(0, 1).float().log_softmax(-1),  # (max_length, B·E, V)
        targets.clamp(min=0),
        torch.where(exists, lengths, 1),
        num_targets,
        blank=logits.shape[2] - 1,
        reduction="none",
    )
    return LossSums(documents=torch.where(exists, losses, 0.0).sum())


def make_encoder(setup: ObjectiveSetup) -> RecordEncoder:
    """The encoder of payloads, or texts, and their transcripts."""
    if "source" not in setup.payloads:
        return EncodePair(setup.tokenizer)
    texts = EncodeTexts("target", setup.tokenizer, {"target": "target"})
    return EncodePayloads(texts, {"source": ("source", setup.payloads["source"])})


SPEC = ObjectiveSpec(
    name="ctc",
    families=("encoder",),
    head="ctc",
    fields=(RecordField("source", ("input",)), RecordField("target", ("transcript", "transcription", "sentence"))),
    group_by="source",
    required_tokens=lambda options: RequiredTokens(("pad",)),
    too_long_policies=("skip", "error"),
    options=(),
    reads_payloads=True,
    make_encoder=make_encoder,
    make_examples=lambda setup, encoded: CTCObjective(
        encoded, setup.tokenizer, **setup.sequence_kwargs, source_format=setup.payloads.get("source")
    ),
    loss=ctc_loss,
    labels=lambda head: (Label("targets", "document", width=WIDTH_MULTIPLE, counts_values=True),),
)
