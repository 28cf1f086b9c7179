"""Averages of weights: an exponential moving average (EMA) during a run, and checkpoint averaging at its end.

Both reduce the noise of single steps, and often give a better model than the last step. An EMA takes as much memory
as the weights.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.train.checkpoint.slices import TensorReader


class Ema:
    """An exponential moving average: average ← decay · average + (1 − decay) · weights, after each step.

    At update n the decay is at most (1 + n)/(10 + n), so that the initial weights soon have little influence.

        ema = Ema(network.named_parameters(), 0.999)
        ema.update()                 # after each step
        with ema.use_averages():     # here the network has the averages
            evaluate(network)
    """

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]], decay: float) -> None:
        self.decay = decay
        self.num_updates = torch.zeros((), dtype=torch.int64)
        self._weights = {name: p for name, p in named if p.requires_grad}
        self._averages = {
            name: p.detach().to(torch.promote_types(p.dtype, torch.float32), copy=True)
            for name, p in self._weights.items()
        }

    @torch.no_grad()
    def update(self) -> None:
        """Update the averages with the current weights."""
        self.num_updates += 1
        n = int(self.num_updates)
        weight = 1.0 - min(self.decay, (1 + n) / (10 + n))
        for name, average in self._averages.items():
            average.lerp_(self._weights[name].detach().to(average.dtype), weight)

    @torch.no_grad()
    def restart(self) -> None:
        """Start again from the current weights."""
        self.num_updates.zero_()
        for name, average in self._averages.items():
            average.copy_(self._weights[name])

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the tensors that a checkpoint saves and restores: the averages, and the number of "updates"."""
        return {**self._averages, "updates": self.num_updates}

    @torch.no_grad()
    def copy_to_network(self) -> None:
        """Replace the network's weights by the averages."""
        for name, p in self._weights.items():
            p.copy_(self._averages[name])

    @contextmanager
    @torch.no_grad()
    def use_averages(self) -> Iterator[None]:
        """A context in which the network has the averages. At its end, the network has its own weights again."""
        own = {name: p.detach().clone() for name, p in self._weights.items()}
        try:
            self.copy_to_network()
            yield
        finally:
            for name, p in self._weights.items():
                p.copy_(own[name])


class CheckpointAverage:
    """The average of several checkpoints, with the methods of a checkpoint. Values are summed in float64.

    Tensors (or this rank's slices of them) are read one at a time, so it needs little memory. Tensors that are not
    floating-point, such as counters, are not averaged: the last checkpoint's values are used.
    """

    def __init__(self, readers: Sequence[TensorReader]) -> None:
        if not readers:
            raise QkvError("there is no readable checkpoint to average: set train.average_checkpoints = 0")
        self.readers = list(readers)

    def read_tensor(self, name: str) -> Tensor:
        """Return the mean of a whole tensor."""
        return self._mean(name, [reader.read_tensor(name) for reader in self.readers])

    def read_slice(self, name: str, offset: Sequence[int], shape: Sequence[int]) -> Tensor:
        """Return the mean of a slice of a tensor."""
        return self._mean(name, [reader.read_slice(name, offset, shape) for reader in self.readers])

    def _mean(self, name: str, tensors: list[Tensor]) -> Tensor:
        last = tensors[-1]
        if not last.is_floating_point():
            return last
        total = torch.zeros(last.shape, dtype=torch.float64)
        for tensor in tensors:
            if tensor.shape != last.shape:
                raise QkvError(
                    f"{name} has the shape {list(tensor.shape)} in one checkpoint and {list(last.shape)} in another, "
                    "so they cannot be averaged; set train.average_checkpoints = 0"
                )
            total += tensor
        return (total / len(tensors)).to(last.dtype)
