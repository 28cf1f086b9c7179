"""Averages of weights: a moving one along the run, and the mean of a few checkpoints at its end.

Both are better models than the last step's for nothing but memory: the noise of single steps cancels out.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from qkv.errors import QkvError


class Ema:
    """An exponential moving average: after each step the average moves (1 − decay) of the way to the weights.

    At its n-th move the decay is at most (1 + n)/(10 + n), so that a young average follows fast and the start's
    random numbers are soon forgotten.

        ema = Ema(network.named_parameters(), 0.999)
        ema.update()                 # after each step
        with ema.swapped():          # the network is the average here
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
        """Move towards the weights as they are now."""
        self.num_updates += 1
        n = int(self.num_updates)
        weight = 1.0 - min(self.decay, (1 + n) / (10 + n))
        for name, average in self._averages.items():
            average.lerp_(self._weights[name].detach().to(average.dtype), weight)

    def state_tensors(self) -> dict[str, Tensor]:
        """The living tensors, to save and to load into: the averages by name, and "updates", how often they moved."""
        return {**self._averages, "updates": self.num_updates}

    @torch.no_grad()
    def copy_to_network(self) -> None:
        """Give the network the averages, for good."""
        for name, p in self._weights.items():
            p.copy_(self._averages[name])

    @contextmanager
    @torch.no_grad()
    def use_averages(self) -> Iterator[None]:
        """Inside, the network has the averages; afterwards its own weights again, bit for bit."""
        own = {name: p.detach().clone() for name, p in self._weights.items()}
        try:
            self.copy_to_network()
            yield
        finally:
            for name, p in self._weights.items():
                p.copy_(own[name])


class Reader(Protocol):
    """What gives a tensor, or a box of it, by name: a checkpoint."""

    def read_tensor(self, name: str) -> Tensor: ...
    def read_slice(self, name: str, offset: Sequence[int], shape: Sequence[int]) -> Tensor: ...


class CheckpointAverage:
    """Several checkpoints read as one: each number is the mean of theirs, summed in float64.

    It is read as a checkpoint is, a tensor (or this process's box of it) at a time, so it costs no memory.
    Of numbers that are not floating-point, counters perhaps, the last checkpoint's are taken.
    """

    def __init__(self, readers: Sequence[Reader]) -> None:
        if not readers:
            raise QkvError("there is nothing to average: no checkpoint was kept (train.keep_checkpoints)")
        self.readers = list(readers)

    def read_tensor(self, name: str) -> Tensor:
        return self._mean(name, [reader.read_tensor(name) for reader in self.readers])

    def read_slice(self, name: str, offset: Sequence[int], shape: Sequence[int]) -> Tensor:
        return self._mean(name, [reader.read_slice(name, offset, shape) for reader in self.readers])

    def _mean(self, name: str, each: list[Tensor]) -> Tensor:
        last = each[-1]
        if not last.is_floating_point():
            return last
        total = torch.zeros(last.shape, dtype=torch.float64)
        for one in each:
            if one.shape != last.shape:
                raise QkvError(f"{name} is {list(one.shape)} in one checkpoint and {list(last.shape)} in another")
            total += one
        return (total / len(each)).to(last.dtype)
