"""A run on a GPU for what the host looks at as it goes: drawn tokens, filters, text that is shown while it is written.

What `static.py` does for greedy decoding, but for the choice: a step is one CUDA graph, and so is the choice where the
filters look at the logits alone. Rows that have ended stay in the caches and go on without effect, as shapes never
change.

R rows that are still written, N rows in the caches, V vocabulary
"""

import torch
from torch import Tensor

from qkv.decode.choice import Choice
from qkv.decode.run import Run, exact
from qkv.decode.static import Steps, capture, network_of_steps, one_row_kernels
from qkv.decode.static_step import Seen, StaticRun

OFTEN = 8
"""From more tokens than this on, capturing the choice takes less time than it saves."""


class GraphRun:
    """A fresh run, taken over: what the loop of `generate.py` asks of a run, with captured steps."""

    def __init__(self, run: Run, most: int, *, compiled: bool = False) -> None:
        rows, self.length = run.tokens.shape
        device = run.tokens.device
        self.held = torch.cat([run.tokens, run.tokens.new_zeros(rows, most)], dim=1)  # (R, L) with room
        self.live = list(range(rows))  # where the rows stand in the caches
        self.index: Tensor | None = None  # the same on the device; None: all are there
        self.token = torch.zeros(rows, 1, dtype=torch.long, device=device)
        self.made = 0
        kernels = one_row_kernels(run)
        network = None if kernels else network_of_steps(run, rows, compiled=compiled)
        self.static = StaticRun(run, most, network=network)
        self.by_hand = kernels.OneRow(self.static, self.token) if kernels else None
        self.logits = self.static.first.clone()  # (N, V)
        self.steps = Steps(self.static, self._read, compiled=compiled and not kernels, buckets=not kernels)
        self.numbers = torch.zeros(rows, dtype=torch.float64, device=device)  # (N,) those to draw by
        self.often = most > OFTEN
        self.told: Tensor | None = None  # (N, …) what was chosen
        self.graph: torch.cuda.CUDAGraph | None = None  # of the choice

    @property
    def tokens(self) -> Tensor:
        """(R, T) all that was read or written so far, −1 left of shorter rows."""
        return self.held[:, : self.length]

    def prefill(self) -> Tensor:
        """The logits (R, V) of what comes after the prompts, which are read already."""
        return self.logits

    def step(self, chosen: Tensor) -> Tensor:
        """Write a token (R,) to each row; the logits (R, V) of what comes next."""
        self.held[:, self.length] = chosen
        self.length += 1
        if self.index is None:
            self.token.copy_(chosen[:, None])
        else:
            self.token[self.index] = chosen[:, None]
        self.made += 1
        self.steps(self.made)
        return self._of_live(self.logits)

    def choose(self, choice: Choice, logits: Tensor, numbers: Tensor | None) -> Tensor:
        """What comes next, from the logits of the last step and, for a draw, a number (R,) a row."""
        if not (choice.settled and self.often):
            return choice(logits, self.tokens.contiguous(), None if numbers is None else numbers.to(logits.device))
        if numbers is not None:
            wide = torch.zeros(len(self.numbers), dtype=torch.float64)
            wide[self.live] = numbers
            self.numbers.copy_(wide)

        drawn_by = None if numbers is None else self.numbers
        if self.told is None or not self.steps.cuda:
            # As it is: this loads kernels, which a capture cannot wait for.
            self.told = choice(self.logits, self.token, drawn_by)
            return self._of_live(self.told)
        told = self.told

        def again() -> None:
            told.copy_(choice(self.logits, self.token, drawn_by))

        self.graph = self.graph or capture(again, self.steps.pool)
        self.graph.replay()
        return self._of_live(told)

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows alone."""
        self.live = [self.live[row] for row in rows.tolist()]
        self.index = torch.tensor(self.live, device=rows.device)
        self.held = self.held[rows]

    def _of_live(self, every: Tensor) -> Tensor:
        return every if self.index is None else every[self.index]

    def _read(self, seen: Seen) -> None:
        if self.by_hand is None:
            self.logits.copy_(exact(self.static.logits(self.token, seen)))
        else:
            self.logits.copy_(self.by_hand.logits())
            self.static.position.add_(1)
            self.static.slots.add_(1)
