"""Counter-based random numbers: each number is a hash of (seed, epoch, purpose, example, counter).

No generator state has to be saved. So a run that is resumed, or has another number of workers or processes, masks the
same words and shuffles in the same order. The hash is SplitMix64 (Steele, Lea and Flood 2014): number k of a stream is
`splitmix64_finalizer(key + (k + 1) · GOLDEN_GAMMA)`.
"""

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from qkv.data.ragged import IntArray, ragged_starts

Bits = np.ndarray  # uint64, any shape

GOLDEN_GAMMA = 0x9E3779B97F4A7C15
UINT64_MAX = 2**64 - 1


def splitmix64_finalizer(x: Bits) -> Bits:
    """SplitMix64's finaliser, a bijection of 64-bit numbers that mixes their bits."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Bits = x ^ (x >> np.uint64(31))
    return mixed


def hash64(*parts: int | str) -> int:
    """A 64-bit hash, the same on every machine.

    >>> hash64(7, "mask") == hash64(7, "mask"), hash64(7, "mask") == hash64(7, "order")
    (True, False)
    """
    digest = blake2b("\x1f".join(f"{type(part).__name__}:{part}" for part in parts).encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "little")


@dataclass(frozen=True)
class EpochRng:
    """The random numbers of one epoch.

    >>> keys = EpochRng(seed=1, epoch=0).keys("mask", np.arange(3))
    >>> len(set(keys.tolist()))
    3
    """

    seed: int
    epoch: int = 0

    def hash64(self, purpose: str) -> int:
        """One 64-bit number for the epoch."""
        return hash64(self.seed, self.epoch, purpose)

    def keys(self, purpose: str, examples: IntArray) -> Bits:
        """A separate stream for each example: (n,) example ids → (n,) keys for `random_bits`."""
        ids = np.asarray(examples).astype(np.uint64)
        return splitmix64_finalizer(ids * np.uint64(GOLDEN_GAMMA) + np.uint64(self.hash64(purpose)))


def random_bits(keys: Bits, counters: np.ndarray) -> Bits:
    """Random 64-bit numbers: element `counters` of the random streams `keys` (shapes broadcast)."""
    return splitmix64_finalizer(
        keys + (np.asarray(counters).astype(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN_GAMMA)
    )


def to_uniform(bits: Bits) -> np.ndarray:
    """Bits as float64 in [0, 1)."""
    return (bits >> np.uint64(11)) * 2.0**-53


def to_integers(bits: Bits, limit: int | np.ndarray) -> np.ndarray:
    """Bits as int64 in [0, limit), for limits up to 2³²: the high half of a product, without a division."""
    return ((bits >> np.uint64(32)) * np.asarray(limit).astype(np.uint64) >> np.uint64(32)).astype(np.int64)


def shuffle_groups(keys: Bits, sizes: IntArray) -> IntArray:
    """A random order within each of n concatenated groups: flat indices (sum of sizes,).

    >>> order = shuffle_groups(EpochRng(0).keys("demo", np.arange(2)), np.array([3, 2])).tolist()
    >>> sorted(order[:3]), sorted(order[3:])
    ([0, 1, 2], [3, 4])
    """
    group = np.repeat(np.arange(len(sizes)), sizes)  # (sum,)
    member = np.arange(len(group)) - ragged_starts(sizes)[group]
    # One sort for all groups: the group in the high bits, random numbers in the low ones.
    width = max(1, len(sizes).bit_length())
    noise = random_bits(keys[group], member) >> np.uint64(width)
    return np.argsort(group.astype(np.uint64) << np.uint64(64 - width) | noise, kind="stable")


def choose_in_groups(keys: Bits, sizes: IntArray, counts: IntArray) -> np.ndarray:
    """Choose `counts[i]` of the `sizes[i]` members of each group at random: flat (sum of sizes,) bool."""
    order = shuffle_groups(keys, sizes)
    group = np.repeat(np.arange(len(sizes)), sizes)
    rank = np.arange(len(group)) - ragged_starts(sizes)[group]  # within the group; `order` keeps groups contiguous
    chosen = np.zeros(len(group), bool)
    chosen[order[rank < np.asarray(counts)[group]]] = True
    return chosen


def random_compositions(keys: Bits, totals: IntArray, num_parts: IntArray) -> IntArray:
    """Split each total into `num_parts` positive parts, every split equally likely: flat (sum of num_parts,).

    >>> parts = random_compositions(EpochRng(0).keys("demo", np.arange(2)), np.array([10, 4]), np.array([3, 4]))
    >>> int(parts[:3].sum()), parts[3:].tolist()
    (10, [1, 1, 1, 1])
    """
    totals, num_parts = np.asarray(totals), np.asarray(num_parts)
    is_start = np.zeros(int(totals.sum()), bool)  # True where a part begins
    starts = ragged_starts(totals)[totals > 0]  # the first element of each total begins a part
    is_inner = np.ones(len(is_start), bool)
    is_inner[starts] = False
    is_start[starts] = True
    is_start[is_inner] = choose_in_groups(keys, np.maximum(totals - 1, 0), np.maximum(num_parts - 1, 0))
    return np.diff(np.flatnonzero(is_start), append=len(is_start))
