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

from qkv.data.objectives import Objective
from qkv.data.ragged import Ints
from qkv.data.stream.random_bits import GOLDEN_GAMMA, UINT64_MAX, EpochRng, hash64, splitmix64_finalizer, to_integers

FEISTEL_ROUNDS = 8


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
        self.keys = [np.uint64((key + turn * GOLDEN_GAMMA) & UINT64_MAX) for turn in range(FEISTEL_ROUNDS)]

    def __call__(self, positions: Ints) -> Ints:
        """The examples at these positions: (n,) → (n,) int64."""
        place = np.array(positions, np.int64)
        outside = np.ones(len(place), bool)
        while outside.any():
            place[outside] = self._permute_once(place[outside])
            outside = place >= self.size
        return place

    def _permute_once(self, place: Ints) -> Ints:
        one, other = np.divmod(place, self.right)
        limit, other_limit = self.left, self.right
        for key in self.keys:
            one = one + to_integers(splitmix64_finalizer(other.astype(np.uint64) + key), limit)
            one -= (one >= limit) * limit
            one, other, limit, other_limit = other, one, other_limit, limit
        # After an even number of rounds the coordinates are back in their places.
        back: Ints = one * self.right + other
        return back


@dataclass(frozen=True)
class ExampleRefs:
    """Examples as they are dealt: which source, in which of its epochs, which of its examples. Each (n,)."""

    dataset: Ints
    epoch: Ints
    example: Ints

    def __len__(self) -> int:
        return len(self.example)

    def take(self, entries: Ints) -> "ExampleRefs":
        """Some of them."""
        return ExampleRefs(self.dataset[entries], self.epoch[entries], self.example[entries])

    @classmethod
    def concatenate(cls, parts: list["ExampleRefs"]) -> "ExampleRefs":
        """Several one after the other."""
        names = ("dataset", "epoch", "example")
        none = [np.zeros(0, np.int64)]
        return cls(*(np.concatenate([getattr(part, name) for part in parts] or none) for name in names))


class EpochOrder:
    """One source run through again and again: position p of it is an example of some epoch.

    The starts of the epochs are remembered as far as they were needed: an epoch may have a few examples more than
    another, where windows of long documents are shifted.
    """

    def __init__(self, objective: Objective, seed: int, dataset: int = 0):
        self.objective = objective
        self.seed = seed
        self.dataset = dataset
        self.epoch_starts = [0]

    def rng(self, epoch: int) -> EpochRng:
        """Where the random choices of an epoch come from."""
        return EpochRng(self.seed, epoch)

    def num_examples(self, epoch: int) -> int:
        """How many examples an epoch has."""
        return self.objective.num_examples(self.rng(epoch))

    def epoch_start(self, epoch: int) -> int:
        """The position at which an epoch begins."""
        while len(self.epoch_starts) <= epoch:
            self.epoch_starts.append(self.epoch_starts[-1] + self.num_examples(len(self.epoch_starts) - 1))
        return self.epoch_starts[epoch]

    def epoch_at(self, position: int) -> int:
        """The epoch that a position belongs to."""
        while self.epoch_starts[-1] <= position:
            self.epoch_start(len(self.epoch_starts))
        return bisect_right(self.epoch_starts, position) - 1

    def refs(self, first: int, last: int) -> ExampleRefs:
        """The examples at positions first … last − 1, in order."""
        parts = []
        while first < last:
            epoch = self.epoch_at(first)
            end = min(last, self.epoch_start(epoch + 1))
            positions = np.arange(first, end) - self.epoch_start(epoch)
            examples = Permutation(self.num_examples(epoch), self.rng(epoch).hash64("order"))(positions)
            parts.append(ExampleRefs(np.full_like(examples, self.dataset), np.full_like(examples, epoch), examples))
            first = end
        return ExampleRefs.concatenate(parts)


class PoolOrder(Protocol):
    """Windows of examples, numbered from 0 without end; each can be had without those before it."""

    @property
    def epoch_orders(self) -> tuple[EpochOrder, ...]: ...

    def pool(self, index: int) -> ExampleRefs:
        """The examples of a window."""
        ...

    def epoch_of(self, pool: int) -> int:
        """The epoch in which a window lies."""
        ...

    def num_pools(self, epochs: int) -> int:
        """How many windows the first so many epochs have."""
        ...

    def invariants(self) -> dict[str, int]:
        """What must be the same for a window's number to mean the same examples."""
        ...


class SingleDatasetOrder:
    """One source, epoch after epoch, in windows of `size` examples; the last window of an epoch may be shorter."""

    def __init__(self, objective: Objective, seed: int, pool_size: int):
        self.epoch_order = EpochOrder(objective, seed)
        self.epoch_orders = (self.epoch_order,)
        self.pool_size = pool_size
        self._first_pools = [0]  # the first window of each epoch, as far as was needed

    def epoch_of(self, pool: int) -> int:
        while self._first_pools[-1] <= pool:
            self.num_pools(len(self._first_pools))
        return bisect_right(self._first_pools, pool) - 1

    def num_pools(self, epochs: int) -> int:
        while len(self._first_pools) <= epochs:
            examples = self.epoch_order.num_examples(len(self._first_pools) - 1)
            self._first_pools.append(self._first_pools[-1] + -(-examples // self.pool_size))
        return self._first_pools[epochs]

    def pool(self, index: int) -> ExampleRefs:
        epoch = self.epoch_of(index)
        first = self.epoch_order.epoch_start(epoch) + (index - self.num_pools(epoch)) * self.pool_size
        return self.epoch_order.refs(first, min(first + self.pool_size, self.epoch_order.epoch_start(epoch + 1)))

    def invariants(self) -> dict[str, int]:
        return {
            "seed": self.epoch_order.seed,
            "window_size": self.pool_size,
            "examples": self.epoch_order.num_examples(0),
            "data": data_fingerprint(self.epoch_orders),
        }


def data_fingerprint(epoch_orders: tuple[EpochOrder, ...]) -> int:
    """A number that changes with what the examples hold, small enough for every reader of JSON to keep exact."""
    return hash64(*(course.objective.examples.fingerprint for course in epoch_orders)) % 2**53
