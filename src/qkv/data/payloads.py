"""Payloads: inputs that are not token ids, such as images and sounds, on their way from records to batches.

A payload occupies placeholder tokens in a sequence; a front end of the network computes their vectors. The token cache
stores payloads as they are in the data: the bytes of a file, or an array. They are decoded when a batch is built. The
config of the front end computes their lengths from their sizes, so batches are planned without decoding.

N examples, k payloads, n vectors of F numbers, m placeholders
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.blocks.front_ends import FrontEndConfig
from qkv.data.cache.examples import EncodedExamples, require_fields
from qkv.data.cache.writer import FieldStorage
from qkv.data.ragged import IntArray, Ragged, ragged_index, ragged_starts
from qkv.data.stream.random_bits import EpochRng
from qkv.errors import UsageError


class PayloadFormat(ABC):
    """How the payloads of a front end are stored and decoded. A subclass sets the attributes that are declared here."""

    fingerprint: str  # changes whenever `store` returns something else for the same value
    dtype: str = "float32"  # of the decoded vectors
    storage: FieldStorage = FieldStorage("uint8")  # of the values that `store` returns

    def __init__(self, front_end: FrontEndConfig) -> None:
        self.front_end = front_end

    def configure(self, settings: Mapping[str, Any], augment: Sequence[str] = ()) -> "PayloadFormat":
        """The format with the settings of a recipe: its table in [model], and the changes that `data.augment` names."""
        return self

    def for_evaluation(self) -> "PayloadFormat":
        """The same format without augmentation, for validation data."""
        return self

    @property
    def kind(self) -> str:
        """The name of the front end."""
        return self.front_end.kind

    @property
    def width(self) -> int:
        """F, the numbers of each vector."""
        return self.front_end.features

    @abstractmethod
    def store(self, value: Any) -> tuple[np.ndarray, tuple[int, int]]:
        """The value of a record's field as it is stored, and its size: the number of vectors is their product.

        Raises `InvalidRecord` for a value that cannot be decoded, such as a damaged file.
        """

    def plan_sizes(self, sizes: IntArray) -> IntArray:
        """The sizes (n, 2) of payloads after augmentation, from their sizes in the data."""
        return sizes

    def load(self, value: Any) -> tuple[np.ndarray, tuple[int, int]]:
        """The vectors of a value that a caller gives to a model, and its size. Raises `InvalidRecord`."""
        stored, size = self.store(value)
        return self.for_evaluation().decode(stored, size, 0), size

    @abstractmethod
    def decode(self, stored: np.ndarray, size: tuple[int, int], key: int) -> np.ndarray:
        """The vectors of a payload, (size[0] · size[1], F).

        `key` is a random number of the seed, the epoch and the example, for augmentation.
        """

    def decode_all(self, stored: np.ndarray, offsets: IntArray, sizes: IntArray, keys: np.ndarray) -> np.ndarray:
        """The vectors of several payloads, (sum of sizes, F). Payload i is stored[offsets[i] : offsets[i + 1]].

        A subclass may compute them together; the vectors of a payload must not depend on the other payloads.
        """
        decoded = [
            self.decode(stored[start:end], (int(size[0]), int(size[1])), int(key))
            for start, end, size, key in zip(offsets[:-1], offsets[1:], sizes, keys, strict=True)
        ]
        return np.concatenate([np.zeros((0, self.width), self.dtype), *decoded])


@dataclass(frozen=True)
class PayloadSlot:
    """Where the sequences of an objective have payloads: the format, and whether the side is the source."""

    format: PayloadFormat
    is_source: bool = False


@dataclass
class FlatPayloads:
    """The payloads of n training examples for one front end."""

    values: np.ndarray  # (n, F)
    sizes: IntArray  # (k, 2)
    lengths: IntArray  # (k,)
    positions: IntArray  # (m,) the index of each placeholder in `FlatExamples.ids`, or `source_ids`

    @staticmethod
    def join(parts: "Sequence[FlatPayloads]") -> "FlatPayloads":
        """The payloads of several fields, one field after the other."""
        columns = zip(*((one.values, one.sizes, one.lengths, one.positions) for one in parts), strict=True)
        return parts[0] if len(parts) == 1 else FlatPayloads(*map(np.concatenate, columns))


class PayloadField:
    """The payloads in a field of encoded examples. The field `<name>_size` has their sizes."""

    def __init__(self, examples: EncodedExamples, name: str, format: PayloadFormat) -> None:
        require_fields(examples, name, f"{name}_size")
        self.examples, self.name, self.format = examples, name, format
        flat, _ = examples.gather(f"{name}_size", np.arange(len(examples)))
        self.sizes: IntArray = format.plan_sizes(np.asarray(flat, np.int64).reshape(-1, 2))
        different, index = np.unique(self.sizes, axis=0, return_inverse=True)
        lengths = [format.front_end.length((height, width)) for height, width in different.tolist()]
        self.lengths: IntArray = np.array(lengths, np.int64)[index.reshape(-1)]  # (N,)

    def placeholders(self, examples: IntArray, placeholder_id: int) -> Ragged:
        """The placeholder ids of examples, concatenated, and their number in each."""
        lengths = self.lengths[examples]
        return np.full(int(lengths.sum()), placeholder_id, np.int32), lengths

    def check_lengths(self, limit: str, max_length: int, too_long: str, num_special_tokens: int) -> None:
        """Raise if payloads would have to be truncated: they can only be left out."""
        longest = int(self.lengths.max()) + num_special_tokens
        if too_long == "truncate" and longest > max_length:
            raise UsageError(
                f"{limit} = {max_length} is too small: the longest {self.format.kind} takes {longest} positions, and "
                f'only texts can be truncated. Raise {limit}, or set too_long = "skip"'
            )

    def read(self, examples: IntArray, rng: EpochRng, row_lengths: IntArray, first: IntArray | int) -> FlatPayloads:
        """Decode the payloads of examples. The first placeholder of each is token `first` of its sequence."""
        stored, offsets = self.examples.gather(self.name, examples)
        sizes, lengths = self.sizes[examples], self.lengths[examples]
        keys = rng.keys(f"payload {self.name}", examples)
        values = self.format.decode_all(stored, offsets, sizes, keys)
        if len(values) != int(sizes.prod(axis=1).sum()):
            raise AssertionError(f"{self.format.kind} payloads were decoded to other sizes than `store` returned")
        return FlatPayloads(values, sizes, lengths, ragged_index(ragged_starts(row_lengths) + first, lengths))
