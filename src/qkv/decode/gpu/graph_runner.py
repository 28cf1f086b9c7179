"""A run on a GPU for what the host looks at as it goes: drawn tokens, filters, text that is shown while it is written.

What `static.py` does for greedy decoding, but for the choice: a step is one CUDA graph, and so is the choice where the
filters look at the logits alone. Rows that have ended stay in the caches and go on without effect, as shapes never
change.

R rows that are still written, N rows in the caches, V vocabulary
"""

import torch
from torch import Tensor

from qkv.decode.gpu.graphs import GraphedSteps, capture, fused_step_module, network_for_steps
from qkv.decode.gpu.static_runner import CacheView, StaticRunner
from qkv.decode.runner import ModelRunner, promote_to_float32
from qkv.decode.selection import TokenSelector

MIN_TOKENS_TO_CAPTURE = 8
"""From more tokens than this on, capturing the choice takes less time than it saves."""


class GraphRunner:
    """A fresh run, taken over: what the loop of `generate.py` asks of a run, with captured steps."""

    def __init__(self, runner: ModelRunner, max_new_tokens: int, *, compiled: bool = False) -> None:
        rows, self.length = runner.tokens.shape
        device = runner.tokens.device
        self.token_buffer = torch.cat(
            [runner.tokens, runner.tokens.new_zeros(rows, max_new_tokens)], dim=1
        )  # (R, L) with room
        self.active = list(range(rows))  # where the rows stand in the caches
        self.active_index: Tensor | None = None  # the same on the device; None: all are there
        self.token = torch.zeros(rows, 1, dtype=torch.long, device=device)
        self.num_steps = 0
        kernels = fused_step_module(runner)
        network = None if kernels else network_for_steps(runner, rows, compiled=compiled)
        self.static_runner = StaticRunner(runner, max_new_tokens, network=network)
        self.fused_decoder = kernels.OneRow(self.static_runner, self.token) if kernels else None
        self.logits = self.static_runner.prefill_logits.clone()  # (N, V)
        self.steps = GraphedSteps(
            self.static_runner, self._step, compiled=compiled and not kernels, uses_buckets=not kernels
        )
        self.uniforms = torch.zeros(rows, dtype=torch.float64, device=device)  # (N,) those to draw by
        self.captures_selection = max_new_tokens > MIN_TOKENS_TO_CAPTURE
        self.step_output: Tensor | None = None  # (N, …) what was chosen
        self.selection_graph: torch.cuda.CUDAGraph | None = None  # of the choice

    @property
    def tokens(self) -> Tensor:
        """(R, T) all that was read or written so far, −1 left of shorter rows."""
        return self.token_buffer[:, : self.length]

    def prefill(self) -> Tensor:
        """The logits (R, V) of what comes after the prompts, which are read already."""
        return self.logits

    def step(self, token_ids: Tensor) -> Tensor:
        """Write a token (R,) to each row; the logits (R, V) of what comes next."""
        self.token_buffer[:, self.length] = token_ids
        self.length += 1
        if self.active_index is None:
            self.token.copy_(token_ids[:, None])
        else:
            self.token[self.active_index] = token_ids[:, None]
        self.num_steps += 1
        self.steps(self.num_steps)
        return self._active_rows(self.logits)

    def select(self, selector: TokenSelector, logits: Tensor, numbers: Tensor | None) -> Tensor:
        """What comes next, from the logits of the last step and, for a draw, a number (R,) a row."""
        if not (selector.is_stateless and self.captures_selection):
            return selector(logits, self.tokens.contiguous(), None if numbers is None else numbers.to(logits.device))
        if numbers is not None:
            wide = torch.zeros(len(self.uniforms), dtype=torch.float64)
            wide[self.active] = numbers
            self.uniforms.copy_(wide)

        drawn_by = None if numbers is None else self.uniforms
        if self.step_output is None or not self.steps.cuda:
            # As it is: this loads kernels, which a capture cannot wait for.
            self.step_output = selector(self.logits, self.token, drawn_by)
            return self._active_rows(self.step_output)
        told = self.step_output

        def again() -> None:
            told.copy_(selector(self.logits, self.token, drawn_by))

        self.selection_graph = self.selection_graph or capture(again, self.steps.pool)
        self.selection_graph.replay()
        return self._active_rows(told)

    def keep(self, indices: Tensor) -> None:
        """Go on with these rows alone."""
        self.active = [self.active[row] for row in indices.tolist()]
        self.active_index = torch.tensor(self.active, device=indices.device)
        self.token_buffer = self.token_buffer[indices]

    def _active_rows(self, values: Tensor) -> Tensor:
        return values if self.active_index is None else values[self.active_index]

    def _step(self, view: CacheView) -> None:
        if self.fused_decoder is None:
            self.logits.copy_(promote_to_float32(self.static_runner.logits(self.token, view)))
        else:
            self.logits.copy_(self.fused_decoder.logits())
            self.static_runner.next_positions.add_(1)
            self.static_runner.next_slots.add_(1)
