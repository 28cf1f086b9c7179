"""Encoded examples: what the objectives read, on disk (`TokenCache`) or in memory (`InMemoryExamples`)."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np

from qkv.data.problems import InvalidRecord, Problems
from qkv.data.ragged import Ints, ragged_index, ragged_starts
from qkv.errors import QkvError, UsageError, suggest_name


class EncodedExamples(Protocol):
    """Random access to encoded examples: each has a few named arrays of int32 (float32 for fractions).

    `gather` reads one field of many examples: the tokens starts[i] … starts[i] + counts[i] − 1 of example indices[i],
    or all its tokens without `starts` and `counts`; it returns a flat array and n + 1 offsets. `fingerprint` changes
    with the content of the examples.
    """

    @property
    def fields(self) -> tuple[str, ...]: ...
    @property
    def fingerprint(self) -> str: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> dict[str, np.ndarray]: ...
    def lengths(self, field: str) -> np.ndarray: ...
    def gather(
        self, field: str, indices: Ints, starts: Ints | None = None, counts: Ints | None = None
    ) -> tuple[np.ndarray, Ints]: ...


class InMemoryExamples:
    """Examples in memory, for small or generated data and for tests.

    >>> examples = InMemoryExamples([{"ids": [5, 6]}, {"ids": [7]}])
    >>> len(examples), examples.lengths("ids").tolist(), examples[1]["ids"].tolist()
    (2, [2, 1], [7])
    >>> flat, offsets = examples.gather("ids", np.array([1, 0]))
    >>> flat.tolist(), offsets.tolist()
    ([7, 5, 6], [0, 1, 3])
    """

    def __init__(self, examples: Iterable[Mapping[str, Any]], fields: Sequence[str] = ()):
        listed = list(examples)
        self.fields = tuple(fields) or tuple(listed[0] if listed else ())
        self._count = len(listed)
        self._flat: dict[str, np.ndarray] = {}
        self._lengths: dict[str, np.ndarray] = {}
        self._starts: dict[str, np.ndarray] = {}
        for field in self.fields:
            arrays = [np.atleast_1d(np.asarray(example[field])) for example in listed]
            dtype = np.float32 if any(array.dtype.kind == "f" and len(array) for array in arrays) else np.int32
            self._flat[field] = np.concatenate([np.zeros(0, dtype), *arrays]).astype(dtype)
            self._lengths[field] = np.fromiter(map(len, arrays), np.int64, len(arrays))
            self._starts[field] = ragged_starts(self._lengths[field])

    @classmethod
    def from_records(cls, records: Iterable[Any], encode: Any, problems: Problems | None = None) -> "InMemoryExamples":
        """Encode records in memory, as `TokenCache.build` does on disk; invalid ones are reported to `problems`."""
        listed = list(records)
        problems = problems or Problems()
        problems.num_seen += len(listed)
        valid = []
        for record, example in zip(listed, encode(listed), strict=True):
            if isinstance(example, InvalidRecord):
                problems.skip(example.category, record.location, example.reason)
            else:
                valid.append(example)
        problems.finish()
        return cls(valid, encode.fields)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all arrays."""
        digest = blake2b(digest_size=16)
        for field in self.fields:
            digest.update(field.encode() + self._lengths[field].tobytes() + self._flat[field].tobytes())
        return digest.hexdigest()

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        if not 0 <= index < self._count:
            raise IndexError(f"example {index} of {self._count}")
        return {field: self.gather(field, np.array([index]))[0] for field in self.fields}

    def lengths(self, field: str) -> np.ndarray:
        """(N,) int64: the length of every example in one field."""
        check_field(self.fields, field)
        return self._lengths[field]

    def gather(
        self, field: str, indices: Ints, starts: Ints | None = None, counts: Ints | None = None
    ) -> tuple[np.ndarray, Ints]:
        """One field of many examples, or a slice of each; see `EncodedExamples`."""
        check_field(self.fields, field)
        begin = self._starts[field][indices]
        if starts is not None:
            begin = begin + starts
        if counts is None:
            counts = self._lengths[field][indices] - (0 if starts is None else starts)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        return self._flat[field][ragged_index(begin, counts)], offsets


def check_field(fields: Sequence[str], field: str) -> None:
    """Raise if the examples lack a field."""
    if field not in fields:
        raise UsageError(f"the encoded examples have no field {field!r}; {suggest_name(field, fields)}")


def require_fields(examples: EncodedExamples, *fields: str) -> None:
    """Raise if there are no examples, or they lack one of the fields that an objective reads."""
    for field in fields:
        check_field(examples.fields, field)
    if len(examples) == 0:
        raise QkvError("there are no examples to train on: the data is empty, or all of it was left out")
