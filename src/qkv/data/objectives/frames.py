"""Frames: an encoder-decoder reads a text and generates vectors of numbers, such as the frames of a spectrogram.

Teacher forcing: the decoder reads the decoder start token and all frames but the last, and predicts each frame by
regression. The frames that it reads are a payload with one placeholder for each frame.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.data.cache.examples import EncodedExamples
from qkv.data.cache.writer import RecordEncoder
from qkv.data.encode.encoders import EncodeTexts
from qkv.data.encode.payloads import EncodePayloads
from qkv.data.objectives.base import FlatExamples, Label, TooLongPolicy, check_length
from qkv.data.objectives.loss import ForwardPass, LossSums
from qkv.data.objectives.record_objective import RecordObjective
from qkv.data.objectives.seq2seq import find_decoder_start, proportional_source_length
from qkv.data.objectives.table import ObjectiveSetup, ObjectiveSpec, RecordField, RequiredTokens
from qkv.data.objectives.template import SpecialTokenTemplate
from qkv.data.payloads import FlatPayloads, PayloadField, PayloadFormat, PayloadSlot
from qkv.data.ragged import IntArray, ragged_index, ragged_join, ragged_starts
from qkv.data.stream.random_bits import EpochRng
from qkv.errors import UsageError
from qkv.text import Tokenizer

if TYPE_CHECKING:
    from qkv.blocks.config import HeadConfig


class FramesObjective(RecordObjective):
    """Records with `source`, a text, and `target`, a payload of frames: its size is (number of frames, 1)."""

    name = "frames"

    def __init__(
        self,
        examples: EncodedExamples,
        tokenizer: Tokenizer,
        *,
        target_format: PayloadFormat,
        max_length: int,
        max_source_length: int | None = None,
        too_long: TooLongPolicy = "error",
        source_template: SpecialTokenTemplate | None = None,
        decoder_start_token_id: int | None = None,
    ):
        super().__init__(examples, tokenizer, "source", "target")
        self.target_payloads, self.payloads = (
            PayloadField(examples, "target", target_format),
            (PayloadSlot(target_format),),
        )
        if (self.target_payloads.lengths != self.target_payloads.sizes.prod(axis=1)).any():
            raise UsageError(f"{target_format.kind} cannot be generated: each frame must take one position")
        self.labels = (Label("frames", "token", "float32", width=target_format.width),)
        self.too_long = too_long
        self.source_template = source_template or SpecialTokenTemplate.eos_only(tokenizer)
        self.decoder_start_token_id = find_decoder_start(tokenizer, decoder_start_token_id)
        self.num_special_tokens = self.source_template.num_special_tokens()
        if max_source_length is None:
            max_source_length = proportional_source_length(max_length, self.required_lengths(slice(None)))
        check_length("max_length", max_length, 1)
        check_length("max_source_length", max_source_length, self.num_special_tokens + 1)
        self.target_payloads.check_lengths("max_length", max_length, too_long, 0)
        self.max_lengths = (max_length, max_source_length)
        self.count_records()

    def required_lengths(self, examples: IntArray | slice) -> IntArray:
        """The number of frames, and the length of the source with special tokens: (n, 2)."""
        source = self.field_lengths("source", examples) + self.num_special_tokens
        return np.stack([self.target_payloads.lengths[examples], source], axis=1)

    def build(self, examples: IntArray, rng: EpochRng) -> FlatExamples:
        """Sources, and frames for teacher forcing."""
        count, source = self.lengths(examples, rng).T
        texts = self.gather_first("source", examples, source - self.num_special_tokens)
        source_ids, source_lengths = self.source_template.add_special_tokens(texts)
        whole = self.target_payloads.read(examples, rng, count, 0)
        is_input = ragged_index(np.zeros_like(count), count) < np.repeat(count - 1, count)  # all but the last frames
        has_input = count > 1
        start = np.full(len(count), self.decoder_start_token_id, np.int32), np.ones_like(count)
        ids, _ = ragged_join([start, (np.full(int(is_input.sum()), self.pad_token_id, np.int32), count - 1)])
        payloads = FlatPayloads(
            whole.values[is_input],
            np.stack([count - 1, np.ones_like(count)], axis=1)[has_input],
            (count - 1)[has_input],
            ragged_index(ragged_starts(count) + 1, count - 1),
        )
        labels = {"frames": whole.values.astype(np.float32)}
        return FlatExamples(
            count, ids, labels, source_lengths=source_lengths, source_ids=source_ids, payloads=[payloads]
        )

    def describe_labels(
        self, ids: IntArray, labels: Mapping[str, np.ndarray], decode: Callable[[Any], str], classes: Sequence[str]
    ) -> dict[str, str]:
        """The number of frames."""
        return {"target": f"{len(labels['frames']):,} frames of {labels['frames'].shape[1]:,} numbers"}


def frame_loss(run: ForwardPass) -> LossSums:
    """The squared error of each frame, as the mean over its numbers."""
    frames = run.labels["frames"]  # (B, T, F)
    out = run.head.project(run.hidden()[0]).float()
    squares = (out - frames.nan_to_num()).square().mean(-1)  # (B, T)
    return LossSums(tokens=(squares * frames.isfinite().all(-1)).sum())


def frame_labels(head: "HeadConfig") -> tuple[Label, ...]:
    """Vectors with a number for each output of the head."""
    return (Label("frames", "token", "float32", width=head.outputs),)


def make_encoder(setup: ObjectiveSetup) -> RecordEncoder:
    """The encoder of texts and frames."""
    if "target" not in setup.payloads:
        raise UsageError("the target of the objective frames must be a payload: give its field a modality of frames")
    texts = EncodeTexts("source", setup.tokenizer, {"source": "source"})
    return EncodePayloads(texts, {"target": ("target", setup.payloads["target"])})


SPEC = ObjectiveSpec(
    name="frames",
    families=("seq2seq",),
    head="frames",
    fields=(RecordField("source", ("text", "sentence")), RecordField("target", ("frames",))),
    group_by="source",
    required_tokens=lambda options: RequiredTokens(("pad", "bos", "eos"), "eos"),
    too_long_policies=("skip", "error"),
    options=(),
    reads_payloads=True,
    make_encoder=make_encoder,
    make_examples=lambda setup, encoded: FramesObjective(
        encoded,
        setup.tokenizer.target,
        **setup.sequence_kwargs,
        max_source_length=setup.max_source_length,
        source_template=SpecialTokenTemplate.for_source(setup.tokenizer),
        decoder_start_token_id=setup.decoder_start_token_id,
        target_format=setup.payloads["target"],
    ),
    loss=frame_loss,
    labels=frame_labels,
)
