"""Run the model: prefill, then one step after another. The first of decoding's four roles.

A runner holds one batch of sequences that are being generated. Prompts of unequal length are left-padded, so that the
newest token of every sequence is in the same column; the mask hides the padding. Logits are computed for the newest
position only.

R sequences, T tokens, V vocabulary
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from qkv.blocks import CrossCache, SelfCache
from qkv.blocks.padding import pad_sequences
from qkv.decode.cache_edits import reorder_cache, select_sources
from qkv.decode.cpu import encoder as cpu_encoder
from qkv.decode.cpu.step import CpuStep
from qkv.decode.options import GenerationOptions
from qkv.decode.selection import TokenSelector
from qkv.errors import QkvError, UsageError
from qkv.models import Decoder, Seq2Seq

MAX_PREALLOCATED_TOKENS = 4096
"""New tokens that the cache has room for from the start. It grows if there are more."""


class TokenRunner(Protocol):
    """What the decoding loop calls. `ModelRunner` implements it, and `GraphRunner` with captured steps."""

    @property
    def tokens(self) -> Tensor:
        """Prompts and generated tokens (R, T), left-padded with −1."""

    def prefill(self) -> Tensor:
        """Read the prompts; returns the logits (R, V) of the next token."""

    def step(self, token_ids: Tensor) -> Tensor:
        """Append a token (R,) to each sequence; returns the logits (R, V) of the next one."""

    def select(self, selector: TokenSelector, logits: Tensor, uniforms: Tensor | None) -> Tensor:
        """Choose the next tokens; `uniforms` (R,) are the random numbers of sampling."""

    def keep(self, indices: Tensor) -> None:
        """Continue with these sequences only."""


class ModelRunner:
    """Runs a network on one batch. `tokens` (R, T) holds prompts and generated tokens, left-padded with −1."""

    def __init__(
        self, network: Decoder | Seq2Seq, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, cpu: bool = False
    ) -> None:
        """With `cpu`, steps run in `cpu.step` and sources in `cpu.encoder`; otherwise in the network's modules."""
        self.network = network
        self.tokens = left_pad(prompts, next(network.parameters()).device)
        num_slots = self.tokens.shape[1] + min(max_new_tokens, MAX_PREALLOCATED_TOKENS)
        self.cache = network.new_cache(len(prompts), num_slots)
        self.cross_cache: CrossCache | None = None
        self._cpu_step = CpuStep(network) if cpu else None

    def encode_sources(self, sources: Sequence[Sequence[int]]) -> None:
        """Run the encoder of an encoder-decoder, once, before anything is generated."""
        assert isinstance(self.network, Seq2Seq)
        if self._cpu_step is not None and cpu_encoder.is_supported(self.network):
            self.cross_cache = cpu_encoder.encode_sources(self.network, sources)
        else:
            ids, document_ids = _model_inputs(left_pad(sources, self.tokens.device))
            self.cross_cache = self.network.build_cross_cache(self.network.encode(ids, document_ids))

    def prefill(self) -> Tensor:
        """Read the prompts; returns the logits (R, V) of the next token."""
        if self.tokens.shape[1] == 1:
            return self._step_logits(self.tokens[:, 0])
        return self._forward(*_model_inputs(self.tokens))

    def step(self, token_ids: Tensor) -> Tensor:
        """Append a token (R,) to each sequence; returns the logits (R, V) of the next one."""
        self.tokens = torch.cat([self.tokens, token_ids[:, None]], dim=1)
        return self._step_logits(token_ids)

    def select(self, selector: TokenSelector, logits: Tensor, uniforms: Tensor | None) -> Tensor:
        """Choose the next tokens; `uniforms` (R,) are the random numbers of sampling."""
        return selector(logits, self.tokens, None if uniforms is None else uniforms.to(logits.device))

    def expand_beams(self, num_beams: int) -> None:
        """Repeat each sequence `num_beams` times, side by side, after the prompts were read."""
        rows = torch.arange(len(self.tokens), device=self.tokens.device).repeat_interleave(num_beams)
        if self._cpu_step is not None and num_beams > 1:
            self._cpu_step.expand_beams(self.cache, num_beams)
        else:
            reorder_cache(self.cache, rows)
        self.tokens = self.tokens[rows]

    def reorder(self, parents: Tensor, shared_prefix: int = 0) -> None:
        """Sequence r continues sequence `parents[r]`, which must be a beam of the same prompt.

        The first `shared_prefix` tokens are known to be equal in both.
        """
        if self._cpu_step is not None:
            self._cpu_step.reorder(self.cache, parents)
        else:
            reorder_cache(self.cache, parents, shared_prefix)
        self.tokens = self.tokens[parents]

    def keep(self, indices: Tensor) -> None:
        """Continue with these sequences only. `indices` must contain all beams of each prompt that is kept."""
        beams = 1 if self.cross_cache is None else len(self.tokens) // self.cross_cache.batch_size
        self.reorder(indices)
        if self.cross_cache is not None:
            self.cross_cache = select_sources(self.cross_cache, indices[::beams] // beams)

    def _step_logits(self, ids: Tensor) -> Tensor:
        if self._cpu_step is not None:
            return promote_to_float32(self._cpu_step(ids, self.cache, self.cross_cache))
        return self._forward(ids[:, None], None)

    def _forward(self, ids: Tensor, document_ids: Tensor | None) -> Tensor:
        logits = next_logits(self.network, ids, document_ids, cache=self.cache, cross_cache=self.cross_cache)
        return promote_to_float32(logits)


def make_runner(
    network: Decoder | Seq2Seq, prompts: Sequence[Sequence[int]], options: GenerationOptions, *, cpu: bool = False
) -> ModelRunner:
    """A runner that is ready to prefill. Raises an error that names the limit if a prompt is too long."""
    targets, sources = decoder_inputs(network, prompts, options)
    runner = ModelRunner(network, targets, max_new_tokens=options.max_tokens, cpu=cpu)
    if sources is not None:
        runner.encode_sources(sources)
    return runner


def decoder_inputs(
    network: Decoder | Seq2Seq, prompts: Sequence[Sequence[int]], options: GenerationOptions
) -> tuple[list[list[int]], Sequence[Sequence[int]] | None]:
    """The tokens that the decoder starts from, and the sources of an encoder-decoder; checks their lengths."""
    if isinstance(network, Seq2Seq):
        targets, sources = [[start_token(network), *options.prefix]] * len(prompts), prompts
    else:
        targets, sources = [[*prompt, *options.prefix] for prompt in prompts], None
    check_max_length(network, targets, sources, options.max_tokens)
    return targets, sources


def start_token(network: Seq2Seq) -> int:
    """The token that the decoder of an encoder-decoder starts from."""
    token = network.config.decoder_start_token_id
    if token is None:
        raise QkvError("this model's config has no decoder_start_token_id, so its decoder has nothing to start from")
    return token


def next_logits(
    network: Decoder | Seq2Seq,
    ids: Tensor,
    document_ids: Tensor | None,
    positions: Tensor | None = None,
    *,
    cache: SelfCache,
    cross_cache: CrossCache | None,
) -> Tensor:
    """The logits (R, V) of the token after ids (R, T). The output layer runs on the last position only."""
    rows, length = ids.shape
    if isinstance(network, Seq2Seq):
        assert cross_cache is not None
        x, _ = network.hidden(ids, cross_cache, document_ids, positions, cache=cache)
    elif length == 1:
        x, _ = network.hidden(ids, document_ids, positions, cache=cache)
    else:
        last = torch.arange(length - 1, rows * length, length, device=ids.device)
        x, _ = network.hidden(ids, document_ids, positions, cache=cache, selected=last)
    return network.head.project(x if x.dim() == 2 else x[:, -1])


def promote_to_float32(logits: Tensor) -> Tensor:
    """The same values in float32, or in float64 if they are."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def left_pad(sequences: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Token sequences as one tensor (R, T), left-padded with −1."""
    return pad_sequences(sequences, -1, side="left").to(device)


def _model_inputs(tokens: Tensor) -> tuple[Tensor, Tensor | None]:
    """Left-padded tokens as ids and document ids (R, T); no document ids where there is no padding."""
    is_token = tokens >= 0
    return tokens.clamp(min=0), None if bool(is_token.all()) else is_token.long()


def check_max_length(
    network: Decoder | Seq2Seq,
    prompts: Sequence[Sequence[int]],
    sources: Sequence[Sequence[int]] | None,
    max_new_tokens: int,
) -> None:
    """Raise an error if a prompt or source is empty, or longer than the model's positions reach."""
    config = network.config
    assert config.decoder is not None
    for what, stack, sequences, more in (
        ("source", config.encoder, sources, 0),
        ("prompt", config.decoder, prompts, max_new_tokens),
    ):
        for number, sequence in enumerate((stack and sequences) or ()):
            assert stack is not None
            if not sequence:
                raise UsageError(f"{what} {number} is empty: give it at least one token")
            if stack.has_max_positions and len(sequence) + more > stack.max_positions:
                wanted = f"{len(sequence)} tokens" + (f" and up to {more} new ones" if more else "")
                raise UsageError(
                    f"{what} {number} has {wanted}, but this model has {stack.max_positions} positions; "
                    f"shorten it{' or lower max_tokens' if more else ''}"
                )
