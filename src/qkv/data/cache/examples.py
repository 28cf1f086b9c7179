"""Encoded examples, which the objectives read: on disk (`TokenCache`) or in memory (`InMemoryExamples`)."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np

from qkv.data.problems import InvalidRecord, Problems
from qkv.data.ragged import IntArray, ragged_index
from qkv.errors import QkvError, UsageError, suggest_name

PAYLOAD_DTYPES = (np.dtype(np.uint8), np.dtype(np.float16))
MIN_TOKENS_TO_COPY = 64  # above this mean length, copying slices was measured to be faster than fancy indexing


class EncodedExamples(ABC):
    """Random access to encoded examples. Each example has one array for each field.

    Tokens are int32, and scores are float32. Payloads are uint8 or float16, one number or one row for each "token".

    For each field, a subclass sets `_tokens` (the tokens of all N examples, concatenated), `_offsets` (N + 1,) and
    `_lengths` (N,).
    """

    def __init__(self, count: int, fields: Sequence[str]):
        self.fields = tuple(fields)
        self._count = count
        self._tokens: dict[str, np.ndarray] = {}
        self._offsets: dict[str, np.ndarray] = {}
        self._lengths: dict[str, np.ndarray] = {}

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A hash that changes with the content of the examples."""

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        """Return one example: field → array (a copy)."""
        if index < 0:
            index += self._count
        if not 0 <= index < self._count:
            raise IndexError(f"there is no example {index}: the numbers are 0 to {self._count - 1}")
        example = {}
        for field in self.fields:
            offsets, tokens = self._offsets[field], self._tokens[field]
            example[field] = tokens[offsets[index] : offsets[index + 1]].astype(_output_dtype(tokens))
        return example

    def lengths(self, field: str) -> np.ndarray:
        """(N,) integers: the length of one field in every example."""
        check_field(self.fields, field)
        return self._lengths[field]

    def gather(
        self, field: str, indices: IntArray, starts: IntArray | None = None, counts: IntArray | None = None
    ) -> tuple[np.ndarray, IntArray]:
        """Return one field of n examples, or a slice of each: (concatenated tokens, n + 1 offsets into them).

        The slice of example indices[i] has the tokens starts[i] … starts[i] + counts[i] − 1; the default is all tokens.
        """
        check_field(self.fields, field)
        indices = np.asarray(indices, np.int64)
        if indices.size and not (indices.min() >= 0 and indices.max() < self._count):
            raise IndexError(
                f"examples {indices.min()} to {indices.max()} were requested; the numbers are 0 to {self._count - 1}"
            )
        length = self._lengths[field][indices]
        begin = self._offsets[field][indices]
        if starts is not None or counts is not None:
            starts = np.zeros(len(indices), np.int64) if starts is None else np.asarray(starts, np.int64)
            counts = length - starts if counts is None else np.asarray(counts, np.int64)
            is_invalid = (starts < 0) | (counts < 0) | (starts + counts > length)
            if is_invalid.any():
                i = int(is_invalid.argmax())
                raise IndexError(
                    f"tokens {starts[i]} to {starts[i] + counts[i] - 1} of example {indices[i]} were requested; "
                    f"its field {field!r} has tokens 0 to {length[i] - 1}"
                )
            begin, length = begin + starts, counts
        offsets = np.zeros(len(indices) + 1, np.int64)
        np.cumsum(length, out=offsets[1:])
        return _gather_slices(self._tokens[field], begin, length, offsets), offsets


class InMemoryExamples(EncodedExamples):
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
        super().__init__(len(listed), fields or tuple(listed[0] if listed else ()))
        for field in self.fields:
            arrays = [np.atleast_1d(np.asarray(example[field])) for example in listed]
            dtype = np.result_type(*(array.dtype for array in arrays if len(array)), np.uint8)
            if dtype not in PAYLOAD_DTYPES:
                dtype = np.dtype(np.float32 if dtype.kind == "f" else np.int32)
            row_shape = arrays[0].shape[1:] if arrays else ()
            self._tokens[field] = np.concatenate([np.zeros((0, *row_shape), dtype), *arrays]).astype(dtype)
            self._lengths[field] = np.fromiter(map(len, arrays), np.int64, len(arrays))
            self._offsets[field] = np.concatenate([[0], np.cumsum(self._lengths[field])])

    @classmethod
    def from_records(cls, records: Iterable[Any], encode: Any, problems: Problems | None = None) -> "InMemoryExamples":
        """Encode records and keep them in memory. Invalid records are reported to `problems`."""
        listed = list(records)
        problems = problems or Problems()
        problems.num_seen += len(listed)
        valid = []
        for record, example in zip(listed, encode(listed), strict=True):
            if isinstance(example, InvalidRecord):
                problems.leave_out(example, record.location)
            else:
                valid.append(example)
        problems.finish()
        return cls(valid, encode.fields)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all arrays."""
        digest = blake2b(digest_size=16)
        for field in self.fields:
            digest.update(field.encode() + self._lengths[field].tobytes() + self._tokens[field].tobytes())
        return digest.hexdigest()


def check_field(fields: Sequence[str], field: str) -> None:
    """Raise if the examples lack a field."""
    if field not in fields:
        raise UsageError(f"the encoded examples have no field {field!r}; {suggest_name(field, fields)}")


def require_fields(examples: EncodedExamples, *fields: str) -> None:
    """Raise if there are no examples, or they lack one of the fields that an objective reads."""
    for field in fields:
        check_field(examples.fields, field)
    if len(examples) == 0:
        raise QkvError(
            "there are no examples to train on: the data is empty, or every record is invalid; `qkv data FILE` lists "
            "the problems of a file"
        )


def _output_dtype(tokens: np.ndarray) -> np.dtype[Any]:
    if tokens.dtype in PAYLOAD_DTYPES:
        return tokens.dtype
    return np.dtype(np.float32 if tokens.dtype.kind == "f" else np.int32)


def _gather_slices(tokens: np.ndarray, begin: IntArray, length: IntArray, offsets: IntArray) -> np.ndarray:
    """The slices tokens[begin[i] : begin[i] + length[i]], concatenated. `offsets` are their starts in the result."""
    if offsets[-1] < MIN_TOKENS_TO_COPY * len(begin):
        gathered: np.ndarray = tokens[ragged_index(begin, length)]
        return gathered.astype(_output_dtype(tokens), copy=False)
    # Copy slice by slice: an array of indices would need four times the memory of the tokens.
    flat = np.empty((offsets[-1], *tokens.shape[1:]), _output_dtype(tokens))
    for offset, start, count in zip(offsets.tolist(), begin.tolist(), length.tolist(), strict=False):
        flat[offset : offset + count] = tokens[start : start + count]
    return flat
