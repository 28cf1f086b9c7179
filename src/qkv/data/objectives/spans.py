"""Span corruption (T5): cut spans out of a text, leave a numbered mark for each, and write the marks with what was cut.

    text     Thank you for inviting me to your party last week .
    source   Thank you <0> me to your party <1> week . </s>
    target   <0> for inviting <1> last </s>

15 % of the tokens are cut, in spans of 3 on average; a text begins with a kept part and ends with a cut one, as in T5's
own code. The lengths of both sides follow from the length of the text alone.
"""

import numpy as np

from qkv.data.draw import Draw, compositions
from qkv.data.examples import Examples, require
from qkv.data.objectives.base import Pieces, TooLong, check_length, need
from qkv.data.objectives.pairs import decoder_start, taught
from qkv.data.objectives.windows import Windowed, Windows
from qkv.data.ragged import Ints, ragged_index, ragged_join
from qkv.errors import UsageError
from qkv.text import Tokenizer


class SpanCorruption(Windowed):
    """Documents (`ids`) in windows as long as fit once they are corrupted.

    Without `length`, target rows are as long as the text of a full source row needs.
    """

    def __init__(
        self,
        examples: Examples,
        tokenizer: Tokenizer,
        *,
        source_length: int,
        length: int | None = None,
        too_long: TooLong = "split",
        shift: bool = False,
        density: float = 0.15,
        mean_span: float = 3.0,
    ):
        require(examples, "ids")
        check_length("source_length", source_length, 3)
        if not 0 < density < 1 or mean_span < 1:
            raise UsageError(f"density = {density} must lie between 0 and 1, and mean_span = {mean_span} be at least 1")
        roles = tokenizer.roles
        self.examples = examples
        self.density, self.mean_span = density, mean_span
        self.end = need("end", roles.end, "span corruption")
        self.start = decoder_start(tokenizer)
        self.sentinels = np.asarray(roles.sentinels, np.int32)
        self.pad = roles.pad or 0
        if length is None:
            size = self._largest(2 * source_length, source_length)
            length = int(self._sizes(np.array([size]))[0].max())
        check_length("length", length, 3)
        self.capacity = (length, source_length)
        self.outputs = frozenset({"labels", "source"})
        size = self._largest(length, source_length)
        spans = int(self._noise(np.array([size]))[1].max())
        if spans > len(self.sentinels):
            raise UsageError(
                f"texts of {size} tokens need {spans} sentinels and the tokenizer has {len(self.sentinels)}: "
                "train or load one with more, or lower source_length"
            )
        self.windows = Windows(examples.lengths("ids"), size, too_long=too_long, shift=shift)

    def _noise(self, count: Ints) -> tuple[Ints, Ints]:
        """How many tokens of texts of `count` are cut, and in how many spans."""
        noise = np.floor(count * self.density + 0.5).astype(np.int64)
        noise = np.clip(noise, 1, np.maximum(count - 1, 1))
        spans = np.floor(noise / self.mean_span + 0.5).astype(np.int64)
        return noise, np.clip(spans, 1, np.minimum(noise, np.maximum(count - noise, 1)))

    def _sizes(self, count: Ints) -> tuple[Ints, Ints]:
        """The places that texts of `count` tokens take on the target and on the source side."""
        noise, spans = self._noise(count)
        return noise + spans + 1, count - noise + spans + 1

    def _largest(self, length: int, source_length: int) -> int:
        """The longest text that fits both rows when corrupted."""
        counts = np.arange(1, 2 * (length + source_length))
        target, source = self._sizes(counts)
        return int(counts[(target <= length) & (source <= source_length)].max())

    def lengths(self, examples: Ints, draw: Draw) -> Ints:
        return np.stack(self._sizes(self.windows.locate(examples, draw)[2]), axis=1)

    def build(self, examples: Ints, draw: Draw) -> Pieces:
        record, first, count = self.windows.locate(examples, draw)
        tokens, _ = self.examples.gather("ids", record, first, count)
        noise, spans = self._noise(count)
        cut = compositions(draw.keys("cut spans", examples), noise, spans)  # (all spans,) lengths
        kept = np.zeros_like(cut)
        some = count > noise  # only a text of a single token keeps nothing
        kept[np.repeat(some, spans)] = compositions(draw.keys("kept spans", examples), count - noise, spans * some)
        mark = self.sentinels[ragged_index(np.zeros_like(spans), spans)]
        # Span by span: what is kept and then a mark; a mark and then what is cut.
        alternating = np.stack([kept, cut], axis=1).reshape(-1)
        hidden = np.repeat(np.arange(len(alternating)) % 2 == 1, alternating)  # (tokens,)
        ones = np.ones_like(cut)
        source, _ = ragged_join([(tokens[~hidden], kept), (mark, ones)])
        target, _ = ragged_join([(mark, ones), (tokens[hidden], cut)])
        end = np.full(len(count), self.end, np.int32)
        source, source_lengths = ragged_join([(source, count - noise + spans), (end, np.ones_like(count))])
        ids, labels, lengths = taught(target, noise + spans, self.start, self.end)
        return Pieces(lengths=lengths, ids=ids, labels=labels, source_lengths=source_lengths, source_ids=source)


def restore(source: Ints, target: Ints, sentinels: tuple[int, ...]) -> list[int]:
    """The text that a corrupted source and its target (without end tokens) came from.

    >>> restore([1, 90, 4], [90, 2, 3], (90, 91))
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
