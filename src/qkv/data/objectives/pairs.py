"""Sequence to sequence: read a source, write its target; and what all encoder-decoder objectives share.

Teacher forcing: the decoder is shown the start token and the target, and says the target and the end token.
"""

import numpy as np

from qkv.data.draw import Draw
from qkv.data.examples import Examples, require
from qkv.data.objectives.base import Pieces, TooLong, check_length, need
from qkv.data.objectives.frame import Frame
from qkv.data.objectives.whole import Whole
from qkv.data.ragged import Ints, ragged_index, ragged_join, ragged_starts
from qkv.text import Tokenizer


class Pairs(Whole):
    """Examples with `source` and `target`. Without `source_length`, the rows have the data's own proportions.

    A target that is cut ends where the row ends, without an end token: the model is not taught to stop there. The
    tokenizer is the target's; where the source has its own, give `source_frame=Frame.ends(source_tokenizer)`.
    """

    def __init__(
        self,
        examples: Examples,
        tokenizer: Tokenizer,
        *,
        length: int,
        source_length: int | None = None,
        too_long: TooLong = "error",
        source_frame: Frame | None = None,
        start: int | None = None,
    ):
        require(examples, "source", "target")
        self.examples = examples
        self.too_long = too_long
        self.frame = source_frame or Frame.ends(tokenizer)
        self.start = decoder_start(tokenizer) if start is None else start
        self.end = need("end", tokenizer.roles.end, "sequence to sequence")
        self.pad = tokenizer.roles.pad or 0
        if source_length is None:
            source_length = proportional(length, self.sizes(slice(None)))
        check_length("length", length, 1)
        check_length("source_length", source_length, self.frame.size() + 1)
        self.capacity = (length, source_length)
        self.overhead = 1 + self.frame.size()
        self.outputs = frozenset({"labels", "source"})
        self.count_records()

    def sizes(self, examples: Ints | slice) -> Ints:
        target = self.field_lengths("target", examples) + 1
        return np.stack([target, self.field_lengths("source", examples) + self.frame.size()], axis=1)

    def build(self, examples: Ints, draw: Draw) -> Pieces:
        target_room, source_room = self.capacity
        target = np.minimum(self.field_lengths("target", examples), target_room)
        source = np.minimum(self.field_lengths("source", examples), source_room - self.frame.size())
        nothing = np.zeros_like(target)
        words, _ = self.examples.gather("target", examples, nothing, target)
        ids, labels, lengths = taught(words, target, self.start, self.end, target_room)
        words, _ = self.examples.gather("source", examples, nothing, source)
        source_ids, source_lengths = self.frame.ids((words, source))
        return Pieces(lengths, ids, labels, source_lengths=source_lengths, source_ids=source_ids)


def taught(target: Ints, lengths: Ints, start: int, end: int, room: int | None = None) -> tuple[Ints, Ints, Ints]:
    """Targets laid end to end → (what the decoder is shown, what it should say, lengths), at most `room` places each.

    >>> shown, said, lengths = taught(np.array([7, 8, 9]), np.array([2, 1]), start=0, end=1)
    >>> shown.tolist(), said.tolist()
    ([0, 7, 8, 0, 9], [7, 8, 1, 9, 1])
    """
    ones = np.ones(len(lengths), np.int64)
    edges = [(np.full(len(lengths), edge, np.int32), ones) for edge in (start, end)]
    whole, total = ragged_join([edges[0], (target, lengths), edges[1]])
    count = total - 1 if room is None else np.minimum(total - 1, room)
    shown = ragged_index(ragged_starts(total), count)
    return whole[shown], whole[shown + 1], count


def decoder_start(tokenizer: Tokenizer) -> int:
    """What a decoder is shown first: the start token, or padding where there is none (as T5 and Marian do)."""
    roles = tokenizer.roles
    return need("start", roles.start if roles.start is not None else roles.pad, "an encoder-decoder")


def proportional(length: int, sizes: Ints, multiple: int = 8) -> int:
    """The source row length at which source and target rows fill up together; sizes: (n, 2) target, source."""
    target, source = (float(total) for total in sizes.sum(axis=0))
    return max(multiple, int(np.ceil(length * source / max(target, 1.0) / multiple)) * multiple)
