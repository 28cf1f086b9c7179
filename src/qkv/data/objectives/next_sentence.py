"""Masked language modelling with next-sentence prediction (BERT's own pre-training).

A document is cut, at sentence ends where it can be, into parts of at most half a row; two parts that follow each other
are an example. In half of the examples the second part is exchanged for that of another document, and the model says
which (0: it follows, 1: it does not). Exchanging, instead of drawing a stranger, shows every token once an epoch.
"""

from bisect import bisect_right

import numpy as np

from qkv.data.draw import Draw, uniform
from qkv.data.examples import Examples, require
from qkv.data.objectives.base import IGNORE, Pieces, Tally, check_length, described
from qkv.data.objectives.frame import Frame
from qkv.data.objectives.masked import Masking
from qkv.data.ragged import Ints, ragged_join
from qkv.errors import UsageError
from qkv.text import Tokenizer

BATCH = 4096  # records cut in one go


class NextSentence:
    """Documents (`ids`, `sentences`) as pairs of parts with hidden tokens.

    A document's last part may have none to follow it: it stands alone and has no next-sentence label.
    """

    def __init__(
        self,
        examples: Examples,
        tokenizer: Tokenizer,
        *,
        length: int,
        share: float = 0.15,
        whole_words: bool = False,
        frame: Frame | None = None,
    ):
        require(examples, "ids", "sentences", *(["words"] if whole_words else []))
        self.examples = examples
        self.frame = frame or Frame.of(tokenizer)
        if not self.frame.between:
            raise UsageError(
                "next-sentence prediction needs a tokenizer with a separator or end token between two texts"
            )
        check_length("length", length, self.frame.size(pair=True) + 2)
        self.masking = Masking.of(tokenizer, share)
        self.whole_words = whole_words
        self.pad = tokenizer.roles.pad or 0
        self.capacity = (length,)
        self.outputs = frozenset({"labels", "types", "classes"})
        # (N, 4): record, where the first part begins, its length, the length of the second (0: none)
        self.parts = cut(examples, (length - self.frame.size(pair=True)) // 2)
        tokens = np.asarray(examples.lengths("ids"), np.int64)
        self.tally = Tally(
            records=len(tokens),
            examples=len(self.parts),
            tokens=int(tokens.sum()),
            split=int((np.bincount(self.parts[:, 0], minlength=len(tokens)) > 1).sum()),
            empty=int((tokens == 0).sum()),
        )

    def count(self, draw: Draw) -> int:
        return len(self.parts)

    def origin(self, example: int, draw: Draw) -> str:
        record, start, one, two = (int(value) for value in self.parts[example])
        return described(self.examples, record, start, one + two)

    def partners(self, examples: Ints, draw: Draw) -> Ints:
        """Whose second part each example shows: its own, or that of the one it exchanges with."""
        count = len(self.parts)
        # i ↔ c − i (mod n) pairs every example with another one, and is its own inverse.
        other = (draw.number("partner") % count - np.asarray(examples)) % count
        coin = uniform(draw.keys("exchange", np.minimum(examples, other))) < 0.5
        mine, theirs = self.parts[examples], self.parts[other]
        possible = (mine[:, 3] > 0) & (theirs[:, 3] > 0) & (mine[:, 0] != theirs[:, 0])
        return np.where(coin & possible, other, examples)

    def lengths(self, examples: Ints, draw: Draw) -> Ints:
        first = self.parts[examples, 2]
        second = self.parts[self.partners(examples, draw), 3]
        places: Ints = first + second + self.frame.size() + np.where(second > 0, len(self.frame.between), 0)
        return places[:, None]

    def build(self, examples: Ints, draw: Draw) -> Pieces:
        partner = self.partners(examples, draw)
        record, start, one, _ = self.parts[examples].T
        record_two, start_two, one_two, two = self.parts[partner].T
        second = np.repeat(np.tile([False, True], len(one)), np.stack([one, two], axis=1).reshape(-1))  # (tokens,)

        def texts(field: str) -> Ints:
            """Both parts of each example, end to end."""
            first_part, _ = self.examples.gather(field, record, start, one)
            second_part, _ = self.examples.gather(field, record_two, start_two + one_two, two)
            return ragged_join([(first_part, one), (second_part, two)])[0]

        # A word of one part is never one with a word of the other, though their numbers may be equal.
        words = 2 * texts("words") + second if self.whole_words else None
        seen, labels = self.masking(texts("ids"), one + two, draw.keys("mask", examples), words)
        ids, lengths = self.frame.ids((seen[~second], one), (seen[second], two))
        return Pieces(
            lengths=lengths,
            ids=ids,
            labels=self.frame.spread(IGNORE, (labels[~second], one), (labels[second], two)),
            types=self.frame.types(one, two),
            classes=np.where(two > 0, (partner != examples).astype(np.int64), IGNORE),
        )


def cut(examples: Examples, size: int) -> Ints:
    """Documents as pairs of parts of at most `size` tokens that end at sentence ends where those are: (N, 4) int64."""
    rows: list[tuple[int, int, int, int]] = []
    lengths = np.asarray(examples.lengths("ids"))
    for first in range(0, len(lengths), BATCH):
        records = np.arange(first, min(first + BATCH, len(lengths)))
        starts, offsets = examples.gather("sentences", records)
        listed = starts.tolist()
        for record, begin, end in zip(records.tolist(), offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            rows += cut_one(record, int(lengths[record]), listed[begin:end], size)
    return np.array(rows, np.int64).reshape(-1, 4)


def cut_one(record: int, length: int, sentences: list[int], size: int) -> list[tuple[int, int, int, int]]:
    """The pairs of one document.

    >>> cut_one(0, 11, [0, 3, 5, 9], 5)
    [(0, 0, 5, 4), (0, 9, 2, 0)]
    """
    ends = [0]
    while ends[-1] < length:
        reach = min(ends[-1] + size, length)
        sentence = sentences[bisect_right(sentences, reach) - 1] if reach < length and sentences else reach
        ends.append(sentence if sentence > ends[-1] else reach)
    if len(ends) == 2 and len(sentences) > 1:  # a short document: the end of the sentence nearest to its middle
        ends.insert(1, min((start for start in sentences if 0 < start < length), key=lambda s: abs(2 * s - length)))
    ends += [ends[-1]] * (len(ends) % 2 == 0)
    return [(record, a, b - a, c - b) for a, b, c in zip(ends[:-1:2], ends[1::2], ends[2::2], strict=True)]
