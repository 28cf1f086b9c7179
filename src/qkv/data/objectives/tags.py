"""Token tags (named entities, parts of speech): say the tag of each word.

A word may be several tokens: `EncodeTags` puts its tag on the first of them, or on all.
"""

from qkv.data.draw import Draw
from qkv.data.examples import Examples, require
from qkv.data.objectives.base import IGNORE, Pieces, TooLong, check_length
from qkv.data.objectives.frame import Frame
from qkv.data.objectives.windows import Windowed, Windows
from qkv.data.ragged import Ints
from qkv.text import Tokenizer


class Tags(Windowed):
    """Examples with `ids` and, beside each token, `tags` (a class or `IGNORE`). Split ones keep every tag once."""

    def __init__(
        self,
        examples: Examples,
        tokenizer: Tokenizer,
        *,
        length: int,
        too_long: TooLong = "error",
        frame: Frame | None = None,
    ):
        require(examples, "ids", "tags")
        self.examples = examples
        self.frame = frame or Frame.of(tokenizer)
        check_length("length", length, self.frame.size() + 1)
        self.pad = tokenizer.roles.pad or 0
        self.capacity = (length,)
        self.outputs = frozenset({"labels"})
        special = self.frame.size()
        self.windows = Windows(examples.lengths("ids"), length - special, too_long=too_long, frame=special)

    def lengths(self, examples: Ints, draw: Draw) -> Ints:
        return self.windows.locate(examples, draw)[2][:, None] + self.frame.size()

    def build(self, examples: Ints, draw: Draw) -> Pieces:
        record, first, count = self.windows.locate(examples, draw)
        ids, lengths = self.frame.ids((self.examples.gather("ids", record, first, count)[0], count))
        tags, _ = self.examples.gather("tags", record, first, count)
        return Pieces(lengths, ids, self.frame.spread(IGNORE, (tags, count)))
