"""Denoising (BART): the model reads a corrupted text and generates the original.

Optionally, the sentences are put in a random order. Spans of tokens are removed until 30 % of the tokens are gone, and
each span is replaced by a single mask token. Span lengths are sampled from a Poisson distribution with mean 3. A span
of length 0 only inserts a mask, so the model must also learn how many tokens are missing.
"""

import numpy as np

from qkv.data.cache.examples import EncodedExamples
from qkv.data.objectives.base import FlatExamples, TooLongPolicy, check_length, require_token
from qkv.data.objectives.seq2seq import find_decoder_start, shift_right
from qkv.data.objectives.table import ANY_LENGTH, TEXT_FIELD, ObjectiveSetup, ObjectiveSpec, RequiredTokens
from qkv.data.objectives.template import SpecialTokenTemplate
from qkv.data.objectives.windows import WindowObjective, encode_documents
from qkv.data.ragged import IntArray, ragged_index, ragged_join, ragged_starts
from qkv.data.stream.random_bits import Bits, EpochRng, choose_in_groups, random_bits, shuffle_groups, to_uniform
from qkv.errors import UsageError
from qkv.text import Tokenizer


class DenoisingObjective(WindowObjective):
    """Windows of documents (`ids`). `permute_sentences` needs the field `sentences` (`EncodeText(sentences=True)`).

    The default of `max_source_length` is enough for most corrupted windows.
    """

    name = "denoising"

    def __init__(
        self,
        examples: EncodedExamples,
        tokenizer: Tokenizer,
        *,
        max_length: int,
        max_source_length: int | None = None,
        too_long: TooLongPolicy = "split",
        random_offset: bool = False,
        mask_prob: float = 0.3,
        mean_span_length: float = 3.0,
        permute_sentences: bool = False,
        source_template: SpecialTokenTemplate | None = None,
        decoder_start_token_id: int | None = None,
    ):
        super().__init__(examples, tokenizer, "ids", *(["sentences"] if permute_sentences else []))
        if not 0 < mask_prob < 1 or mean_span_length <= 0:
            raise UsageError(
                f"mask_prob = {mask_prob} must be above 0 and below 1, and mean_span_length = {mean_span_length} must "
                "be above 0"
            )
        special = tokenizer.special_tokens
        self.mask_prob = mask_prob
        self.mean_span_length = mean_span_length
        self.permute_sentences = permute_sentences
        self.poisson_cdf = poisson_cdf_table(mean_span_length)
        self.source_template = source_template or SpecialTokenTemplate.eos_only(tokenizer)
        self.num_special_tokens = self.source_template.num_special_tokens()
        self.mask_token_id = require_token("mask", special.mask, "denoising")
        self.eos_token_id = require_token("eos", special.eos, "denoising")
        self.decoder_start_token_id = find_decoder_start(tokenizer, decoder_start_token_id)
        check_length("max_length", max_length, 2)
        if max_source_length is None:
            spans = mask_prob * max_length / mean_span_length
            usual_length = int((1 - mask_prob) * max_length + spans + 2 * spans**0.5 + self.num_special_tokens + 1)
            max_source_length = -(-usual_length // 8) * 8
        check_length("max_source_length", max_source_length, self.num_special_tokens + 2)
        self.max_lengths = (max_length, max_source_length)
        self.cut_windows(self._max_document_length(), too_long, random_offset)

    def _max_document_length(self) -> int:
        """The maximum length of a text that fits as a target, and as a source with one masked span."""
        counts = np.arange(1, self.max_lengths[0])
        fits = counts - self._num_removed(counts) + 1 + self.num_special_tokens <= self.max_lengths[1]
        return int(counts[fits].max())

    def _num_removed(self, count: IntArray) -> IntArray:
        """The number of tokens to remove from texts of `count` tokens."""
        return np.clip(np.floor(count * self.mask_prob + 0.5).astype(np.int64), 1, count)

    def _sample_spans(self, count: IntArray, keys: Bits) -> tuple[IntArray, IntArray]:
        """The number of spans of each text, and their lengths, concatenated."""
        removed = self._num_removed(count)
        kept = count - removed
        # The number of spans is limited by the removed tokens, the gaps between kept tokens and the room in the source.
        # Sampling six standard deviations more lengths than expected always suffices. The last span gets the rest.
        room = self.max_lengths[1] - self.num_special_tokens - kept
        expected = removed / self.mean_span_length
        enough_samples = (expected + 6 * np.sqrt(expected) + 8).astype(np.int64)
        max_spans = np.minimum(np.minimum(removed, kept + 1), np.minimum(room, enough_samples))
        samples = to_uniform(random_bits(keys[:, None], np.arange(int(max_spans.max()))))  # (n, K)
        total = np.cumsum(np.searchsorted(self.poisson_cdf, samples, "right"), axis=1)
        is_done = total >= removed[:, None]
        spans = np.minimum(np.where(is_done.any(axis=1), is_done.argmax(axis=1) + 1, max_spans), max_spans)
        total[np.arange(len(count)), spans - 1] = removed
        lengths = np.diff(total, axis=1, prepend=0)
        return spans, lengths[np.arange(lengths.shape[1]) < spans[:, None]]

    def lengths(self, examples: IntArray, rng: EpochRng) -> IntArray:
        """The lengths of target and source: (n, 2)."""
        count = self.windows.locate(examples, rng)[2]
        spans, _ = self._sample_spans(count, rng.keys("span lengths", examples))
        return np.stack([count + 1, count - self._num_removed(count) + spans + self.num_special_tokens], axis=1)

    def build(self, examples: IntArray, rng: EpochRng) -> FlatExamples:
        """Corrupted windows as sources, and the original windows as targets."""
        record, first, count = self.windows.locate(examples, rng)
        tokens, _ = self.examples.gather("ids", record, first, count)
        ids, labels, lengths = shift_right(tokens, count, self.decoder_start_token_id, self.eos_token_id)
        if self.permute_sentences:
            tokens = self._permute(tokens, record, first, count, rng.keys("sentences", examples))
        corrupted = self._mask_spans(tokens, count, examples, rng)
        source, source_lengths = self.source_template.add_special_tokens(corrupted)
        return FlatExamples(lengths, ids, {"tokens": labels}, source_lengths=source_lengths, source_ids=source)

    def _permute(self, tokens: IntArray, record: IntArray, first: IntArray, count: IntArray, keys: Bits) -> IntArray:
        """The tokens with the sentences of each window in a random order."""
        starts, offsets = self.examples.gather("sentences", record)
        window = np.repeat(np.arange(len(record)), np.diff(offsets))
        in_window = starts - first[window]
        is_inside = (in_window > 0) & (in_window < count[window])
        starts_sentence = np.zeros(len(tokens) + 1, bool)  # the start of a window also starts a sentence
        starts_sentence[ragged_starts(count)[window[is_inside]] + in_window[is_inside]] = True
        starts_sentence[ragged_starts(count)] = True
        start = np.flatnonzero(starts_sentence[:-1])
        length = np.diff(start, append=len(tokens))
        owner = np.repeat(np.arange(len(count)), count)[start]
        order = shuffle_groups(keys, np.bincount(owner, minlength=len(count)))
        permuted: IntArray = tokens[ragged_index(start[order], length[order])]
        return permuted

    def _mask_spans(
        self, tokens: IntArray, count: IntArray, examples: IntArray, rng: EpochRng
    ) -> tuple[IntArray, IntArray]:
        """Replace each removed span by a mask token: (concatenated ids, lengths)."""
        spans, span_lengths = self._sample_spans(count, rng.keys("span lengths", examples))
        kept = count - self._num_removed(count)
        # A text has a gap before each kept token and one at its end. Each chosen gap gets one mask.
        gaps = kept + 1
        has_mask = choose_in_groups(rng.keys("span places", examples), gaps, spans)  # (all gaps,)
        removed = np.zeros(len(has_mask), np.int64)
        removed[has_mask] = span_lengths
        has_token = np.ones(len(has_mask), bool)
        has_token[np.cumsum(gaps) - 1] = False  # no token follows the last gap of a text
        # The index of the token after a gap: kept tokens before the gap + tokens removed up to and including the gap.
        index = np.cumsum(has_token) - has_token + np.cumsum(removed)
        masks = np.full(int(has_mask.sum()), self.mask_token_id, np.int32), has_mask.astype(np.int64)
        source, _ = ragged_join([masks, (tokens[index[has_token]], has_token.astype(np.int64))])
        return source, kept + spans


def poisson_cdf_table(mean: float) -> np.ndarray:
    """The cumulative Poisson distribution: `searchsorted(table, uniform, "right")` gives a Poisson sample.

    >>> [round(p, 3) for p in poisson_cdf_table(3.0)[:3].tolist()]
    [0.05, 0.199, 0.423]
    """
    term, total, table = np.exp(-mean), 0.0, []
    for k in range(1, 1000):
        total += term
        table.append(total)
        term *= mean / k
        if term < 1e-18 and k > mean:
            break
    return np.array(table)


def make_examples(setup: ObjectiveSetup, encoded: EncodedExamples) -> DenoisingObjective:
    """Windows for denoising. The default `mask_prob` is BART's 30 %."""
    options = setup.options
    return DenoisingObjective(
        encoded,
        setup.tokenizer,
        **setup.window_kwargs,
        max_source_length=setup.max_source_length,
        mask_prob=options.mask_prob or 0.3,
        mean_span_length=options.mean_span_length,
        permute_sentences=options.permute_sentences,
        source_template=SpecialTokenTemplate.for_source(setup.tokenizer),
        decoder_start_token_id=setup.decoder_start_token_id,
    )


SPEC = ObjectiveSpec(
    name="denoising",
    families=("seq2seq",),
    head="lm",
    fields=(TEXT_FIELD,),
    reads_documents=True,
    required_tokens=lambda options: RequiredTokens(("pad", "bos", "eos", "mask"), "eos"),
    too_long_policies=ANY_LENGTH,
    options=("mask_prob", "mean_span_length", "permute_sentences", "random_offset", "label_smoothing"),
    make_encoder=encode_documents,
    make_examples=make_examples,
)
