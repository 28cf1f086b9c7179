"""A runner on a GPU for what the host looks at after every step: sampling, filters, streamed text.

A step is one CUDA graph, as in `greedy.py`. Choosing the tokens is another one, if the filters depend on the logits
only. Sequences that have ended stay in the caches and are computed without effect, because shapes never change.

R sequences that are still generated, N sequences in the caches, V vocabulary
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from qkv.decode.gpu.graphs import GraphedSteps, capture
from qkv.decode.gpu.greedy import network_for_steps
from qkv.decode.gpu.static_runner import CacheView, StaticRunner
from qkv.decode.runner import ModelRunner, promote_to_float32
from qkv.decode.selection import TokenSelector

MIN_TOKENS_TO_CAPTURE = 8
"""Capturing the choice of tokens saves time only if more new tokens than this may be generated."""


class GraphRunner:
    """Takes over a new `ModelRunner` and serves the decoding loop with captured steps."""

    def __init__(
        self,
        runner: ModelRunner,
        max_new_tokens: int,
        *,
        compiled: bool = False,
        fused_decoder: Callable[[StaticRunner, Tensor], Any] | None = None,
    ) -> None:
        """`fused_decoder` makes a `FusedDecoder`, whose kernels run the steps then."""
        rows, self.length = runner.tokens.shape
        device = runner.tokens.device
        self.token_buffer = torch.cat([runner.tokens, runner.tokens.new_zeros(rows, max_new_tokens)], dim=1)  # (R, L)
        self.active = list(range(rows))  # which sequences of the caches are still generated
        self.active_index: Tensor | None = None  # the same on the device; None: all of them
        self.token = torch.zeros(rows, 1, dtype=torch.long, device=device)
        self.num_steps = 0
        compiled = compiled and fused_decoder is None
        network = network_for_steps(runner, compiled=compiled)
        self.static_runner = StaticRunner(runner, max_new_tokens, network=network)
        self.logits = self.static_runner.prefill_logits.clone()  # (N, V)
        self.fused_decoder = None if fused_decoder is None else fused_decoder(self.static_runner, self.token)
        self.steps = GraphedSteps(
            self.static_runner, self._step, compiled=compiled, uses_buckets=self.fused_decoder is None
        )
        self.uniforms = torch.zeros(rows, dtype=torch.float64, device=device)  # (N,) random numbers of sampling
        self.captures_selection = max_new_tokens > MIN_TOKENS_TO_CAPTURE
        self.step_output: Tensor | None = None  # (N, …) what the selector returned
        self.selection_graph: torch.cuda.CUDAGraph | None = None

    @property
    def tokens(self) -> Tensor:
        """Prompts and generated tokens (R, T), left-padded with −1."""
        return self.token_buffer[:, : self.length]

    def prefill(self) -> Tensor:
        """The logits (R, V) after the prompts, which the constructor has read."""
        return self.logits

    def step(self, token_ids: Tensor) -> Tensor:
        """Append a token (R,) to each sequence; returns the logits (R, V) of the next one."""
        self.token_buffer[:, self.length] = token_ids
        self.length += 1
        if self.active_index is None:
            self.token.copy_(token_ids[:, None])
        else:
            self.token[self.active_index] = token_ids[:, None]
        self.num_steps += 1
        self.steps(self.num_steps)
        return self._active_rows(self.logits)

    def select(self, selector: TokenSelector, logits: Tensor, uniforms: Tensor | None) -> Tensor:
        """Choose the next tokens; `uniforms` (R,) are the random numbers of sampling."""
        if not (selector.is_stateless and self.captures_selection):
            return selector(logits, self.tokens.contiguous(), None if uniforms is None else uniforms.to(logits.device))
        if uniforms is not None:
            padded = torch.zeros(len(self.uniforms), dtype=torch.float64)
            padded[self.active] = uniforms
            self.uniforms.copy_(padded)
        fixed_uniforms = None if uniforms is None else self.uniforms
        if self.step_output is None or not self.steps.cuda:
            # The first time runs uncaptured: it loads kernels, which a capture cannot do.
            self.step_output = selector(self.logits, self.token, fixed_uniforms)
            return self._active_rows(self.step_output)
        step_output = self.step_output

        def select_in_place() -> None:
            step_output.copy_(selector(self.logits, self.token, fixed_uniforms))

        self.selection_graph = self.selection_graph or capture(select_in_place, self.steps.pool)
        self.selection_graph.replay()
        return self._active_rows(step_output)

    def keep(self, indices: Tensor) -> None:
        """Continue with these sequences only."""
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
