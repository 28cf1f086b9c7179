"""Classification of one or two texts: a class, or a number such as how alike two sentences are."""

import numpy as np

from qkv.data.draw import Draw
from qkv.data.examples import Examples, require
from qkv.data.objectives.base import Pieces, TooLong, check_length
from qkv.data.objectives.frame import Frame
from qkv.data.objectives.whole import Whole
from qkv.data.ragged import Ints
from qkv.text import Tokenizer


class Classify(Whole):
    """Examples with `first`, perhaps `second`, and `label` (or `score`, a number).

    Of two texts that are cut because they do not fit together, the longer gives first.
    """

    def __init__(
        self,
        examples: Examples,
        tokenizer: Tokenizer,
        *,
        length: int,
        too_long: TooLong = "error",
        frame: Frame | None = None,
    ):
        self.answer = "score" if "score" in examples.fields else "label"
        require(examples, "first", self.answer)
        self.examples = examples
        self.pair = "second" in examples.fields
        self.too_long = too_long
        self.frame = frame or Frame.of(tokenizer)
        check_length("length", length, self.frame.size(self.pair) + 2)
        self.pad = tokenizer.roles.pad or 0
        self.capacity = (length,)
        self.overhead = self.frame.size(self.pair)
        self.outputs = frozenset({"scores" if self.answer == "score" else "classes", *(["types"] if self.pair else [])})
        self.count_records()

    def sizes(self, examples: Ints | slice) -> Ints:
        one, two = self._texts(examples)
        places: Ints = one + two + self.frame.size(self.pair)
        return places[:, None]

    def build(self, examples: Ints, draw: Draw) -> Pieces:
        one, two = fitted(*self._texts(examples), self.capacity[0] - self.frame.size(self.pair))
        nothing = np.zeros_like(one)
        first = self.examples.gather("first", examples, nothing, one)[0], one
        second = (self.examples.gather("second", examples, nothing, two)[0], two) if self.pair else None
        ids, lengths = self.frame.ids(first, second)
        pieces = Pieces(lengths, ids, types=self.frame.types(one, two) if self.pair else None)
        answer, _ = self.examples.gather(self.answer, examples)
        if self.answer == "score":
            pieces.scores = answer
        else:
            pieces.classes = answer
        return pieces

    def _texts(self, examples: Ints | slice) -> tuple[Ints, Ints]:
        """The lengths of both texts, 0 for one that is not there."""
        one = self.field_lengths("first", examples)
        return one, self.field_lengths("second", examples) if self.pair else np.zeros_like(one)


def fitted(one: Ints, two: Ints, room: int) -> tuple[Ints, Ints]:
    """Lengths of two texts, cut so that together they fit: the longer gives first.

    >>> [part.tolist() for part in fitted(np.array([9, 2, 4]), np.array([2, 9, 4]), 6)]
    [[4, 2, 3], [2, 4, 3]]
    """
    half = room // 2
    kept_one = np.where(two <= half, np.minimum(one, room - two), np.minimum(one, room - half))
    return kept_one, np.minimum(two, room - kept_one)
