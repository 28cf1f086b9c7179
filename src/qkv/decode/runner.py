"""Run the model: prefill, then one step after another.

A runner holds one batch of sequences that are being generated. Prompts of unequal length are left-padded, so that the
newest tokens of all sequences are in the same column. The mask hides the padding. Logits are computed only for the
newest position.

R sequences, T tokens, V vocabulary
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from qkv.blocks import CrossCache, Inputs, SelfCache, Tap
from qkv.blocks.inputs import extend_prompt
from qkv.decode.cache_edits import reorder_cache, select_sources
from qkv.decode.cpu import encoder as cpu_encoder
from qkv.decode.cpu.step import CpuStep
from qkv.decode.options import GenerationOptions
from qkv.decode.selection import TokenSelector
from qkv.errors import ContextLengthError, QkvError, UsageError
from qkv.models import Network

MAX_PREALLOCATED_TOKENS = 4096
"""The cache starts with room for at most this number of new tokens, and grows when there are more."""
MAX_PREFILL_TOKENS = {"cpu": 2048, "cuda": 16_384}
"""Longer prompts are read in chunks of this size, so that masks stay small and a run can be interrupted."""
NO_TOKEN = -1
"""Stands before the first token of a shorter sequence in the history that filters read. The model never reads it."""
ALWAYS_ALLOWED_LENGTH = 32_768
MAX_EXTRAPOLATION = 16
"""A Transformer without a table of positions reads at most 16 times `max_positions`, and at least 32,768, tokens."""


class TokenRunner(Protocol):
    """The methods that the decoding loop calls. `ModelRunner` and `GraphRunner` implement them."""

    @property
    def tokens(self) -> Tensor:
        """The prompts and the generated tokens (R, T), left-padded with −1."""

    def prefill(self) -> Tensor:
        """Read the prompts and return the logits (R, V) of the next tokens."""

    def step(self, token_ids: Tensor) -> Tensor:
        """Append one token to each sequence, `token_ids` (R,), and return the logits (R, V) of the next tokens."""

    def select(self, selector: TokenSelector, logits: Tensor, uniforms: Tensor | None) -> Tensor:
        """Choose the next tokens and return the selector's output. Sampling needs `uniforms`, random numbers (R,)."""

    def keep(self, indices: Tensor) -> None:
        """Keep only the sequences at these indices."""


class ModelRunner:
    """Runs a network on one batch. `tokens` (R, T) are the prompts and the generated tokens, left-padded with −1.

    `prompts` are what `prefill` reads.
    """

    def __init__(
        self,
        network: Network,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        cpu: bool = False,
        tap: Tap | None = None,
    ) -> None:
        """With `cpu`, `cpu.step` runs the steps and `cpu.encoder` the sources, instead of the network's modules."""
        network.check_methods()
        self.network, self.tap = network, tap
        self.prompts = Inputs.from_sequences(prompts, side="left", device=network.device)
        self.tokens = token_history(self.prompts)
        num_slots = self.tokens.shape[1] + min(max_new_tokens, MAX_PREALLOCATED_TOKENS)
        self.cache = network.new_cache(len(prompts), num_slots)
        self.cross_cache: CrossCache | None = None
        self._cpu_step = CpuStep(network) if cpu else None
        self.next_logits: Callable[..., Tensor] = next_logits
        """The function that runs the network. A GPU backend may set a faster one."""

    def encode_sources(self, sources: Sequence[Sequence[int]]) -> None:
        """Run the encoder of an encoder-decoder. Call it once, before `prefill`."""
        if self._cpu_step is not None:
            self.cross_cache = cpu_encoder.encode_sources(self.network, sources)
        else:
            inputs = Inputs.from_sequences(sources, side="left", device=self.tokens.device)
            self.cross_cache = self.network.build_cross_cache(self.network.encode(inputs, tap=self.tap))

    def prefill(self) -> Tensor:
        """Read the prompts and return the logits (R, V) of the next tokens."""
        length = self.tokens.shape[1]
        if length == 1 and not self.prompts.payloads:
            return self._step_logits(self.tokens[:, 0])
        chunk_length = MAX_PREFILL_TOKENS.get(self.tokens.device.type, MAX_PREFILL_TOKENS["cpu"])
        if self.tap is not None:  # a tap sees the prompt in one pass
            chunk_length = length
        for first, end in self.prompts.split_columns(chunk_length):
            logits = self._forward(self.prompts.columns(first, end))
        return logits

    def step(self, token_ids: Tensor) -> Tensor:
        """Append one token to each sequence, `token_ids` (R,), and return the logits (R, V) of the next tokens."""
        self.tokens = torch.cat([self.tokens, token_ids[:, None]], dim=1)
        return self._step_logits(token_ids)

    def select(self, selector: TokenSelector, logits: Tensor, uniforms: Tensor | None) -> Tensor:
        """Choose the next tokens and return the selector's output. Sampling needs `uniforms`, random numbers (R,)."""
        return selector(logits, self.tokens, None if uniforms is None else uniforms.to(logits.device))

    def expand_beams(self, num_beams: int) -> None:
        """Repeat each sequence `num_beams` times. Call it after `prefill`. Copies of a sequence are adjacent."""
        rows = torch.arange(len(self.tokens), device=self.tokens.device).repeat_interleave(num_beams)
        if self._cpu_step is not None and num_beams > 1:
            self._cpu_step.expand_beams(self.cache, num_beams)
        else:
            reorder_cache(self.cache, rows)
        self.tokens = self.tokens[rows]

    def reorder(self, parents: Tensor, shared_prefix: int = 0) -> None:
        """Make sequence r a copy of the present sequence `parents[r]`. With fewer parents, fewer sequences are left.

        After `expand_beams`, a beam may become a copy only of beams of the same prompt. The caller guarantees that the
        first `shared_prefix` columns of sequences r and `parents[r]` are equal, so that they need not be copied.
        """
        if self._cpu_step is not None:
            self._cpu_step.reorder(self.cache, parents)
        else:
            reorder_cache(self.cache, parents, shared_prefix)
        self.tokens = self.tokens[parents]

    def keep(self, indices: Tensor) -> None:
        """Keep only the sequences at these indices, which must include all beams of each kept prompt."""
        beams = 1 if self.cross_cache is None else len(self.tokens) // self.cross_cache.batch_size
        self.reorder(indices)
        if self.cross_cache is not None:
            self.cross_cache = select_sources(self.cross_cache, indices[::beams] // beams)

    def _step_logits(self, ids: Tensor) -> Tensor:
        if self._cpu_step is not None:
            return promote_to_float32(self._cpu_step(ids, self.cache, self.cross_cache))
        return self._forward(Inputs(ids[:, None]))

    def _forward(self, inputs: Inputs) -> Tensor:
        logits = self.next_logits(self.network, inputs, cache=self.cache, memory=self.cross_cache, tap=self.tap)
        return promote_to_float32(logits)


def make_runner(
    network: Network, prompts: Sequence[Sequence[int]], options: GenerationOptions, *, cpu: bool = False
) -> ModelRunner:
    """Return a runner that is ready to prefill. Raises an error if a prompt or source is empty or too long."""
    targets, sources = decoder_inputs(network, prompts, options)
    runner = ModelRunner(network, targets, max_new_tokens=options.max_tokens, cpu=cpu, tap=options.tap)
    if sources is not None:
        runner.encode_sources(sources)
    return runner


def decoder_inputs(
    network: Network, prompts: Sequence[Sequence[int]], options: GenerationOptions
) -> tuple[Sequence[Sequence[int]], Sequence[Sequence[int]] | None]:
    """Return the tokens that the decoder starts from, and the sources of an encoder-decoder. Checks their lengths."""
    targets: Sequence[Sequence[int]]
    if network.has_source:
        targets, sources = [[start_token(network), *options.prefix]] * len(prompts), prompts
    else:
        targets, sources = [extend_prompt(prompt, options.prefix) for prompt in prompts], None
    check_max_length(network, targets, sources, options.max_tokens)
    return targets, sources


def start_token(network: Network) -> int:
    """Return the token that the decoder of an encoder-decoder starts from."""
    token = network.config.decoder_start_token_id
    if token is None:
        raise QkvError(
            "this model's config has no decoder_start_token_id, so its decoder has no first token; "
            "set decoder_start_token_id in the model's config"
        )
    return token


def next_logits(
    network: Network,
    inputs: Inputs,
    *,
    cache: SelfCache,
    memory: CrossCache | None = None,
    tap: Tap | None = None,
) -> Tensor:
    """Return the logits (R, V) of the tokens after `inputs` (R, T). The output layer runs on the last position only."""
    rows, length = inputs.ids.shape
    last = None
    if not (network.has_source or length == 1 or tap is not None):  # a tap sees all positions of the last block
        last = torch.arange(length - 1, rows * length, length, device=inputs.device)
    x, _ = network.hidden(inputs, cache=cache, memory=memory, tap=tap, selected=last)
    return network.head.project(x if x.dim() == 2 else x[:, -1])


def promote_to_float32(logits: Tensor) -> Tensor:
    """Convert logits to float32. float64 logits stay float64."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def token_history(prompts: Inputs) -> Tensor:
    """Return the ids of prompts (R, T) with `NO_TOKEN` at padding."""
    return prompts.ids.masked_fill(~prompts.is_token, NO_TOKEN)


def check_max_length(
    network: Network,
    prompts: Sequence[Sequence[int]],
    sources: Sequence[Sequence[int]] | None,
    max_new_tokens: int,
) -> None:
    """Raise an error if a prompt or source is empty, or longer than the model's number of positions."""
    config = network.config
    assert config.decoder is not None
    for name, stack, sequences, new_tokens in (
        ("source", config.encoder, sources, 0),
        ("prompt", config.decoder, prompts, max_new_tokens),
    ):
        for index, sequence in enumerate((stack and sequences) or ()):
            assert stack is not None
            if not sequence:
                raise UsageError(f"{name} {index} is empty: give it at least one token")
            if stack.has_max_positions and len(sequence) + new_tokens > stack.max_positions:
                wanted = f"{len(sequence)} tokens" + (f" and up to {new_tokens} new ones" if new_tokens else "")
                raise ContextLengthError(
                    f"{name} {index} has {wanted}, but this model has {stack.max_positions} positions; "
                    f"shorten it{' or lower max_tokens' if new_tokens else ''}"
                )
            limit = max(ALWAYS_ALLOWED_LENGTH, MAX_EXTRAPOLATION * stack.max_positions)
            if len(sequence) > limit and stack.has_blocks:
                raise ContextLengthError(
                    f"{name} {index} has {len(sequence):,} tokens; this model was made for {stack.max_positions:,} and "
                    f"reads at most {limit:,}, because the time grows with the square of the length; shorten it"
                )
