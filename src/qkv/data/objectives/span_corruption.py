"""Span corruption (T5): cut spans out of a text, leave a numbered mark for each, and write the marks with what was cut.

    text     Thank you for inviting me to your party last week .
    source   Thank you <0> me to your party <1> week . </s>
    target   <0> for inviting <1> last </s>

15 % of the tokens are cut, in spans of 3 on average; a text begins with a kept part and ends with a cut one, as in T5's
own code. The lengths of both sides follow from the length of the text alone.
"""

import numpy as np

from qkv.data.cache.examples import EncodedExamples, require_fields
from qkv.data.objectives.base import FlatExamples, TooLongPolicy, check_length, require_token
from qkv.data.objectives.seq2seq import find_decoder_start, shift_right
from qkv.data.objectives.windows import WindowedDocuments, Windows
from qkv.data.ragged import Ints, ragged_index, ragged_join
from qkv.data.stream.random_bits import EpochRng, random_compositions
from qkv.errors import UsageError
from qkv.text import Tokenizer


class SpanCorruption(WindowedDocuments):
    """Documents (`ids`) in windows as long as fit once they are corrupted.

    Without `length`, target rows are as long as the text of a full source row needs.
    """

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
    ):
        require_fields(examples, "ids")
        check_length("source_length", max_source_length, 3)
        if not 0 < mask_prob < 1 or mean_span_length < 1:
            raise UsageError(
                f"density = {mask_prob} must lie between 0 and 1, and mean_span = {mean_span_length} be at least 1"
            )
        roles = tokenizer.special_tokens
        self.examples = examples
        self.mask_prob, self.mean_span_length = mask_prob, mean_span_length
        self.eos_token_id = require_token("end", roles.eos, "span corruption")
        self.decoder_start_token_id = find_decoder_start(tokenizer)
        self.sentinels = np.asarray(roles.sentinels, np.int32)
        self.pad_token_id = roles.pad or 0
        if max_length is None:
            size = self._max_document_length(2 * max_source_length, max_source_length)
            max_length = int(self._corrupted_lengths(np.array([size]))[0].max())
        check_length("length", max_length, 3)
        self.capacity = (max_length, max_source_length)
        self.outputs = frozenset({"labels", "source"})
        size = self._max_document_length(max_length, max_source_length)
        spans = int(self._num_noise(np.array([size]))[1].max())
        if spans > len(self.sentinels):
            raise UsageError(
                f"texts of {size} tokens need {spans} sentinels and the tokenizer has {len(self.sentinels)}: "
                "train or load one with more, or lower source_length"
            )
        self.windows = Windows(examples.lengths("ids"), size, too_long=too_long, random_offset=random_offset)

    def _num_noise(self, count: Ints) -> tuple[Ints, Ints]:
        """How many tokens of texts of `count` are cut, and in how many spans."""
        noise = np.floor(count * self.mask_prob + 0.5).astype(np.int64)
        noise = np.clip(noise, 1, np.maximum(count - 1, 1))
        spans = np.floor(noise / self.mean_span_length + 0.5).astype(np.int64)
        return noise, np.clip(spans, 1, np.minimum(noise, np.maximum(count - noise, 1)))

    def _corrupted_lengths(self, count: Ints) -> tuple[Ints, Ints]:
        """The places that texts of `count` tokens take on the target and on the source side."""
        noise, spans = self._num_noise(count)
        return noise + spans + 1, count - noise + spans + 1

    def _max_document_length(self, length: int, source_length: int) -> int:
        """The longest text that fits both rows when corrupted."""
        counts = np.arange(1, 2 * (length + source_length))
        target, source = self._corrupted_lengths(counts)
        return int(counts[(target <= length) & (source <= source_length)].max())

    def lengths(self, examples: Ints, rng: EpochRng) -> Ints:
        return np.stack(self._corrupted_lengths(self.windows.locate(examples, rng)[2]), axis=1)

    def build(self, examples: Ints, rng: EpochRng) -> FlatExamples:
        record, first, count = self.windows.locate(examples, rng)
        tokens, _ = self.examples.gather("ids", record, first, count)
        noise, spans = self._num_noise(count)
        cut = random_compositions(rng.keys("cut spans", examples), noise, spans)  # (all spans,) lengths
        kept = np.zeros_like(cut)
        some = count > noise  # only a text of a single token keeps nothing
        kept[np.repeat(some, spans)] = random_compositions(
            rng.keys("kept spans", examples), count - noise, spans * some
        )
        mark = self.sentinels[ragged_index(np.zeros_like(spans), spans)]
        # Span by span: what is kept and then a mark; a mark and then what is cut.
        alternating = np.stack([kept, cut], axis=1).reshape(-1)
        hidden = np.repeat(np.arange(len(alternating)) % 2 == 1, alternating)  # (tokens,)
        ones = np.ones_like(cut)
        source, _ = ragged_join([(tokens[~hidden], kept), (mark, ones)])
        target, _ = ragged_join([(mark, ones), (tokens[hidden], cut)])
        end = np.full(len(count), self.eos_token_id, np.int32)
        source, source_lengths = ragged_join([(source, count - noise + spans), (end, np.ones_like(count))])
        ids, labels, lengths = shift_right(target, noise + spans, self.decoder_start_token_id, self.eos_token_id)
        return FlatExamples(lengths=lengths, ids=ids, labels=labels, source_lengths=source_lengths, source_ids=source)


def restore_document(source: Ints, target: Ints, sentinels: tuple[int, ...]) -> list[int]:
    """The text that a corrupted source and its target (without end tokens) came from.

    >>> restore_document([1, 90, 4], [90, 2, 3], (90, 91))
    [1, 2, 3, 4]
    """
    marks = set(sentinels)
    spans: dict[int, list[int]] = {}
    for token in target:
        if token in marks:
            spans[token] = current = []
        else:
            current.append(token)
    return [word for token in source for word in (spans[token] if token in marks else [token])]
