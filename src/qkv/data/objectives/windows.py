"""Long records as consecutive windows: which piece of which record is training example number i."""

from functools import partial

import numpy as np

from qkv.data.draw import Draw
from qkv.data.examples import Examples
from qkv.data.objectives.base import Tally, TooLong, check_choice, described, too_long_error
from qkv.data.objectives.index import CHUNK, Index
from qkv.data.ragged import Ints

CHOICES = ("error", "skip", "cut", "split")


class Windows:
    """Records cut into windows of at most `size` units, every unit in exactly one window.

    A record of n tokens has n + `extra` units (special tokens count, or the last one does not), none when it is empty.
    With `shift`, the windows of records longer than one begin at another place each epoch, so that a model does not see
    the same cuts again and again; their number then differs a little from epoch to epoch.

    >>> windows = Windows(np.array([5, 0, 2]), size=3)
    >>> windows.count(Draw(0)), [part.tolist() for part in windows.locate(np.arange(3), Draw(0))]
    (3, [[0, 0, 2], [0, 3, 0], [3, 2, 2]])
    """

    def __init__(
        self,
        lengths: np.ndarray,
        size: int,
        *,
        extra: int = 0,
        too_long: TooLong = "split",
        shift: bool = False,
        frame: int = 0,
    ):
        check_choice("too_long", too_long, CHOICES)
        self.lengths = lengths
        self.size = size
        self.extra = extra
        self.too_long = too_long
        self.shift = shift and too_long == "split"
        self.frame = frame  # places that each window takes beyond its units; for messages
        self._known: dict[int, Index] = {}
        self.tally = self._tally()

    def count(self, draw: Draw) -> int:
        """How many windows there are in an epoch."""
        return self._index(self._phase(draw)).total

    def locate(self, pieces: Ints, draw: Draw) -> tuple[Ints, Ints, Ints]:
        """Windows by number → (record, where it begins in the record, its length)."""
        phase = self._phase(draw)
        record, number = self._index(phase).locate(pieces)
        units = self._kept(self._units(record))
        moved = np.where(units > self.size, phase, 0)
        first = np.maximum(number * self.size - moved, 0)
        return record, first, np.minimum((number + 1) * self.size - moved, units) - first

    def _units(self, records: Ints) -> Ints:
        """The units of records, before the rule for long ones."""
        lengths = np.asarray(self.lengths[records], np.int64)
        return np.where(lengths > 0, np.maximum(lengths + self.extra, 0), 0)

    def _kept(self, units: Ints) -> Ints:
        if self.too_long == "skip":
            return np.where(units > self.size, 0, units)
        return np.minimum(units, self.size) if self.too_long == "cut" else units

    def _counts(self, phase: int, records: Ints) -> Ints:
        units = self._kept(self._units(records))
        return -(-(units + np.where(units > self.size, phase, 0)) // self.size)

    def _phase(self, draw: Draw) -> int:
        return draw.number("windows") % self.size if self.shift else 0

    def _index(self, phase: int) -> Index:
        if phase not in self._known:
            if len(self._known) > 1:  # two epochs meet at most
                self._known.clear()
            self._known[phase] = Index(len(self.lengths), partial(self._counts, phase))
        return self._known[phase]

    def _tally(self) -> Tally:
        tally = Tally(records=len(self.lengths))
        long = 0
        for first in range(0, len(self.lengths), CHUNK):
            records = np.arange(first, min(first + CHUNK, len(self.lengths)))
            units = self._units(records)
            kept = self._kept(units)
            long += int((units > self.size).sum())
            tally.tokens += int(np.sum(self.lengths[records], dtype=np.int64))
            tally.empty += int((units == 0).sum())
            tally.lost += int((units - kept).sum())
        if long and self.too_long == "error":
            units = self._units(np.arange(len(self.lengths)))
            raise too_long_error(units > self.size, [("length", units + self.frame, self.size + self.frame)], CHOICES)
        tally.tokens -= tally.lost
        tally.examples = self._index(0).total
        tally.skipped, tally.cut, tally.split = (long * (self.too_long == name) for name in ("skip", "cut", "split"))
        return tally


class Windowed:
    """What all objectives over windows share; each sets both."""

    examples: Examples
    windows: Windows

    @property
    def tally(self) -> Tally:
        return self.windows.tally

    def count(self, draw: Draw) -> int:
        return self.windows.count(draw)

    def origin(self, example: int, draw: Draw) -> str:
        record, first, length = (int(part[0]) for part in self.windows.locate(np.array([example]), draw))
        return described(self.examples, record, first, length)
