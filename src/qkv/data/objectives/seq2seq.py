"""Sequence to sequence: the model reads a source and generates its target. Other objectives use the functions here.

Teacher forcing: the decoder reads the decoder start token and the target, and predicts the target and EOS.
"""

from collections.abc import Mapping
from typing import TypeVar

import numpy as np

from qkv.data.cache.examples import EncodedExamples
from qkv.data.cache.writer import RecordEncoder
from qkv.data.encode.encoders import EncodeTexts
from qkv.data.encode.payloads import EncodePayloads
from qkv.data.objectives.base import FlatExamples, TooLongPolicy, check_length, require_token
from qkv.data.objectives.record_objective import RecordObjective
from qkv.data.objectives.table import ObjectiveSetup, ObjectiveSpec, RecordField, RequiredTokens
from qkv.data.objectives.template import SpecialTokenTemplate
from qkv.data.payloads import FlatPayloads, PayloadField, PayloadFormat, PayloadSlot
from qkv.data.ragged import IntArray, ragged_index, ragged_join, ragged_starts
from qkv.data.stream.random_bits import EpochRng
from qkv.text import Tokenizer

S = TypeVar("S", bound="Seq2SeqObjective")


class EncodePair(EncodeTexts):
    """Encodes pairs of texts as `source` and `target`."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        source: str = "source",
        target: str = "target",
        *,
        source_tokenizer: Tokenizer | None = None,
    ):
        self.source_tokenizer = source_tokenizer or tokenizer
        fields = {"source": source, "target": target}
        super().__init__("pair", tokenizer, fields, source, target, self.source_tokenizer.fingerprint)

    def tokenizer_for(self, field: str) -> Tokenizer:
        """The source tokenizer for the field `source`, the target tokenizer for other fields."""
        return self.source_tokenizer if field == "source" else self.tokenizer


class Seq2SeqObjective(RecordObjective):
    """Records with `source` and `target`.

    The default of `max_source_length` is chosen so that source and target sequences fill up at the same rate.

    A truncated target has no EOS, so the model does not learn to stop there. `tokenizer` is for the target. If the
    source has a tokenizer of its own, pass `source_template=SpecialTokenTemplate.eos_only(source_tokenizer)`. With
    `source_format`, the sources are payloads, such as images.
    """

    name = "seq2seq"

    def __init__(
        self,
        examples: EncodedExamples,
        tokenizer: Tokenizer,
        *,
        max_length: int,
        max_source_length: int | None = None,
        too_long: TooLongPolicy = "error",
        source_template: SpecialTokenTemplate | None = None,
        decoder_start_token_id: int | None = None,
        source_payloads: Mapping[str, PayloadFormat] | None = None,
    ):
        payloads = source_payloads or {}
        self.reads_text = not payloads or ("source" in examples.fields and "source" not in payloads)
        super().__init__(examples, tokenizer, *(["source"] if self.reads_text else []), "target")
        self.source_payloads = [PayloadField(examples, name, format) for name, format in payloads.items()]
        formats = {format.kind: format for format in payloads.values()}
        self.payloads = tuple(PayloadSlot(format, is_source=True) for format in formats.values())
        self.too_long = too_long
        self.source_template = source_template or SpecialTokenTemplate.eos_only(tokenizer)
        self.decoder_start_token_id = find_decoder_start(tokenizer, decoder_start_token_id)
        self.eos_token_id = require_token("eos", tokenizer.special_tokens.eos, "sequence to sequence")
        if max_source_length is None:
            max_source_length = proportional_source_length(max_length, self.required_lengths(slice(None)))
        check_length("max_length", max_length, 1)
        check_length("max_source_length", max_source_length, self.source_template.num_special_tokens() + 1)
        self.max_lengths = (max_length, max_source_length)
        self.num_special_tokens = 1 + self.source_template.num_special_tokens()
        for payload in self.source_payloads:
            num_other = self.num_special_tokens - 1
            payload.check_lengths("max_source_length", max_source_length, self.too_long, num_other)
        self.count_records()

    def required_lengths(self, examples: IntArray | slice) -> IntArray:
        """The lengths of target and source with special tokens: (n, 2)."""
        target = self.field_lengths("target", examples) + 1
        source = self.text_lengths(examples)
        for payload in self.source_payloads:
            source = source + payload.lengths[examples]
        return np.stack([target, source + self.source_template.num_special_tokens()], axis=1)

    def text_lengths(self, examples: IntArray | slice) -> IntArray:
        """The lengths of the texts of the sources; 0 if the sources have none."""
        if self.reads_text:
            return self.field_lengths("source", examples)
        return np.zeros(len(self.examples), np.int64)[examples]

    def build(self, examples: IntArray, rng: EpochRng) -> FlatExamples:
        """Sources, and targets for teacher forcing."""
        max_length, max_source_length = self.max_lengths
        target = np.minimum(self.field_lengths("target", examples), max_length)
        ids, labels, lengths = shift_right(
            *self.gather_first("target", examples, target), self.decoder_start_token_id, self.eos_token_id, max_length
        )
        template = self.source_template
        parts = [payload.placeholders(examples, self.pad_token_id) for payload in self.source_payloads]
        if self.reads_text:
            room = max_source_length - template.num_special_tokens() - sum(counts for _, counts in parts)
            source = np.minimum(self.field_lengths("source", examples), room)
            parts.append(self.gather_first("source", examples, source))
        source_ids, source_lengths = template.add_special_tokens(ragged_join(parts))
        first: IntArray | int = len(template.prefix)
        found: dict[str, list[FlatPayloads]] = {slot.format.kind: [] for slot in self.payloads}
        for payload, (_, counts) in zip(self.source_payloads, parts, strict=False):
            found[payload.format.kind].append(payload.read(examples, rng, source_lengths, first))
            first = first + counts
        return FlatExamples(
            lengths,
            ids,
            {"tokens": labels},
            source_lengths=source_lengths,
            source_ids=source_ids,
            payloads=[FlatPayloads.join(several) for several in found.values()],
        )


def shift_right(
    target: IntArray, lengths: IntArray, decoder_start_token_id: int, eos_token_id: int, max_length: int | None = None
) -> tuple[IntArray, IntArray, IntArray]:
    """Concatenated targets → (decoder inputs, labels, lengths), each target at most `max_length` tokens long.

    >>> targets, lengths = np.array([7, 8, 9]), np.array([2, 1])
    >>> ids, labels, _ = shift_right(targets, lengths, decoder_start_token_id=0, eos_token_id=1)
    >>> ids.tolist(), labels.tolist()
    ([0, 7, 8, 0, 9], [7, 8, 1, 9, 1])
    """
    ones = np.ones(len(lengths), np.int64)
    start, eos = ((np.full(len(lengths), token, np.int32), ones) for token in (decoder_start_token_id, eos_token_id))
    whole, total = ragged_join([start, (target, lengths), eos])
    count = total - 1 if max_length is None else np.minimum(total - 1, max_length)
    inputs = ragged_index(ragged_starts(total), count)
    return whole[inputs], whole[inputs + 1], count


def find_decoder_start(tokenizer: Tokenizer, given: int | None = None) -> int:
    """The first token that a decoder reads: `given`, else BOS, else padding (as in T5 and Marian)."""
    special = tokenizer.special_tokens
    candidates = (given, special.bos, special.pad)
    return require_token(
        "bos", next((candidate for candidate in candidates if candidate is not None), None), "an encoder-decoder"
    )


def proportional_source_length(max_length: int, lengths: IntArray, multiple: int = 8) -> int:
    """The source length at which source and target sequences fill up at the same rate.

    `lengths` (n, 2) are the lengths of target and source; the result is rounded up to a `multiple`.
    """
    target, source = (float(total) for total in lengths.sum(axis=0))
    return max(multiple, int(np.ceil(max_length * source / max(target, 1.0) / multiple)) * multiple)


def make_encoder(setup: ObjectiveSetup) -> RecordEncoder:
    """The encoder of pairs of texts, or of payloads and texts."""
    if "source" not in setup.payloads:
        return EncodePair(setup.tokenizer.target, source_tokenizer=setup.tokenizer)
    texts = EncodeTexts("target", setup.tokenizer.target, {"target": "target"})
    return EncodePayloads(texts, {"source": ("source", setup.payloads["source"])})


def make_examples(setup: ObjectiveSetup, encoded: EncodedExamples) -> Seq2SeqObjective:
    """Pairs of source and target."""
    return make_objective(Seq2SeqObjective, setup, encoded)


def make_objective(kind: type[S], setup: ObjectiveSetup, encoded: EncodedExamples) -> S:
    """An objective of this class. Sources get the special tokens that the tokenizer adds at inference."""
    return kind(
        encoded,
        setup.tokenizer.target,
        **setup.sequence_kwargs,
        max_source_length=setup.max_source_length,
        source_template=SpecialTokenTemplate.for_source(setup.tokenizer),
        decoder_start_token_id=setup.decoder_start_token_id,
        source_payloads=setup.payloads,
    )


SPEC = ObjectiveSpec(
    name="seq2seq",
    families=("seq2seq",),
    head="lm",
    fields=(
        RecordField(
            "source",
            (
                *("src", "input", "document", "article", "dialogue", "dialog", "transcript", "written", "words"),
                *("question", "prompt", "text"),
            ),
            list_meaning="sentences",
        ),
        RecordField(
            "target",
            (
                *("tgt", "trg", "output", "summary", "highlights", "tldr", "iso", "digits", "answer", "completion"),
                "translation",
            ),
            list_meaning="alternatives",
        ),
    ),
    aligned_fields=("source", "target"),
    group_by="source",
    required_tokens=lambda options: RequiredTokens(("pad", "bos", "eos"), "eos"),
    too_long_policies=("skip", "truncate", "error"),
    options=("label_smoothing",),
    reads_payloads=True,
    make_encoder=make_encoder,
    make_examples=make_examples,
)
