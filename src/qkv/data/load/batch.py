"""A batch: rows as torch tensors, ready for a model."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.data.objectives import IGNORE_INDEX
from qkv.data.stream.collate import BatchArrays


@dataclass(frozen=True, kw_only=True)
class Batch:
    """B rows of T places (and S on the source side), with up to E = `texts` examples in each. Integers are int64.

    What an objective does not have is None. `segment` numbers the examples of a row from 1, 0 is padding; `position`
    counts inside each example; `labels` and what belongs to whole examples (B, E) are `IGNORE` (scores: NaN) where
    there is nothing to learn.
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
    scores: Tensor | None = None  # (B, E) float32
    span_starts: Tensor | None = None  # (B, E) places in the row
    span_ends: Tensor | None = None  # (B, E)

    max_documents: int
    epoch: int
    max_document_length: int = 0  # no text takes more places than this; rounded up, so that it seldom changes
    source_max_document_length: int = 0
    one_document_each: bool = False  # whether each row holds exactly one text
    unpadded: bool = False  # whether it holds nothing else, no padding either
    source_unpadded: bool = False  # whether each source row does
    # What is counted stays on the CPU, so that nobody has to wait for a device to know it.
    tokens_per_sequence: np.ndarray  # (B,) tokens, source and target together
    labels_per_sequence: np.ndarray  # (B,) token labels that are learnt from
    answers_per_sequence: np.ndarray  # (B,) classes, scores or spans that are learnt from
    example_ids: np.ndarray  # (n,) the number of each example
    example_sequences: np.ndarray  # (n,) the row it lies in
    example_epochs: np.ndarray  # (n,) the epoch of its source

    @classmethod
    def from_arrays(cls, arrays: BatchArrays, max_documents: int, epoch: int) -> "Batch":
        """A batch from the arrays that `fill` made."""

        def learnt(name: str) -> np.ndarray:
            values = arrays.get(name, np.full((len(arrays["ids"]), 1), IGNORE_INDEX))
            found: np.ndarray = np.count_nonzero(np.isfinite(values) & (values != IGNORE_INDEX), axis=1)
            return found

        parts: dict[str, Any] = {}
        for name, values in arrays.items():
            own = values.astype(np.float32 if values.dtype.kind == "f" else np.int64)  # a copy: workers reuse theirs
            parts[name] = torch.from_numpy(own) if own.ndim == 2 else own
        tokens = np.count_nonzero(arrays["document_ids"], axis=1)
        if "source_document_ids" in arrays:
            tokens = tokens + np.count_nonzero(arrays["source_document_ids"], axis=1)
        answers = learnt("class_labels") + learnt("scores") + learnt("span_starts")
        one_each = len(arrays["example_sequences"]) == len(tokens) and len(
            np.unique(arrays["example_sequences"])
        ) == len(tokens)
        shape: dict[str, Any] = {
            "max_document_length": rounded_max_length(arrays, "positions"),
            "one_document_each": one_each,
        }
        shape["source_max_document_length"] = rounded_max_length(arrays, "source_positions")
        for name in ("document_ids", "source_document_ids"):
            if name in arrays:
                shape[name.replace("document_ids", "unpadded")] = one_each and bool((arrays[name] > 0).all())
        counts = {
            "tokens_per_sequence": tokens,
            "labels_per_sequence": learnt("labels"),
            "answers_per_sequence": answers,
        }
        return cls(**parts, **counts, **shape, max_documents=max_documents, epoch=epoch)

    @property
    def batch_size(self) -> int:
        """How many rows there are."""
        return self.ids.shape[0]

    @property
    def examples(self) -> list[list[int]]:
        """The numbers of the examples in each row."""
        listed: list[list[int]] = [[] for _ in range(self.batch_size)]
        for row, example in zip(self.example_sequences.tolist(), self.example_ids.tolist(), strict=True):
            listed[row].append(example)
        return listed

    @property
    def num_tokens(self) -> int:
        """Tokens that are not padding, source and target together."""
        return int(self.tokens_per_sequence.sum())

    @property
    def num_labels(self) -> int:
        """Token labels that are learnt from: what their loss is divided by, and micro-batches are weighed by."""
        return int(self.labels_per_sequence.sum())

    @property
    def num_answers(self) -> int:
        """Classes, scores or spans that are learnt from."""
        return int(self.answers_per_sequence.sum())

    @property
    def padding_fraction(self) -> float:
        """The share of places that hold no token."""
        places = self.ids.numel() + (0 if self.source_ids is None else self.source_ids.numel())
        return 1 - self.num_tokens / places

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Batch":
        """The same batch on a device."""
        return self._map_tensors(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Batch":
        """The same batch in page-locked memory, from which a GPU can fetch it while it works."""
        return self._map_tensors(lambda tensor: tensor.pin_memory())

    def split(self, num_parts: int) -> list["Batch"]:
        """The rows in `parts` micro-batches, as even as they can be; fewer where there are fewer rows."""
        edges = np.linspace(0, self.batch_size, min(num_parts, self.batch_size) + 1).round().astype(int).tolist()
        return [self._slice(first, last) for first, last in pairwise(edges)]

    def _slice(self, first: int, last: int) -> "Batch":
        mine = (self.example_sequences >= first) & (self.example_sequences < last)
        return replace(
            self._map_tensors(lambda tensor: tensor[first:last]),
            tokens_per_sequence=self.tokens_per_sequence[first:last],
            labels_per_sequence=self.labels_per_sequence[first:last],
            answers_per_sequence=self.answers_per_sequence[first:last],
            example_ids=self.example_ids[mine],
            example_sequences=self.example_sequences[mine] - first,
            example_epochs=self.example_epochs[mine],
        )

    def _map_tensors(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        changed: dict[str, Any] = {name: change(value) for name, value in values if isinstance(value, Tensor)}
        return replace(self, **changed)


KERNEL_BLOCK_TOKENS = 128
"""Attention kernels work on blocks of this many places: a smaller bound would change nothing."""


def rounded_max_length(arrays: BatchArrays, name: str) -> int:
    """The places that the longest text takes, rounded up to a power of two (at most a row); 0 without such rows."""
    if name not in arrays:
        return 0
    positions = arrays[name]
    longest = int(positions.max(initial=0)) + 1
    return int(min(max(KERNEL_BLOCK_TOKENS, 1 << (longest - 1).bit_length()), positions.shape[1]))
