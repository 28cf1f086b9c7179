"""Objectives' examples as a network reads them: rows of like lengths together, padded, with their sentence types.

The layout of a text (what stands before, between and after) is the objectives' own, so that a model is judged on
texts laid out exactly as it was trained on them.

B rows, T places, C width, V outputs
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from qkv.blocks import SequenceLayout
from qkv.data.objectives import IGNORE_INDEX, FlatExamples
from qkv.errors import UsageError
from qkv.models import Config, Encoder, Network, Seq2Seq
from qkv.tasks.task import ProgressCallback

LOGITS_CHUNK = 4096  # whose logits are held at a time


def batches(
    lengths: Sequence[int] | np.ndarray, batch_size: int, progress: ProgressCallback | None = None
) -> Iterator[list[int]]:
    """The numbers of all rows, `batch` of like lengths at a time, the longest first: what does not fit fails at once.

    >>> list(batches([3, 9, 1], 2))
    [[1, 0], [2]]
    """
    if batch_size < 1:
        raise UsageError(f"batch_size = {batch_size}: at least 1")
    order = sorted(range(len(lengths)), key=lambda i: -int(lengths[i]))
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]
        if progress is not None:
            progress(min(start + batch_size, len(order)), len(order))


class ExampleBatches:
    """Examples laid out for a network. Call its methods inside `evaluating(network)`."""

    def __init__(self, network: Network, pieces: FlatExamples, pad_token_id: int) -> None:
        if isinstance(network, Seq2Seq):
            raise UsageError("this task is for encoder-only and decoder-only models; this one has both")
        self.network = network
        self.lengths = pieces.lengths
        self.pad_token_id = pad_token_id
        self.ids = self._split(pieces.ids)
        self.labels = None if pieces.labels is None else self._split(pieces.labels)
        typed = isinstance(network, Encoder) and network.config.stack.token_types > 1
        self.token_type_ids = (
            self._split(pieces.token_type_ids) if typed and pieces.token_type_ids is not None else None
        )
        self.device = next(network.parameters()).device

    def _split(self, flat: np.ndarray) -> list[np.ndarray]:
        return np.split(flat, np.cumsum(self.lengths)[:-1])

    def padded(self, rows: Sequence[np.ndarray], chosen: Sequence[int], fill: int) -> Tensor:
        """The chosen rows as (B, T), filled up on the right."""
        out = np.full((len(chosen), max(1, int(self.lengths[chosen].max()))), fill, np.int64)
        for place, i in enumerate(chosen):
            out[place, : len(rows[i])] = rows[i]
        return torch.from_numpy(out).to(self.device)

    def hidden(self, chosen: Sequence[int], selected: Tensor | None = None) -> tuple[Tensor, SequenceLayout]:
        """What the head reads of the chosen examples, (B, T, C) or at places `only` (N, C), and where tokens stand."""
        ids = self.padded(self.ids, chosen, self.pad_token_id)
        sizes = torch.from_numpy(self.lengths[chosen].astype(np.int64)).to(self.device)
        segment = (torch.arange(ids.shape[1], device=self.device) < sizes[:, None]).long()
        if self.token_type_ids is not None:
            assert isinstance(self.network, Encoder)
            return self.network.hidden(
                ids, segment, token_type_ids=self.padded(self.token_type_ids, chosen, 0), selected=selected
            )
        return self.network.hidden(ids, segment, selected=selected)

    def outputs(self, chosen: Sequence[int]) -> Tensor:
        """What the head says, in float32 or better: (B, V) of a head that reads texts, else (B, T, V)."""
        x, place = self.hidden(chosen)
        return at_least_float32(self.network.head(x, place))

    def label_logits(self, chosen: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
        """The logits (n, V) and labels (n,) of the places that have a label, at most `PLACES` at a time."""
        assert self.labels is not None
        labels = self.padded(self.labels, chosen, IGNORE_INDEX).flatten()
        places = (labels != IGNORE_INDEX).nonzero()[:, 0]
        x, _ = self.hidden(chosen, places)
        for vectors, wanted in zip(x.split(LOGITS_CHUNK), labels[places].split(LOGITS_CHUNK), strict=True):
            yield at_least_float32(self.network.head.project(vectors)), wanted


def at_least_float32(values: Tensor) -> Tensor:
    """Numbers in float32 or better."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def max_sequence_length(config: Config, limit: int = 0) -> int:
    """How many places a row may have: as many as the model has positions, or at most `most` where that is given."""
    places = config.stack.max_positions
    return min(places, limit) if limit else places
