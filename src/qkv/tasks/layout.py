"""Objectives' examples as a network reads them: rows of like lengths together, padded, with their sentence types.

The layout of a text (what stands before, between and after) is the objectives' own, so that a model is judged on
texts laid out exactly as it was trained on them.

B rows, T places, C width, V outputs
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from qkv.blocks import Place
from qkv.data.objectives import IGNORE, Pieces
from qkv.errors import UsageError
from qkv.models import Config, Encoder, Network, Seq2Seq
from qkv.tasks.task import Progress

PLACES = 4096  # whose logits are held at a time


def batches(lengths: Sequence[int] | np.ndarray, batch: int, progress: Progress | None = None) -> Iterator[list[int]]:
    """The numbers of all rows, `batch` of like lengths at a time, the longest first: what does not fit fails at once.

    >>> list(batches([3, 9, 1], 2))
    [[1, 0], [2]]
    """
    if batch < 1:
        raise UsageError(f"batch = {batch}: at least 1")
    order = sorted(range(len(lengths)), key=lambda i: -int(lengths[i]))
    for start in range(0, len(order), batch):
        yield order[start : start + batch]
        if progress is not None:
            progress(min(start + batch, len(order)), len(order))


class Laid:
    """Examples laid out for a network. Call its methods inside `evaluating(network)`."""

    def __init__(self, network: Network, pieces: Pieces, pad: int) -> None:
        if isinstance(network, Seq2Seq):
            raise UsageError("this task is for encoder-only and decoder-only models; this one has both")
        self.network = network
        self.lengths = pieces.lengths
        self.pad = pad
        self.ids = self._rows(pieces.ids)
        self.labels = None if pieces.labels is None else self._rows(pieces.labels)
        typed = isinstance(network, Encoder) and network.config.stack.types > 1
        self.types = self._rows(pieces.types) if typed and pieces.types is not None else None
        self.device = next(network.parameters()).device

    def _rows(self, flat: np.ndarray) -> list[np.ndarray]:
        return np.split(flat, np.cumsum(self.lengths)[:-1])

    def padded(self, rows: Sequence[np.ndarray], chosen: Sequence[int], fill: int) -> Tensor:
        """The chosen rows as (B, T), filled up on the right."""
        out = np.full((len(chosen), max(1, int(self.lengths[chosen].max()))), fill, np.int64)
        for place, i in enumerate(chosen):
            out[place, : len(rows[i])] = rows[i]
        return torch.from_numpy(out).to(self.device)

    def vectors(self, chosen: Sequence[int], only: Tensor | None = None) -> tuple[Tensor, Place]:
        """What the head reads of the chosen examples, (B, T, C) or at places `only` (N, C), and where tokens stand."""
        ids = self.padded(self.ids, chosen, self.pad)
        sizes = torch.from_numpy(self.lengths[chosen].astype(np.int64)).to(self.device)
        segment = (torch.arange(ids.shape[1], device=self.device) < sizes[:, None]).long()
        if self.types is not None:
            assert isinstance(self.network, Encoder)
            return self.network.hidden(ids, segment, types=self.padded(self.types, chosen, 0), only=only)
        return self.network.hidden(ids, segment, only=only)

    def outputs(self, chosen: Sequence[int]) -> Tensor:
        """What the head says, in float32 or better: (B, V) of a head that reads texts, else (B, T, V)."""
        x, place = self.vectors(chosen)
        return exact(self.network.head(x, place))

    def at_labels(self, chosen: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
        """The logits (n, V) and labels (n,) of the places that have a label, at most `PLACES` at a time."""
        assert self.labels is not None
        labels = self.padded(self.labels, chosen, IGNORE).flatten()
        places = (labels != IGNORE).nonzero()[:, 0]
        x, _ = self.vectors(chosen, places)
        for vectors, wanted in zip(x.split(PLACES), labels[places].split(PLACES), strict=True):
            yield exact(self.network.head.read(vectors)), wanted


def exact(values: Tensor) -> Tensor:
    """Numbers in float32 or better."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def room(config: Config, most: int = 0) -> int:
    """How many places a row may have: as many as the model has positions, or at most `most` where that is given."""
    places = config.stack.max_positions
    return min(places, most) if most else places
