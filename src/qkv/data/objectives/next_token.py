"""Next token (GPT): at every place of a document, say which token follows.

A document is laid out as start, its tokens, end; windows of it follow each other so that every token is predicted
exactly once an epoch. The same with the loss on some tokens only is how chats are learnt.
"""

import numpy as np

from qkv.data.draw import Draw
from qkv.data.examples import Examples, require
from qkv.data.objectives.base import IGNORE, Pieces, TooLong, check_length
from qkv.data.objectives.windows import Windowed, Windows
from qkv.data.ragged import Ints, ragged_index, ragged_starts
from qkv.text import Tokenizer


class NextToken(Windowed):
    """Documents (`ids`) as rows of next-token prediction.

    `trained` names a field of 0s and 1s beside the tokens: only those marked 1 are learnt (a chat's answers). `framed`
    lays the start token (the end token where there is none) before a document and the end token after it.
    """

    def __init__(
        self,
        examples: Examples,
        tokenizer: Tokenizer,
        *,
        length: int,
        too_long: TooLong = "split",
        shift: bool = False,
        trained: str | None = None,
        framed: bool = True,
    ):
        require(examples, "ids", *([trained] if trained else []))
        check_length("length", length, 1)
        roles = tokenizer.roles
        first = roles.start if roles.start is not None else roles.end
        self.examples = examples
        self.first = (first,) if framed and first is not None else ()
        self.last = (roles.end,) if framed and roles.end is not None else ()
        self.trained = trained
        self.pad = roles.pad or 0
        self.capacity = (length,)
        self.outputs = frozenset({"labels"})
        # n tokens in a row give n − 1 predictions: the last one has nothing after it.
        extra = len(self.first) + len(self.last) - 1
        self.windows = Windows(examples.lengths("ids"), length, extra=extra, too_long=too_long, shift=shift)

    def lengths(self, examples: Ints, draw: Draw) -> Ints:
        return self.windows.locate(examples, draw)[2][:, None]

    def build(self, examples: Ints, draw: Draw) -> Pieces:
        record, first, count = self.windows.locate(examples, draw)
        tokens = framed_slices(self.examples, "ids", record, first, count + 1, self.first, self.last)
        inputs = ragged_index(ragged_starts(count + 1), count)  # all but the last token of each window
        labels = tokens[inputs + 1]
        if self.trained:
            ones = (1,) * len(self.first), (1,) * len(self.last)
            marks = framed_slices(self.examples, self.trained, record, first, count + 1, *ones)
            labels = np.where(marks[inputs + 1] != 0, labels, IGNORE)
        return Pieces(lengths=count, ids=tokens[inputs], labels=labels)


def framed_slices(
    examples: Examples,
    field: str,
    record: Ints,
    start: Ints,
    count: Ints,
    first: tuple[int, ...],
    last: tuple[int, ...],
) -> Ints:
    """Slices of records as if each had the ids `first` (none or one) before and `last` (none or one) after its tokens.

    Slice i is places start[i] … start[i] + count[i] − 1 of the framed record; all lie inside it. Flat.
    """
    length = np.asarray(examples.lengths(field)[record], np.int64)
    begin = np.clip(start - len(first), 0, length)
    end = np.clip(start + count - len(first), 0, length)
    tokens, _ = examples.gather(field, record, begin, end - begin)
    place = ragged_starts(count)
    if not first and not last:
        return tokens
    flat = np.full(int(count.sum()), last[0] if last else 0, np.int32)
    flat[ragged_index(place + begin - (start - len(first)), end - begin)] = tokens
    if first:
        flat[place[start == 0]] = first[0]
    return flat
