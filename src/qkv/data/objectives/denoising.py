"""Denoising (BART): spoil a text, and write it back whole.

Two ways of spoiling, used together: sentences are put in a random order, and spans of tokens are each replaced by a
single mask token, until 30 % of the tokens are gone. The spans' lengths are Poisson draws of mean 3: one of length 0
puts in a mask where nothing is missing, so the model must also learn how much is missing.
"""

import numpy as np

from qkv.data.cache.examples import EncodedExamples, require_fields
from qkv.data.objectives.base import FlatExamples, TooLongPolicy, check_length, require_token
from qkv.data.objectives.seq2seq import find_decoder_start, shift_right
from qkv.data.objectives.template import SpecialTokenTemplate
from qkv.data.objectives.windows import WindowedDocuments, Windows
from qkv.data.ragged import Ints, ragged_index, ragged_join, ragged_starts
from qkv.data.stream.random_bits import Bits, EpochRng, choose_in_groups, random_bits, shuffle_groups, to_uniform
from qkv.errors import UsageError
from qkv.text import Tokenizer


class Denoising(WindowedDocuments):
    """Documents (`ids`) in windows; `permute` needs the field `sentences` (`EncodeText(sentences=True)`).

    `source_length` may be left out: it is then what spoiled texts need.
    """

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
    ):
        require_fields(examples, "ids", *(["sentences"] if permute_sentences else []))
        if not 0 < mask_prob < 1 or mean_span_length <= 0:
            raise UsageError(
                f"share = {mask_prob} must lie between 0 and 1, and mean_span = {mean_span_length} be above 0"
            )
        roles = tokenizer.special_tokens
        self.examples = examples
        self.mask_prob, self.mean_span_length, self.permute_sentences = mask_prob, mean_span_length, permute_sentences
        self.poisson_cdf = poisson_cdf_table(mean_span_length)
        self.source_template = source_template or SpecialTokenTemplate.eos_only(tokenizer)
        self.mask_token_id = require_token("mask", roles.mask, "denoising")
        self.eos_token_id = require_token("end", roles.eos, "denoising")
        self.decoder_start_token_id = find_decoder_start(tokenizer)
        self.pad_token_id = roles.pad or 0
        check_length("length", max_length, 2)
        if max_source_length is None:
            spans = mask_prob * max_length / mean_span_length
            max_source_length = (
                -(
                    -int(
                        (1 - mask_prob) * max_length
                        + spans
                        + 2 * spans**0.5
                        + self.source_template.num_special_tokens()
                        + 1
                    )
                    // 8
                )
                * 8
            )
        check_length("source_length", max_source_length, self.source_template.num_special_tokens() + 2)
        self.capacity = (max_length, max_source_length)
        self.outputs = frozenset({"labels", "source"})
        self.windows = Windows(
            examples.lengths("ids"), self._max_document_length(), too_long=too_long, random_offset=random_offset
        )

    def _max_document_length(self) -> int:
        """The longest text that fits both rows, spoiled with one span at least."""
        counts = np.arange(1, self.capacity[0])
        fits = counts - self._num_removed(counts) + 1 + self.source_template.num_special_tokens() <= self.capacity[1]
        return int(counts[fits].max())

    def _num_removed(self, count: Ints) -> Ints:
        """How many tokens of texts of `count` tokens are taken away."""
        return np.clip(np.floor(count * self.mask_prob + 0.5).astype(np.int64), 1, count)

    def _sample_spans(self, count: Ints, keys: Bits) -> tuple[Ints, Ints]:
        """How many spans each text loses, and their lengths, end to end."""
        gone = self._num_removed(count)
        kept = count - gone
        # No more spans than tokens gone or places to put them, nor than the source row has room for; and of the draws
        # that chance may ask for, as many as are ever needed. The last span takes what is still missing.
        room = self.capacity[1] - self.source_template.num_special_tokens() - kept
        usual = gone / self.mean_span_length
        most = np.minimum(
            np.minimum(gone, kept + 1), np.minimum(room, (usual + 6 * np.sqrt(usual) + 8).astype(np.int64))
        )
        drawn = to_uniform(random_bits(keys[:, None], np.arange(int(most.max()))))  # (n, K)
        reached = np.cumsum(np.searchsorted(self.poisson_cdf, drawn, "right"), axis=1)
        done = reached >= gone[:, None]
        spans = np.minimum(np.where(done.any(axis=1), done.argmax(axis=1) + 1, most), most)
        reached[np.arange(len(count)), spans - 1] = gone
        lengths = np.diff(reached, axis=1, prepend=0)
        return spans, lengths[np.arange(lengths.shape[1]) < spans[:, None]]

    def lengths(self, examples: Ints, rng: EpochRng) -> Ints:
        count = self.windows.locate(examples, rng)[2]
        spans, _ = self._sample_spans(count, rng.keys("span lengths", examples))
        return np.stack(
            [count + 1, count - self._num_removed(count) + spans + self.source_template.num_special_tokens()], axis=1
        )

    def build(self, examples: Ints, rng: EpochRng) -> FlatExamples:
        record, first, count = self.windows.locate(examples, rng)
        tokens, _ = self.examples.gather("ids", record, first, count)
        ids, labels, lengths = shift_right(tokens, count, self.decoder_start_token_id, self.eos_token_id)
        if self.permute_sentences:
            tokens = self._permute(tokens, record, first, count, rng.keys("sentences", examples))
        source, source_lengths = self._mask_spans(tokens, count, examples, rng)
        source, source_lengths = self.source_template.add_special_tokens((source, source_lengths))
        return FlatExamples(lengths=lengths, ids=ids, labels=labels, source_lengths=source_lengths, source_ids=source)

    def _permute(self, tokens: Ints, record: Ints, first: Ints, count: Ints, keys: Bits) -> Ints:
        """The tokens with the sentences of each window in a random order."""
        starts, offsets = self.examples.gather("sentences", record)
        window = np.repeat(np.arange(len(record)), np.diff(offsets))
        local = starts - first[window]
        inside = (local > 0) & (local < count[window])
        begins = np.zeros(len(tokens) + 1, bool)  # where a sentence, or a window, begins
        begins[ragged_starts(count)[window[inside]] + local[inside]] = True
        begins[ragged_starts(count)] = True
        place = np.flatnonzero(begins[:-1])
        size = np.diff(place, append=len(tokens))
        owner = np.repeat(np.arange(len(count)), count)[place]
        order = shuffle_groups(keys, np.bincount(owner, minlength=len(count)))
        permuted: Ints = tokens[ragged_index(place[order], size[order])]
        return permuted

    def _mask_spans(self, tokens: Ints, count: Ints, examples: Ints, rng: EpochRng) -> tuple[Ints, Ints]:
        """Texts with spans replaced by masks: (flat, lengths)."""
        spans, span_lengths = self._sample_spans(count, rng.keys("span lengths", examples))
        kept = count - self._num_removed(count)
        # A span may stand before each kept token and at the end: kept + 1 gaps, of which some hold one span each.
        gaps = kept + 1
        masked = choose_in_groups(rng.keys("span places", examples), gaps, spans)  # (all gaps,)
        missing = np.zeros(len(masked), np.int64)
        missing[masked] = span_lengths
        has_token = np.ones(len(masked), bool)
        has_token[np.cumsum(gaps) - 1] = False  # the last gap of a text has no token after it
        # Token of gap g: as many places on as gaps of its text precede it and tokens are missing up to it.
        index = np.cumsum(has_token) - has_token + np.cumsum(missing)
        flat, _ = ragged_join(
            [
                (np.full(int(masked.sum()), self.mask_token_id, np.int32), masked.astype(np.int64)),
                (tokens[index[has_token]], has_token.astype(np.int64)),
            ]
        )
        return flat, kept + spans


def poisson_cdf_table(mean: float) -> np.ndarray:
    """The cumulative Poisson probabilities: `searchsorted(table, uniform, "right")` is a Poisson draw.

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
