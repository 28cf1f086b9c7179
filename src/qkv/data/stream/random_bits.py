"""Random choices that depend on nothing but (seed, epoch, what it is for, which example, which draw).

There is no generator object whose state would have to be saved: every number is a hash of its address. So a run that
stops and resumes, or uses another number of workers or processes, masks the same words and shuffles the same way.
The hash is SplitMix64 (Steele, Lea and Flood 2014): the k-th number of a stream is `mix(key + k · GOLDEN)`.
"""

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from qkv.data.ragged import Ints, ragged_starts

Bits = np.ndarray  # uint64, any shape

GOLDEN_GAMMA = 0x9E3779B97F4A7C15
UINT64_MAX = 2**64 - 1


def splitmix64_finalizer(x: Bits) -> Bits:
    """SplitMix64's finaliser: 64 bits in, 64 well stirred bits out, one to one."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    stirred: Bits = x ^ (x >> np.uint64(31))
    return stirred


def hash64(*parts: int | str) -> int:
    """One 64-bit number from an address, the same on every machine.

    >>> hash64(7, "mask") == hash64(7, "mask"), hash64(7, "mask") == hash64(7, "order")
    (True, False)
    """
    digest = blake2b("\x1f".join(f"{type(part).__name__}:{part}" for part in parts).encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "little")


@dataclass(frozen=True)
class EpochRng:
    """Where random choices come from: a seed and an epoch.

    >>> keys = EpochRng(seed=1, epoch=0).keys("mask", np.arange(3))
    >>> len(set(keys.tolist()))
    3
    """

    seed: int
    epoch: int = 0

    def hash64(self, purpose: str) -> int:
        """One 64-bit number for the whole epoch."""
        return hash64(self.seed, self.epoch, purpose)

    def keys(self, purpose: str, examples: Ints) -> Bits:
        """A stream of its own for each example: (n,) ids → (n,) keys for `bits`."""
        return splitmix64_finalizer(
            np.asarray(examples).astype(np.uint64) * np.uint64(GOLDEN_GAMMA) + np.uint64(self.hash64(purpose))
        )


def random_bits(keys: Bits, counters: np.ndarray) -> Bits:
    """Draw number `counters` of the streams `keys` (shapes broadcast)."""
    return splitmix64_finalizer(
        keys + (np.asarray(counters).astype(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN_GAMMA)
    )


def to_uniform(bits: Bits) -> np.ndarray:
    """Bits as float64 in [0, 1)."""
    return (bits >> np.uint64(11)) * 2.0**-53


def to_integers(bits: Bits, limit: int | np.ndarray) -> np.ndarray:
    """Bits as int64 in [0, limit), for limits up to 2³²: the high half of a product, no division."""
    return ((bits >> np.uint64(32)) * np.asarray(limit).astype(np.uint64) >> np.uint64(32)).astype(np.int64)


def shuffle_groups(keys: Bits, sizes: Ints) -> Ints:
    """A random order of the members of each group: groups laid end to end (n groups of `sizes`) → flat indices.

    >>> order = shuffle_groups(EpochRng(0).keys("demo", np.arange(2)), np.array([3, 2])).tolist()
    >>> sorted(order[:3]), sorted(order[3:])
    ([0, 1, 2], [3, 4])
    """
    group = np.repeat(np.arange(len(sizes)), sizes)  # (sum,)
    member = np.arange(len(group)) - ragged_starts(sizes)[group]
    # One sort serves all groups: the group in the high bits, chance in the low ones.
    width = max(1, len(sizes).bit_length())
    chance = random_bits(keys[group], member) >> np.uint64(width)
    return np.argsort(group.astype(np.uint64) << np.uint64(64 - width) | chance, kind="stable")


def choose_in_groups(keys: Bits, sizes: Ints, counts: Ints) -> np.ndarray:
    """Mark `picks[i]` of the `sizes[i]` members of each group at random: flat (sum of sizes,) bool."""
    order = shuffle_groups(keys, sizes)
    group = np.repeat(np.arange(len(sizes)), sizes)
    rank = np.arange(len(group)) - ragged_starts(sizes)[group]  # the order keeps groups together
    chosen = np.zeros(len(group), bool)
    chosen[order[rank < np.asarray(counts)[group]]] = True
    return chosen


def random_compositions(keys: Bits, totals: Ints, num_parts: Ints) -> Ints:
    """Cut each total into so many positive parts at random, every cut equally likely: flat (sum of parts,).

    >>> pieces = random_compositions(EpochRng(0).keys("demo", np.arange(2)), np.array([10, 4]), np.array([3, 4]))
    >>> int(pieces[:3].sum()), pieces[3:].tolist()
    (10, [1, 1, 1, 1])
    """
    totals, num_parts = np.asarray(totals), np.asarray(num_parts)
    cut = np.zeros(int(totals.sum()), bool)  # True where a part begins
    starts = ragged_starts(totals)
    inner = np.ones(len(cut), bool)
    inner[starts[totals > 0]] = False  # the first place of a total always begins a part; the others may
    cut[starts[totals > 0]] = True
    cut[inner] = choose_in_groups(keys, np.maximum(totals - 1, 0), np.maximum(num_parts - 1, 0))
    begins = np.flatnonzero(cut)
    return np.diff(begins, append=len(cut))
