"""A runner on a GPU for calls that need the tokens on the CPU after every step: sampling, filters, streamed text.

A step is one CUDA graph, as in `greedy.py`. Choosing the tokens is another graph, if the filters depend only on the
logits. A sequence that has ended stays in the caches, because shapes never change, and its new results are ignored.

R active sequences, which have not ended; N sequences in the caches; V vocabulary
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
"""The choice of tokens is captured as a graph only if max_new_tokens is larger. Otherwise it would save no time."""


class GraphRunner:
    """Implements `TokenRunner` with CUDA graphs. It takes over a new `ModelRunner`."""

    def __init__(
        self,
        runner: ModelRunner,
        max_new_tokens: int,
        *,
        compiled: bool = False,
        runner_class: type[StaticRunner] = StaticRunner,
        fused_decoder: Callable[[StaticRunner, Tensor], Any] | None = None,
    ) -> None:
        """If `fused_decoder` is given, it must return a `FusedDecoder`, and the fused kernels run the steps.

        A `runner_class` other than `StaticRunner` runs the steps in kernels that skip empty slots themselves.
        """
        rows, self.length = runner.tokens.shape
        device = runner.tokens.device
        self.token_buffer = torch.cat([runner.tokens, runner.tokens.new_zeros(rows, max_new_tokens)], dim=1)  # (R, L)
        self.active = list(range(rows))  # the indices of the active sequences in the caches
        self.active_index: Tensor | None = None  # `active` as a tensor on the device; None if all are active
        self.token = torch.zeros(rows, 1, dtype=torch.long, device=device)
        self.num_steps = 0
        has_kernels = fused_decoder is not None or runner_class is not StaticRunner
        compiled = compiled and not has_kernels
        network = network_for_steps(runner, compiled=compiled)
        self.static_runner = runner_class(runner, max_new_tokens, network=network)
        self.logits = self.static_runner.prefill_logits.clone()  # (N, V)
        self.fused_decoder = None if fused_decoder is None else fused_decoder(self.static_runner, self.token)
        self.steps = GraphedSteps(self.static_runner, self._step, compiled=compiled, uses_buckets=not has_kernels)
        self.uniforms = torch.zeros(rows, dtype=torch.float64, device=device)  # (N,) random numbers of sampling
        self.captures_selection = max_new_tokens > MIN_TOKENS_TO_CAPTURE
        self.step_output: Tensor | None = None  # (N, …) the output of the selector
        self.selection_graph: torch.cuda.CUDAGraph | None = None

    @property
    def tokens(self) -> Tensor:
        """The prompts and the generated tokens (R, T), left-padded with −1."""
        return self.token_buffer[:, : self.length]

    def prefill(self) -> Tensor:
        """Return the logits (R, V) after the prompts. The constructor has already run the model on them."""
        return self.logits

    def step(self, token_ids: Tensor) -> Tensor:
        """Append one token to each sequence, `token_ids` (R,), and return the logits (R, V) of the next tokens."""
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
        """Choose the next tokens and return the selector's output. Sampling needs `uniforms`, random numbers (R,)."""
        if not (selector.is_stateless and self.captures_selection):
            return selector(logits, self.tokens.contiguous(), None if uniforms is None else uniforms.to(logits.device))
        if uniforms is not None:
            padded = torch.zeros(len(self.uniforms), dtype=torch.float64)
            padded[self.active] = uniforms
            self.uniforms.copy_(padded)
        fixed_uniforms = None if uniforms is None else self.uniforms
        if self.step_output is None or not self.steps.cuda:
            # The first call runs without a graph: it loads kernels, which a capture cannot do.
            self.step_output = selector(self.logits, self.token, fixed_uniforms)
            return self._active_rows(self.step_output)
        step_output = self.step_output

        def select_in_place() -> None:
            step_output.copy_(selector(self.logits, self.token, fixed_uniforms))

        self.selection_graph = self.selection_graph or capture(select_in_place, self.steps.pool)
        self.selection_graph.replay()
        return self._active_rows(step_output)

    def keep(self, indices: Tensor) -> None:
        """Keep only the sequences at these indices."""
        self.active = [self.active[row] for row in indices.tolist()]
        self.active_index = torch.tensor(self.active, device=indices.device)
        self.token_buffer = self.token_buffer[indices]

    def _active_rows(self, values: Tensor) -> Tensor:
        return values if self.active_index is None else values[self.active_index]

    def _step(self, view: CacheView) -> None:
        if self.fused_decoder is None:
            logits = self.static_runner.logits(self.token, view)[:, : self.logits.shape[1]]
            self.logits.copy_(promote_to_float32(logits))
        else:
            self.logits.copy_(self.fused_decoder.logits())
            self.static_runner.next_positions.add_(1)
            self.static_runner.next_slots.add_(1)
