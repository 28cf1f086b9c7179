"""A batch: rows as torch tensors, ready for a model."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.data.fill import Arrays
from qkv.data.objectives import IGNORE


@dataclass(frozen=True, kw_only=True)
class Batch:
    """B rows of T places (and S on the source side), with up to E = `texts` examples in each. Integers are int64.

    What an objective does not have is None. `segment` numbers the examples of a row from 1, 0 is padding; `position`
    counts inside each example; `labels` and what belongs to whole examples (B, E) are `IGNORE` (scores: NaN) where
    there is nothing to learn.
    """

    ids: Tensor  # (B, T)
    segment: Tensor  # (B, T)
    position: Tensor  # (B, T)
    labels: Tensor | None = None  # (B, T)
    types: Tensor | None = None  # (B, T)
    source_ids: Tensor | None = None  # (B, S)
    source_segment: Tensor | None = None  # (B, S)
    source_position: Tensor | None = None  # (B, S)
    class_labels: Tensor | None = None  # (B, E)
    scores: Tensor | None = None  # (B, E) float32
    span_starts: Tensor | None = None  # (B, E) places in the row
    span_ends: Tensor | None = None  # (B, E)

    texts: int
    epoch: int
    longest: int = 0  # no text takes more places than this; rounded up, so that it seldom changes
    source_longest: int = 0
    single: bool = False  # whether each row holds exactly one text
    full: bool = False  # whether it holds nothing else, no padding either
    source_full: bool = False  # whether each source row does
    # What is counted stays on the CPU, so that nobody has to wait for a device to know it.
    row_tokens: np.ndarray  # (B,) tokens, source and target together
    row_labels: np.ndarray  # (B,) token labels that are learnt from
    row_answers: np.ndarray  # (B,) classes, scores or spans that are learnt from
    example: np.ndarray  # (n,) the number of each example
    example_row: np.ndarray  # (n,) the row it lies in
    example_epoch: np.ndarray  # (n,) the epoch of its source

    @classmethod
    def of(cls, arrays: Arrays, texts: int, epoch: int) -> "Batch":
        """A batch from the arrays that `fill` made."""

        def learnt(name: str) -> np.ndarray:
            values = arrays.get(name, np.full((len(arrays["ids"]), 1), IGNORE))
            found: np.ndarray = np.count_nonzero(np.isfinite(values) & (values != IGNORE), axis=1)
            return found

        parts: dict[str, Any] = {}
        for name, values in arrays.items():
            own = values.astype(np.float32 if values.dtype.kind == "f" else np.int64)  # a copy: workers reuse theirs
            parts[name] = torch.from_numpy(own) if own.ndim == 2 else own
        tokens = np.count_nonzero(arrays["segment"], axis=1)
        if "source_segment" in arrays:
            tokens = tokens + np.count_nonzero(arrays["source_segment"], axis=1)
        answers = learnt("class_labels") + learnt("scores") + learnt("span_starts")
        one_each = len(arrays["example_row"]) == len(tokens) and len(np.unique(arrays["example_row"])) == len(tokens)
        shape: dict[str, Any] = {"longest": rounded(arrays, "position"), "single": one_each}
        shape["source_longest"] = rounded(arrays, "source_position")
        for name in ("segment", "source_segment"):
            if name in arrays:
                shape[name.replace("segment", "full")] = one_each and bool((arrays[name] > 0).all())
        counts = {"row_tokens": tokens, "row_labels": learnt("labels"), "row_answers": answers}
        return cls(**parts, **counts, **shape, texts=texts, epoch=epoch)

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self.ids.shape[0]

    @property
    def examples(self) -> list[list[int]]:
        """The numbers of the examples in each row."""
        listed: list[list[int]] = [[] for _ in range(self.rows)]
        for row, example in zip(self.example_row.tolist(), self.example.tolist(), strict=True):
            listed[row].append(example)
        return listed

    @property
    def real_tokens(self) -> int:
        """Tokens that are not padding, source and target together."""
        return int(self.row_tokens.sum())

    @property
    def label_count(self) -> int:
        """Token labels that are learnt from: what their loss is divided by, and micro-batches are weighed by."""
        return int(self.row_labels.sum())

    @property
    def answer_count(self) -> int:
        """Classes, scores or spans that are learnt from."""
        return int(self.row_answers.sum())

    @property
    def padding_share(self) -> float:
        """The share of places that hold no token."""
        places = self.ids.numel() + (0 if self.source_ids is None else self.source_ids.numel())
        return 1 - self.real_tokens / places

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Batch":
        """The same batch on a device."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin(self) -> "Batch":
        """The same batch in page-locked memory, from which a GPU can fetch it while it works."""
        return self._each(lambda tensor: tensor.pin_memory())

    def split(self, parts: int) -> list["Batch"]:
        """The rows in `parts` micro-batches, as even as they can be; fewer where there are fewer rows."""
        edges = np.linspace(0, self.rows, min(parts, self.rows) + 1).round().astype(int).tolist()
        return [self._rows(first, last) for first, last in pairwise(edges)]

    def _rows(self, first: int, last: int) -> "Batch":
        mine = (self.example_row >= first) & (self.example_row < last)
        return replace(
            self._each(lambda tensor: tensor[first:last]),
            row_tokens=self.row_tokens[first:last],
            row_labels=self.row_labels[first:last],
            row_answers=self.row_answers[first:last],
            example=self.example[mine],
            example_row=self.example_row[mine] - first,
            example_epoch=self.example_epoch[mine],
        )

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        changed: dict[str, Any] = {name: change(value) for name, value in values if isinstance(value, Tensor)}
        return replace(self, **changed)


LEAST = 128
"""Attention kernels work on blocks of this many places: a smaller bound would change nothing."""


def rounded(arrays: Arrays, name: str) -> int:
    """The places that the longest text takes, rounded up to a power of two (at most a row); 0 without such rows."""
    if name not in arrays:
        return 0
    positions = arrays[name]
    longest = int(positions.max(initial=0)) + 1
    return int(min(max(LEAST, 1 << (longest - 1).bit_length()), positions.shape[1]))
