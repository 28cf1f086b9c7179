"""Span corruption (T5): spans of a text are replaced by sentinel tokens, and the model generates the removed spans.

    text     Thank you for inviting me to your party last week .
    source   Thank you <0> me to your party <1> week . </s>
    target   <0> for inviting <1> last </s>

15 % of the tokens are removed, in spans of 3 tokens on average. A text begins with a kept span and ends with a removed
span, as in T5's code. The lengths of source and target depend only on the length of the text.
"""

import numpy as np

from qkv.data.cache.examples import EncodedExamples
from qkv.data.objectives.base import FlatExamples, TooLongPolicy, check_length, require_token
from qkv.data.objectives.seq2seq import find_decoder_start, shift_right
from qkv.data.objectives.table import ANY_LENGTH, TEXT_FIELD, ObjectiveSetup, ObjectiveSpec, RequiredTokens
from qkv.data.objectives.windows import WindowObjective, encode_documents
from qkv.data.ragged import IntArray, ragged_index, ragged_join
from qkv.data.stream.random_bits import EpochRng, random_compositions
from qkv.errors import UsageError
from qkv.text import Tokenizer


class SpanCorruptionObjective(WindowObjective):
    """Documents (`ids`) in the longest windows that fit after corruption.

    The default of `max_length` is the target length of a window whose source is full.
    """

    name = "span_corruption"

    def __init__(
        self,
        examples: EncodedExamples,
        tokenizer: Tokenizer,
        *,
        max_source_length: int,
        max_length: int | None = None,
        too_long: TooLongPolicy = "split",
        random_offset: bool = False,
        mask_prob: float = 0.15,
        mean_span_length: float = 3.0,
        decoder_start_token_id: int | None = None,
    ):
        super().__init__(examples, tokenizer, "ids")
        check_length("max_source_length", max_source_length, 3)
        if not 0 < mask_prob < 1 or mean_span_length < 1:
            raise UsageError(
                f"mask_prob = {mask_prob} must be above 0 and below 1, and mean_span_length = {mean_span_length} must "
                "be at least 1"
            )
        special = tokenizer.special_tokens
        self.mask_prob = mask_prob
        self.mean_span_length = mean_span_length
        self.eos_token_id = require_token("eos", special.eos, "span corruption")
        self.decoder_start_token_id = find_decoder_start(tokenizer, decoder_start_token_id)
        self.sentinels = np.asarray(special.sentinels, np.int32)
        if max_length is None:
            window_length = self._max_document_length(2 * max_source_length, max_source_length)
            max_length = int(self._corrupted_lengths(np.array([window_length]))[0].max())
        check_length("max_length", max_length, 3)
        self.max_lengths = (max_length, max_source_length)
        window_length = self._max_document_length(max_length, max_source_length)
        num_spans = int(self._num_removed_and_spans(np.array([window_length]))[1].max())
        if num_spans > len(self.sentinels):
            raise UsageError(
                f"windows of {window_length} tokens need {num_spans} sentinel tokens, but the tokenizer has "
                f"{len(self.sentinels)}: train or load a tokenizer with more, or lower max_source_length"
            )
        self.cut_windows(window_length, too_long, random_offset)

    def _num_removed_and_spans(self, count: IntArray) -> tuple[IntArray, IntArray]:
        """The number of tokens to remove from texts of `count` tokens, and the number of spans."""
        noise = np.floor(count * self.mask_prob + 0.5).astype(np.int64)
        noise = np.clip(noise, 1, np.maximum(count - 1, 1))
        spans = np.floor(noise / self.mean_span_length + 0.5).astype(np.int64)
        return noise, np.clip(spans, 1, np.minimum(noise, np.maximum(count - noise, 1)))

    def _corrupted_lengths(self, count: IntArray) -> tuple[IntArray, IntArray]:
        """The lengths of target and source for texts of `count` tokens."""
        noise, spans = self._num_removed_and_spans(count)
        return noise + spans + 1, count - noise + spans + 1

    def _max_document_length(self, max_length: int, max_source_length: int) -> int:
        """The maximum length of a text whose target and source fit."""
        counts = np.arange(1, 2 * (max_length + max_source_length))
        target, source = self._corrupted_lengths(counts)
        return int(counts[(target <= max_length) & (source <= max_source_length)].max())

    def lengths(self, examples: IntArray, rng: EpochRng) -> IntArray:
        """The lengths of target and source: (n, 2)."""
        return np.stack(self._corrupted_lengths(self.windows.locate(examples, rng)[2]), axis=1)

    def build(self, examples: IntArray, rng: EpochRng) -> FlatExamples:
        """Corrupted windows as sources, and the removed spans as targets."""
        record, first, count = self.windows.locate(examples, rng)
        tokens, _ = self.examples.gather("ids", record, first, count)
        noise, spans = self._num_removed_and_spans(count)
        removed = random_compositions(rng.keys("cut spans", examples), noise, spans)  # (all spans,) lengths
        kept = np.zeros_like(removed)
        has_kept = count > noise  # only a text of a single token keeps nothing
        kept[np.repeat(has_kept, spans)] = random_compositions(
            rng.keys("kept spans", examples), count - noise, spans * has_kept
        )
        sentinel = self.sentinels[ragged_index(np.zeros_like(spans), spans)]
        # For each span: kept tokens and a sentinel in the source, a sentinel and removed tokens in the target.
        alternating = np.stack([kept, removed], axis=1).reshape(-1)
        is_removed = np.repeat(np.arange(len(alternating)) % 2 == 1, alternating)  # (tokens,)
        ones = np.ones_like(removed)
        source, _ = ragged_join([(tokens[~is_removed], kept), (sentinel, ones)])
        target, _ = ragged_join([(sentinel, ones), (tokens[is_removed], removed)])
        eos = np.full(len(count), self.eos_token_id, np.int32)
        source, source_lengths = ragged_join([(source, count - noise + spans), (eos, np.ones_like(count))])
        ids, labels, lengths = shift_right(target, noise + spans, self.decoder_start_token_id, self.eos_token_id)
        return FlatExamples(lengths, ids, {"tokens": labels}, source_lengths=source_lengths, source_ids=source)


def make_examples(setup: ObjectiveSetup, encoded: EncodedExamples) -> SpanCorruptionObjective:
    """Windows for span corruption.

    Without `max_source_length`, `max_length` is used as the source length, and the target length follows from it (T5).
    """
    source = setup.max_source_length
    lengths = {"max_length": setup.max_length if source else None, "max_source_length": source or setup.max_length}
    return SpanCorruptionObjective(
        encoded,
        setup.tokenizer,
        **{**setup.window_kwargs, **lengths},
        mask_prob=setup.options.mask_prob or 0.15,
        mean_span_length=setup.options.mean_span_length,
        decoder_start_token_id=setup.decoder_start_token_id,
    )


SPEC = ObjectiveSpec(
    name="span_corruption",
    families=("seq2seq",),
    head="lm",
    fields=(TEXT_FIELD,),
    reads_documents=True,
    required_tokens=lambda options: RequiredTokens(("pad", "eos"), "eos", num_sentinels=100),
    too_long_policies=ANY_LENGTH,
    options=("mask_prob", "mean_span_length", "random_offset", "label_smoothing"),
    make_encoder=encode_documents,
    make_examples=make_examples,
)
