"""A run on a GPU for choices that the host makes: drawn tokens, filters, text that is shown while it is written.

What `static.py` does for greedy decoding, but for the choice: a step is one CUDA graph, and its logits are handed out.
Rows that have ended stay in the caches and go on without effect, as shapes never change.

R rows that are still written, N rows in the caches, V vocabulary
"""

import torch
from torch import Tensor

from qkv.decode.run import Run, exact
from qkv.decode.static import Steps, network_of_steps, one_row_kernels
from qkv.decode.static_step import Seen, StaticRun


class GraphRun:
    """A fresh run, taken over: what the loop of `generate.py` asks of a run, with captured steps."""

    def __init__(self, run: Run, most: int, *, compiled: bool = False) -> None:
        self.tokens = run.tokens  # (R, T)
        rows, device = len(run.tokens), run.tokens.device
        self.live = torch.arange(rows, device=device)  # (R,) where the rows stand in the caches
        self.token = torch.zeros(rows, 1, dtype=torch.long, device=device)
        self.made = 0
        kernels = one_row_kernels(run)
        network = None if kernels else network_of_steps(run, rows, compiled=compiled)
        self.static = StaticRun(run, most, network=network)
        self.by_hand = kernels.OneRow(self.static, self.token) if kernels else None
        self.logits = torch.empty_like(self.static.first)  # (N, V)
        self.steps = Steps(self.static, self._read, compiled=compiled and not kernels, buckets=not kernels)

    def prefill(self) -> Tensor:
        """The logits (R, V) of what comes after the prompts, which are read already."""
        return self.static.first

    def step(self, chosen: Tensor) -> Tensor:
        """Write a token (R,) to each row; the logits (R, V) of what comes next."""
        self.tokens = torch.cat([self.tokens, chosen[:, None]], dim=1)
        self.token[self.live] = chosen[:, None]
        self.made += 1
        self.steps(self.made)
        return self.logits[self.live]

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows alone."""
        self.live, self.tokens = self.live[rows], self.tokens[rows]

    def _read(self, seen: Seen) -> None:
        if self.by_hand is None:
            self.logits.copy_(exact(self.static.logits(self.token, seen)))
        else:
            self.logits.copy_(self.by_hand.logits())
            self.static.position.add_(1)
            self.static.slots.add_(1)
