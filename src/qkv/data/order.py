"""The order of the examples: a new seeded permutation each epoch, that costs no memory whatever the size of the corpus.

`Permutation` is a small cipher on 0 … n − 1: position in, example out. `Course` is one source's endless run through
its epochs. `Epochs` deals a single source in windows; a window is what is packed into rows together, and never crosses
the end of an epoch, so that an epoch is a whole number of windows and shows every example exactly once.
"""

from bisect import bisect_right
from dataclasses import dataclass
from math import isqrt
from typing import Protocol

import numpy as np

from qkv.data.draw import GOLDEN, MASK, Draw, below, mix, number
from qkv.data.objectives import Objective
from qkv.data.ragged import Ints

ROUNDS = 8


class Permutation:
    """A permutation of 0 … size − 1 that is computed, not stored.

    A Feistel network over the rectangle left × right ≥ size: each round adds to one coordinate a hash of the other,
    which can be undone, so no two positions meet. The few places of the rectangle beyond `size` are walked on from
    until a place inside is reached (Black and Rogaway 2002), which keeps it one to one.

    >>> sorted(Permutation(10, key=3)(np.arange(10)).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    def __init__(self, size: int, key: int):
        self.size = size
        self.left = isqrt(max(size, 1) - 1) + 1  # ⌈√size⌉, so that the rectangle is at most √size places too large
        self.right = max(1, -(-size // self.left))
        self.keys = [np.uint64((key + turn * GOLDEN) & MASK) for turn in range(ROUNDS)]

    def __call__(self, positions: Ints) -> Ints:
        """The examples at these positions: (n,) → (n,) int64."""
        place = np.array(positions, np.int64)
        outside = np.ones(len(place), bool)
        while outside.any():
            place[outside] = self._once(place[outside])
            outside = place >= self.size
        return place

    def _once(self, place: Ints) -> Ints:
        one, other = np.divmod(place, self.right)
        limit, other_limit = self.left, self.right
        for key in self.keys:
            one = one + below(mix(other.astype(np.uint64) + key), limit)
            one -= (one >= limit) * limit
            one, other, limit, other_limit = other, one, other_limit, limit
        # After an even number of rounds the coordinates are back in their places.
        back: Ints = one * self.right + other
        return back


@dataclass(frozen=True)
class Picks:
    """Examples as they are dealt: which source, in which of its epochs, which of its examples. Each (n,)."""

    source: Ints
    epoch: Ints
    example: Ints

    def __len__(self) -> int:
        return len(self.example)

    def take(self, entries: Ints) -> "Picks":
        """Some of them."""
        return Picks(self.source[entries], self.epoch[entries], self.example[entries])

    @classmethod
    def join(cls, parts: list["Picks"]) -> "Picks":
        """Several one after the other."""
        names = ("source", "epoch", "example")
        none = [np.zeros(0, np.int64)]
        return cls(*(np.concatenate([getattr(part, name) for part in parts] or none) for name in names))


class Course:
    """One source run through again and again: position p of it is an example of some epoch.

    The starts of the epochs are remembered as far as they were needed: an epoch may have a few examples more than
    another, where windows of long documents are shifted.
    """

    def __init__(self, objective: Objective, seed: int, source: int = 0):
        self.objective = objective
        self.seed = seed
        self.source = source
        self.starts = [0]

    def draw(self, epoch: int) -> Draw:
        """Where the random choices of an epoch come from."""
        return Draw(self.seed, epoch)

    def size(self, epoch: int) -> int:
        """How many examples an epoch has."""
        return self.objective.count(self.draw(epoch))

    def start(self, epoch: int) -> int:
        """The position at which an epoch begins."""
        while len(self.starts) <= epoch:
            self.starts.append(self.starts[-1] + self.size(len(self.starts) - 1))
        return self.starts[epoch]

    def epoch(self, position: int) -> int:
        """The epoch that a position belongs to."""
        while self.starts[-1] <= position:
            self.start(len(self.starts))
        return bisect_right(self.starts, position) - 1

    def picks(self, first: int, last: int) -> Picks:
        """The examples at positions first … last − 1, in order."""
        parts = []
        while first < last:
            epoch = self.epoch(first)
            end = min(last, self.start(epoch + 1))
            positions = np.arange(first, end) - self.start(epoch)
            examples = Permutation(self.size(epoch), self.draw(epoch).number("order"))(positions)
            parts.append(Picks(np.full_like(examples, self.source), np.full_like(examples, epoch), examples))
            first = end
        return Picks.join(parts)


class Order(Protocol):
    """Windows of examples, numbered from 0 without end; each can be had without those before it."""

    @property
    def courses(self) -> tuple[Course, ...]: ...

    def window(self, index: int) -> Picks:
        """The examples of a window."""
        ...

    def epoch(self, window: int) -> int:
        """The epoch in which a window lies."""
        ...

    def windows(self, epochs: int) -> int:
        """How many windows the first so many epochs have."""
        ...

    def identity(self) -> dict[str, int]:
        """What must be the same for a window's number to mean the same examples."""
        ...


class Epochs:
    """One source, epoch after epoch, in windows of `size` examples; the last window of an epoch may be shorter."""

    def __init__(self, objective: Objective, seed: int, size: int):
        self.course = Course(objective, seed)
        self.courses = (self.course,)
        self.size = size
        self._first = [0]  # the first window of each epoch, as far as was needed

    def epoch(self, window: int) -> int:
        while self._first[-1] <= window:
            self.windows(len(self._first))
        return bisect_right(self._first, window) - 1

    def windows(self, epochs: int) -> int:
        while len(self._first) <= epochs:
            examples = self.course.size(len(self._first) - 1)
            self._first.append(self._first[-1] + -(-examples // self.size))
        return self._first[epochs]

    def window(self, index: int) -> Picks:
        epoch = self.epoch(index)
        first = self.course.start(epoch) + (index - self.windows(epoch)) * self.size
        return self.course.picks(first, min(first + self.size, self.course.start(epoch + 1)))

    def identity(self) -> dict[str, int]:
        return {
            "seed": self.course.seed,
            "window_size": self.size,
            "examples": self.course.size(0),
            "data": data_number(self.courses),
        }


def data_number(courses: tuple[Course, ...]) -> int:
    """A number that changes with what the examples hold, small enough for every reader of JSON to keep exact."""
    return number(*(course.objective.examples.fingerprint for course in courses)) % 2**53
