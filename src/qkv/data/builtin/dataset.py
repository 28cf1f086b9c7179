"""Base class of built-in datasets: each example is a pure function of (seed, split, number).

So the position in the data is a single integer, and resuming or sharding across processes needs no other state.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import count
from typing import Any

from qkv.errors import UsageError, suggest_name

SPLITS = ("train", "valid", "test")
UINT64_MAX = (1 << 64) - 1
SPLIT_BUCKETS = 20  # keys are hashed into this number of buckets: one is valid, one is test, the others are train


class BuiltinDataset(ABC):
    """A dataset that comes with qkv."""

    name: str
    description: str
    licence: str
    fields: tuple[str, ...]  # the fields of every example; for a text-to-text task, source and target come first
    splits: tuple[str, ...] = SPLITS

    @abstractmethod
    def example(self, split: str, i: int, seed: int = 0) -> Mapping[str, Any]:
        """Return example `i` of a split. It depends only on the arguments, on every machine."""

    @abstractmethod
    def length(self, split: str) -> int | None:
        """The number of examples of a split; None if the split is endless."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A hash that changes when the examples change."""

    def examples(
        self, split: str, seed: int = 0, start: int = 0, stop: int | None = None
    ) -> Iterator[Mapping[str, Any]]:
        """Yield the examples start … stop − 1. Without `stop`, yield all examples from `start` on."""
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
    """The first number of the random stream of a seed and a split."""
    return splitmix64(splitmix64(seed) ^ SPLITS.index(split) + 1)


def assign_split(key: int) -> str:
    """The split of a key (a date, the hash of a path). It does not depend on the seed, so no key is in two splits.

    >>> sorted({assign_split(key) for key in range(100)})
    ['test', 'train', 'valid']
    """
    bucket = splitmix64(key ^ 0x68656C64) % SPLIT_BUCKETS
    return "valid" if bucket == 0 else "test" if bucket == 1 else "train"
