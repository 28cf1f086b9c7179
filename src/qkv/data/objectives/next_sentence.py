"""Masked language modelling with next-sentence prediction (BERT's own pre-training).

A document is cut, at sentence ends where it can be, into parts of at most half a row; two parts that follow each other
are an example. In half of the examples the second part is exchanged for that of another document, and the model says
which (0: it follows, 1: it does not). Exchanging, instead of drawing a stranger, shows every token once an epoch.
"""

from bisect import bisect_right

import numpy as np

from qkv.data.cache.examples import EncodedExamples, require_fields
from qkv.data.objectives.base import IGNORE_INDEX, FlatExamples, Tally, check_length, describe_record
from qkv.data.objectives.masked_lm import TokenMasking
from qkv.data.objectives.template import SpecialTokenTemplate
from qkv.data.ragged import Ints, ragged_join
from qkv.data.stream.random_bits import EpochRng, to_uniform
from qkv.errors import UsageError
from qkv.text import Tokenizer

RECORDS_PER_READ = 4096  # records cut in one go


class NextSentence:
    """Documents (`ids`, `sentences`) as pairs of parts with hidden tokens.

    A document's last part may have none to follow it: it stands alone and has no next-sentence label.
    """

    def __init__(
        self,
        examples: EncodedExamples,
        tokenizer: Tokenizer,
        *,
        max_length: int,
        mask_prob: float = 0.15,
        whole_word_masking: bool = False,
        template: SpecialTokenTemplate | None = None,
    ):
        require_fields(examples, "ids", "sentences", *(["words"] if whole_word_masking else []))
        self.examples = examples
        self.template = template or SpecialTokenTemplate.from_tokenizer(tokenizer)
        if not self.template.separator:
            raise UsageError(
                "next-sentence prediction needs a tokenizer with a separator or end token between two texts"
            )
        check_length("length", max_length, self.template.num_special_tokens(pair=True) + 2)
        self.masking = TokenMasking.from_tokenizer(tokenizer, mask_prob)
        self.whole_word_masking = whole_word_masking
        self.pad_token_id = tokenizer.special_tokens.pad or 0
        self.capacity = (max_length,)
        self.outputs = frozenset({"labels", "token_type_ids", "class_ids"})
        # (N, 4): record, where the first part begins, its length, the length of the second (0: none)
        self.segment_pairs = cut_into_pairs(examples, (max_length - self.template.num_special_tokens(pair=True)) // 2)
        tokens = np.asarray(examples.lengths("ids"), np.int64)
        self.tally = Tally(
            records=len(tokens),
            examples=len(self.segment_pairs),
            tokens=int(tokens.sum()),
            split=int((np.bincount(self.segment_pairs[:, 0], minlength=len(tokens)) > 1).sum()),
            empty=int((tokens == 0).sum()),
        )

    def num_examples(self, rng: EpochRng) -> int:
        return len(self.segment_pairs)

    def origin(self, example: int, rng: EpochRng) -> str:
        record, start, one, two = (int(value) for value in self.segment_pairs[example])
        return describe_record(self.examples, record, start, one + two)

    def second_segment_owner(self, examples: Ints, rng: EpochRng) -> Ints:
        """Whose second part each example shows: its own, or that of the one it exchanges with."""
        count = len(self.segment_pairs)
        # i ↔ c − i (mod n) pairs every example with another one, and is its own inverse.
        other = (rng.hash64("partner") % count - np.asarray(examples)) % count
        coin = to_uniform(rng.keys("exchange", np.minimum(examples, other))) < 0.5
        mine, theirs = self.segment_pairs[examples], self.segment_pairs[other]
        possible = (mine[:, 3] > 0) & (theirs[:, 3] > 0) & (mine[:, 0] != theirs[:, 0])
        return np.where(coin & possible, other, examples)

    def lengths(self, examples: Ints, rng: EpochRng) -> Ints:
        first = self.segment_pairs[examples, 2]
        second = self.segment_pairs[self.second_segment_owner(examples, rng), 3]
        places: Ints = (
            first + second + self.template.num_special_tokens() + np.where(second > 0, len(self.template.separator), 0)
        )
        return places[:, None]

    def build(self, examples: Ints, rng: EpochRng) -> FlatExamples:
        partner = self.second_segment_owner(examples, rng)
        record, start, one, _ = self.segment_pairs[examples].T
        record_two, start_two, one_two, two = self.segment_pairs[partner].T
        second = np.repeat(np.tile([False, True], len(one)), np.stack([one, two], axis=1).reshape(-1))  # (tokens,)

        def texts(field: str) -> Ints:
            """Both parts of each example, end to end."""
            first_part, _ = self.examples.gather(field, record, start, one)
            second_part, _ = self.examples.gather(field, record_two, start_two + one_two, two)
            return ragged_join([(first_part, one), (second_part, two)])[0]

        # A word of one part is never one with a word of the other, though their numbers may be equal.
        words = 2 * texts("words") + second if self.whole_word_masking else None
        seen, labels = self.masking(texts("ids"), one + two, rng.keys("mask", examples), words)
        ids, lengths = self.template.add_special_tokens((seen[~second], one), (seen[second], two))
        return FlatExamples(
            lengths=lengths,
            ids=ids,
            labels=self.template.align_labels(IGNORE_INDEX, (labels[~second], one), (labels[second], two)),
            token_type_ids=self.template.token_type_ids(one, two),
            class_ids=np.where(two > 0, (partner != examples).astype(np.int64), IGNORE_INDEX),
        )


def cut_into_pairs(examples: EncodedExamples, max_tokens: int) -> Ints:
    """Documents as pairs of parts of at most `size` tokens that end at sentence ends where those are: (N, 4) int64."""
    rows: list[tuple[int, int, int, int]] = []
    lengths = np.asarray(examples.lengths("ids"))
    for first in range(0, len(lengths), RECORDS_PER_READ):
        records = np.arange(first, min(first + RECORDS_PER_READ, len(lengths)))
        starts, offsets = examples.gather("sentences", records)
        listed = starts.tolist()
        for record, begin, end in zip(records.tolist(), offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            rows += cut_document(record, int(lengths[record]), listed[begin:end], max_tokens)
    return np.array(rows, np.int64).reshape(-1, 4)


def cut_document(record: int, length: int, sentences: list[int], max_tokens: int) -> list[tuple[int, int, int, int]]:
    """The pairs of one document.

    >>> cut_document(0, 11, [0, 3, 5, 9], 5)
    [(0, 0, 5, 4), (0, 9, 2, 0)]
    """
    ends = [0]
    while ends[-1] < length:
        reach = min(ends[-1] + max_tokens, length)
        sentence = sentences[bisect_right(sentences, reach) - 1] if reach < length and sentences else reach
        ends.append(sentence if sentence > ends[-1] else reach)
    if len(ends) == 2 and len(sentences) > 1:  # a short document: the end of the sentence nearest to its middle
        ends.insert(1, min((start for start in sentences if 0 < start < length), key=lambda s: abs(2 * s - length)))
    ends += [ends[-1]] * (len(ends) % 2 == 0)
    return [(record, a, b - a, c - b) for a, b, c in zip(ends[:-1:2], ends[1::2], ends[2::2], strict=True)]
