"""What every built-in dataset is: examples by number, each a pure function of (seed, split, number).

So the order of the data, resuming and sharding across processes need no state: the position in the data is an integer.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import lru_cache
from itertools import count

from qkv.errors import UsageError, suggest_name

SPLITS = ("train", "valid", "test")
UINT64_MAX = (1 << 64) - 1
SPLIT_BUCKETS = 20  # one key in this many is for valid, and one for test


class BuiltinDataset(ABC):
    """A dataset that comes with qkv."""

    name: str
    description: str
    licence: str
    fields: tuple[str, ...]  # of every example; source and target come first for a text-to-text task
    splits: tuple[str, ...] = SPLITS

    @abstractmethod
    def example(self, split: str, i: int, seed: int = 0) -> dict[str, str]:
        """Example `i` of a split: the same for the same (split, i, seed), on any machine."""

    @abstractmethod
    def length(self, split: str) -> int | None:
        """The number of examples of a split; None if it is endless."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of what the examples are made from: it changes when they do."""

    def examples(self, split: str, seed: int = 0, start: int = 0, stop: int | None = None) -> Iterator[dict[str, str]]:
        """The examples from `start` to `stop`, or to the end of the split, if it has one."""
        end = self.length(split) if stop is None else stop
        for i in count(start) if end is None else range(start, end):
            yield self.example(split, i, seed)

    def check_index(self, split: str, i: int) -> None:
        """Raise an error if there is no such split or example."""
        if split not in self.splits:
            raise UsageError(f"{self.name} has no split {split!r}; {suggest_name(split, self.splits)}")
        end = self.length(split)
        if i < 0 or (end is not None and i >= end):
            known = "numbers start at 0" if end is None else f"the numbers are 0 to {end - 1}"
            raise UsageError(f"{self.name}/{split} has no example {i}: {known}")


def splitmix64(value: int) -> int:
    """A 64-bit hash of an integer (SplitMix64, Steele et al. 2014).

    >>> splitmix64(1) == splitmix64(1), splitmix64(1) == splitmix64(2)
    (True, False)
    """
    value = (value + 0x9E3779B97F4A7C15) & UINT64_MAX
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & UINT64_MAX
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & UINT64_MAX
    return value ^ (value >> 31)


@lru_cache(maxsize=256)
def random_stream_start(seed: int, split: str) -> int:
    """Where the random numbers of a seed and split begin: far from those of any other."""
    return splitmix64(splitmix64(seed) ^ SPLITS.index(split) + 1)


def assign_split(key: int) -> str:
    """The split of a key (a date, a file's hash). It does not depend on the seed, so no key is in two splits.

    >>> sorted({assign_split(key) for key in range(100)})
    ['test', 'train', 'valid']
    """
    bucket = splitmix64(key ^ 0x68656C64) % SPLIT_BUCKETS
    return "valid" if bucket == 0 else "test" if bucket == 1 else "train"
