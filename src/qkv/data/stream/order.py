"""The order of the examples: a new seeded permutation for each epoch, computed without storing it.

`Permutation` is a small cipher on 0 … n − 1 that maps positions to examples. `EpochOrder` is the endless order of one
dataset over its epochs. `SingleDatasetOrder` cuts this order into pools. A pool is a group of examples that are packed
together. A pool never spans two epochs, so an epoch is a whole number of pools and has every example exactly once.
"""

from bisect import bisect_right
from dataclasses import dataclass
from math import isqrt

import numpy as np

from qkv.data.objectives import Objective
from qkv.data.ragged import IntArray
from qkv.data.stream.random_bits import (
    GOLDEN_GAMMA,
    UINT64_MAX,
    EpochRng,
    hash64,
    splitmix64_finalizer,
    to_integers,
)

FEISTEL_ROUNDS = 8


class Permutation:
    """A permutation of 0 … size − 1 that is computed, not stored.

    A Feistel network on the rectangle left × right ≥ size: each round adds a hash of one coordinate to the other,
    which is invertible, so no two positions collide. A result beyond `size` is permuted again until it is inside
    (cycle walking, Black and Rogaway 2002), which keeps the mapping one to one.

    >>> sorted(Permutation(10, key=3)(np.arange(10)).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    def __init__(self, size: int, key: int):
        self.size = size
        self.left = isqrt(max(size, 1) - 1) + 1  # ⌈√size⌉, so that the rectangle exceeds size by at most √size
        self.right = max(1, -(-size // self.left))
        self.keys = [np.uint64((key + number * GOLDEN_GAMMA) & UINT64_MAX) for number in range(FEISTEL_ROUNDS)]

    def __call__(self, positions: IntArray) -> IntArray:
        """The examples at these positions: (n,) → (n,) int64."""
        examples = np.array(positions, np.int64)
        outside = np.ones(len(examples), bool)
        while outside.any():
            examples[outside] = self._permute_once(examples[outside])
            outside = examples >= self.size
        return examples

    def _permute_once(self, values: IntArray) -> IntArray:
        one, other = np.divmod(values, self.right)
        limit, other_limit = self.left, self.right
        for key in self.keys:
            one = one + to_integers(splitmix64_finalizer(other.astype(np.uint64) + key), limit)
            one -= (one >= limit) * limit
            one, other, limit, other_limit = other, one, other_limit, limit
        # The number of rounds is even, so `one` and `other` are the left and right coordinates again.
        permuted: IntArray = one * self.right + other
        return permuted


@dataclass(frozen=True)
class ExampleRefs:
    """References to n examples: the dataset, its epoch, and the number of the example in the epoch. Each is (n,)."""

    dataset: IntArray
    epoch: IntArray
    example: IntArray

    def __len__(self) -> int:
        return len(self.example)

    def take(self, entries: IntArray) -> "ExampleRefs":
        """Some of the references."""
        return ExampleRefs(self.dataset[entries], self.epoch[entries], self.example[entries])

    @classmethod
    def concatenate(cls, parts: list["ExampleRefs"]) -> "ExampleRefs":
        """All references, in order."""
        fields = ("dataset", "epoch", "example")
        none = [np.zeros(0, np.int64)]
        return cls(*(np.concatenate([getattr(part, field) for part in parts] or none) for field in fields))


class EpochOrder:
    """The endless order of one dataset over all epochs.

    The number of examples may vary between epochs, because the windows of long documents may have a random offset. So
    the start of an epoch is computed when it is needed.
    """

    def __init__(self, objective: Objective, seed: int, dataset: int = 0):
        self.objective = objective
        self.seed = seed
        self.dataset = dataset
        self.epoch_starts = [0]

    def rng(self, epoch: int) -> EpochRng:
        """The random numbers of an epoch."""
        return EpochRng(self.seed, epoch)

    def num_examples(self, epoch: int) -> int:
        """The number of examples in an epoch."""
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


class SingleDatasetOrder:
    """One dataset, epoch after epoch, in pools of `pool_size` examples; the last pool of an epoch may be smaller."""

    def __init__(self, objective: Objective, seed: int, pool_size: int):
        self.epoch_order = EpochOrder(objective, seed)
        self.epoch_orders = (self.epoch_order,)
        self.pool_size = pool_size
        self._first_pools = [0]  # the first pool of each epoch, computed on demand

    def epoch_of(self, pool: int) -> int:
        """The epoch of a pool."""
        while self._first_pools[-1] <= pool:
            self.num_pools(len(self._first_pools))
        return bisect_right(self._first_pools, pool) - 1

    def num_pools(self, epochs: int) -> int:
        """The number of pools in the first `epochs` epochs."""
        while len(self._first_pools) <= epochs:
            examples = self.epoch_order.num_examples(len(self._first_pools) - 1)
            self._first_pools.append(self._first_pools[-1] + -(-examples // self.pool_size))
        return self._first_pools[epochs]

    def pool(self, index: int) -> ExampleRefs:
        """The examples of a pool."""
        epoch = self.epoch_of(index)
        first = self.epoch_order.epoch_start(epoch) + (index - self.num_pools(epoch)) * self.pool_size
        return self.epoch_order.refs(first, min(first + self.pool_size, self.epoch_order.epoch_start(epoch + 1)))

    def resume_state(self) -> dict[str, int]:
        """Values that a checkpoint stores. Resuming is an error if one of them has changed."""
        return {
            "seed": self.epoch_order.seed,
            "pool_size": self.pool_size,
            "examples": self.epoch_order.num_examples(0),
            "data": data_fingerprint(self.epoch_orders),
        }


def data_fingerprint(epoch_orders: tuple[EpochOrder, ...]) -> int:
    """A number that changes when the content of the examples changes, below 2⁵³ so that it is exact in JSON."""
    return hash64(*(order.objective.examples.fingerprint for order in epoch_orders)) % 2**53
