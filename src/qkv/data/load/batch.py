"""A batch: sequences as torch tensors, ready for a model.

B is the batch size, T and S the target and source length, E the maximum number of examples in a sequence.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.data.objectives import IGNORE_INDEX
from qkv.data.stream.collate import BatchArrays

KERNEL_BLOCK_TOKENS = 128
"""Maximum document lengths are rounded up to at least this, the block size of attention kernels."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """B sequences with up to E = `max_documents` examples in each. Integers are int64.

    Tensors that the objective does not use are None. `document_ids` number the examples of a sequence from 1; 0 is
    padding. `positions` start at 0 in each example. `labels` are labels of tokens. Labels of examples have the shape
    (B, E): `class_labels`, `scores`, or `span_starts` and `span_ends`. Where there is nothing to learn, a label is
    `IGNORE_INDEX` and a score is NaN.
    """

    ids: Tensor  # (B, T)
    document_ids: Tensor  # (B, T)
    positions: Tensor  # (B, T)
    labels: Tensor | None = None  # (B, T)
    token_type_ids: Tensor | None = None  # (B, T)
    source_ids: Tensor | None = None  # (B, S)
    source_document_ids: Tensor | None = None  # (B, S)
    source_positions: Tensor | None = None  # (B, S)
    class_labels: Tensor | None = None  # (B, E)
    label_sets: Tensor | None = None  # (B, E·V) 1 for each label of a document that may have several, else 0
    scores: Tensor | None = None  # (B, E) float32
    span_starts: Tensor | None = None  # (B, E) positions in the sequence
    span_ends: Tensor | None = None  # (B, E)

    max_documents: int
    epoch: int
    max_document_length: int = 0  # an upper bound in tokens, rounded up so that it seldom changes
    source_max_document_length: int = 0
    one_document_each: bool = False  # whether each sequence has exactly one document
    unpadded: bool = False  # whether one_document_each holds and there is no padding
    source_unpadded: bool = False  # the same as `unpadded`, for the source
    # Counts stay on the CPU, so that reading them never waits for a device.
    tokens_per_sequence: np.ndarray  # (B,) source and target together
    labels_per_sequence: np.ndarray  # (B,) the number of token labels other than IGNORE_INDEX
    example_labels_per_sequence: np.ndarray  # (B,) the number of classes, scores or spans to learn
    example_ids: np.ndarray  # (n,)
    example_sequences: np.ndarray  # (n,) the index of each example's sequence
    example_epochs: np.ndarray  # (n,) the epoch of each example's dataset

    @classmethod
    def from_arrays(cls, arrays: BatchArrays, max_documents: int, epoch: int) -> "Batch":
        """A batch from the arrays that `collate` made."""

        def count_labels(name: str) -> np.ndarray:
            values = arrays.get(name, np.full((len(arrays["ids"]), 1), IGNORE_INDEX))
            counts: np.ndarray = np.count_nonzero(np.isfinite(values) & (values != IGNORE_INDEX), axis=1)
            return counts

        converted: dict[str, Any] = {}
        for name, values in arrays.items():
            # a copy, because workers reuse their memory
            copy = values.astype(np.float32 if values.dtype.kind == "f" else np.int64)
            converted[name] = torch.from_numpy(copy) if copy.ndim == 2 else copy
        tokens = np.count_nonzero(arrays["document_ids"], axis=1)
        if "source_document_ids" in arrays:
            tokens = tokens + np.count_nonzero(arrays["source_document_ids"], axis=1)
        sequences = arrays["example_sequences"]
        one_each = len(sequences) == len(tokens) and len(np.unique(sequences)) == len(tokens)
        return cls(
            **converted,
            max_documents=max_documents,
            epoch=epoch,
            max_document_length=rounded_max_length(arrays, "positions"),
            source_max_document_length=rounded_max_length(arrays, "source_positions"),
            one_document_each=one_each,
            unpadded=one_each and _has_no_padding(arrays, "document_ids"),
            source_unpadded=one_each and _has_no_padding(arrays, "source_document_ids"),
            tokens_per_sequence=tokens,
            labels_per_sequence=count_labels("labels"),
            example_labels_per_sequence=count_labels("class_labels")
            + count_labels("label_sets") * max_documents // arrays.get("label_sets", np.zeros((1, 1))).shape[1]
            + count_labels("scores")
            + count_labels("span_starts"),
        )

    @property
    def batch_size(self) -> int:
        """The number of sequences."""
        return self.ids.shape[0]

    @property
    def has_document_labels(self) -> bool:
        """Whether documents have a class, a set of labels or a score to learn."""
        return any(values is not None for values in (self.class_labels, self.label_sets, self.scores))

    @property
    def examples(self) -> list[list[int]]:
        """The ids of the examples in each sequence."""
        listed: list[list[int]] = [[] for _ in range(self.batch_size)]
        for sequence, example in zip(self.example_sequences.tolist(), self.example_ids.tolist(), strict=True):
            listed[sequence].append(example)
        return listed

    @property
    def num_tokens(self) -> int:
        """The number of tokens without padding, source and target together."""
        return int(self.tokens_per_sequence.sum())

    @property
    def num_labels(self) -> int:
        """The number of token labels other than `IGNORE_INDEX`. The loss is divided by it."""
        return int(self.labels_per_sequence.sum())

    @property
    def num_example_labels(self) -> int:
        """The number of examples with a class, a score or a span to learn."""
        return int(self.example_labels_per_sequence.sum())

    @property
    def padding_fraction(self) -> float:
        """The fraction of positions that are padding."""
        positions = self.ids.numel() + (0 if self.source_ids is None else self.source_ids.numel())
        return 1 - self.num_tokens / positions

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Batch":
        """The same batch on a device."""
        return self._map_tensors(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Batch":
        """The same batch in page-locked memory, which can be copied to a GPU asynchronously."""
        return self._map_tensors(lambda tensor: tensor.pin_memory())

    def split(self, num_parts: int) -> list["Batch"]:
        """Split the sequences evenly into `num_parts` micro-batches, or fewer if there are fewer sequences."""
        edges = np.linspace(0, self.batch_size, min(num_parts, self.batch_size) + 1).round().astype(int).tolist()
        return [self._slice(first, last) for first, last in pairwise(edges)]

    def _slice(self, first: int, last: int) -> "Batch":
        mine = (self.example_sequences >= first) & (self.example_sequences < last)
        return replace(
            self._map_tensors(lambda tensor: tensor[first:last]),
            tokens_per_sequence=self.tokens_per_sequence[first:last],
            labels_per_sequence=self.labels_per_sequence[first:last],
            example_labels_per_sequence=self.example_labels_per_sequence[first:last],
            example_ids=self.example_ids[mine],
            example_sequences=self.example_sequences[mine] - first,
            example_epochs=self.example_epochs[mine],
        )

    def _map_tensors(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        changed: dict[str, Any] = {name: function(value) for name, value in values if isinstance(value, Tensor)}
        return replace(self, **changed)


def _has_no_padding(arrays: BatchArrays, name: str) -> bool:
    return name in arrays and bool((arrays[name] > 0).all())


def rounded_max_length(arrays: BatchArrays, name: str) -> int:
    """The maximum document length, rounded up to a power of two and limited to the sequence length.

    `name` is the array of positions. Returns 0 if the batch has no such array.
    """
    if name not in arrays:
        return 0
    positions = arrays[name]
    longest = int(positions.max(initial=0)) + 1
    return int(min(max(KERNEL_BLOCK_TOKENS, 1 << (longest - 1).bit_length()), positions.shape[1]))
