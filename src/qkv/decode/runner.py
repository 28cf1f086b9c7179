"""Run the model: prefill, then one step after another. The first of decoding's four roles.

A run keeps a row for each sequence being written. Prompts of unequal length stand flush right in one batch, so that
the newest token of every row has the same slot; the mask rule hides what is left of them. Only the newest position's
logits are ever computed.

R rows, V vocabulary
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from qkv.blocks import CrossCache, SelfCache
from qkv.decode.cpu import encoder as fast_encode
from qkv.decode.cpu.step import CpuStep, is_supported
from qkv.decode.selection import TokenSelector
from qkv.errors import UsageError
from qkv.models import Decoder, Seq2Seq

MAX_PREALLOCATED_TOKENS = 4096
"""New tokens that there is room for from the start; a cache grows where there are more."""


class ModelRunner:
    """One batch being decoded. `tokens` (R, T) is all that was read or written so far, −1 left of shorter rows."""

    def __init__(self, network: Decoder | Seq2Seq, prompts: Sequence[Sequence[int]], *, max_new_tokens: int) -> None:
        self.network = network
        self.tokens = left_pad(prompts, next(network.parameters()).device)
        self.cache = network.new_cache(
            len(prompts), self.tokens.shape[1] + min(max_new_tokens, MAX_PREALLOCATED_TOKENS)
        )
        self.cross_cache: CrossCache | None = None
        self._cpu_step = CpuStep(network) if is_supported(network, self.cache) else None

    def encode_sources(self, sources: Sequence[Sequence[int]]) -> None:
        """An encoder-decoder reads its sources once, before anything is written."""
        assert isinstance(self.network, Seq2Seq)
        if self._cpu_step is not None and fast_encode.is_supported(self.network):
            self.cross_cache = fast_encode.encode_sources(self.network, sources)
            return
        padded = left_pad(sources, self.tokens.device)
        segment = None if bool((padded >= 0).all()) else (padded >= 0).long()
        self.cross_cache = self.network.build_cross_cache(self.network.encode(padded.clamp(min=0), segment))

    def prefill(self) -> Tensor:
        """Read the prompts; the logits (R, V) of what comes next."""
        if self.tokens.shape[1] == 1:
            return self._step_logits(self.tokens[:, 0])
        segment = None if bool((self.tokens >= 0).all()) else (self.tokens >= 0).long()
        return self._forward(self.tokens.clamp(min=0), segment)

    def step(self, token_ids: Tensor) -> Tensor:
        """Write a token (R,) to each row; the logits (R, V) of what comes next."""
        self.tokens = torch.cat([self.tokens, token_ids[:, None]], dim=1)
        return self._step_logits(token_ids)

    def select(self, selector: TokenSelector, logits: Tensor, uniforms: Tensor | None) -> Tensor:
        """What comes next, from the logits of the last step and, for a draw, a number (R,) a row."""
        return selector(logits, self.tokens, None if uniforms is None else uniforms.to(logits.device))

    def expand_beams(self, num_beams: int) -> None:
        """After the prompts were read: each row becomes so many, side by side."""
        rows = torch.arange(len(self.tokens), device=self.tokens.device).repeat_interleave(num_beams)
        if self._cpu_step is not None and num_beams > 1:
            self._cpu_step.expand_beams(self.cache, num_beams)
        else:
            self.cache.reorder(rows)
        self.tokens = self.tokens[rows]

    def reorder(self, parents: Tensor, shared_prefix: int = 0) -> None:
        """Row r goes on from what row `rows[r]` was, within the beams of one fork.

        The first `since` tokens are known to be the same in both.
        """
        if self._cpu_step is not None:
            self._cpu_step.reorder(self.cache, parents)
        else:
            self.cache.reorder(parents, shared_prefix)
        self.tokens = self.tokens[parents]

    def keep(self, indices: Tensor) -> None:
        """Go on with these rows alone, all the beams of the forks that stay."""
        beams = 1 if self.cross_cache is None else len(self.tokens) // self.cross_cache.batch_size
        self.reorder(indices)
        if self.cross_cache is not None:
            self.cross_cache = self.cross_cache.select(indices[::beams] // beams)

    def _step_logits(self, ids: Tensor) -> Tensor:
        if self._cpu_step is not None:
            return promote_to_float32(self._cpu_step(ids, self.cache, self.cross_cache))
        return self._forward(ids[:, None], None)

    def _forward(self, ids: Tensor, document_ids: Tensor | None) -> Tensor:
        return promote_to_float32(
            next_logits(self.network, ids, document_ids, cache=self.cache, cross_cache=self.cross_cache)
        )


def next_logits(
    network: Decoder | Seq2Seq,
    ids: Tensor,
    document_ids: Tensor | None,
    positions: Tensor | None = None,
    *,
    cache: SelfCache,
    cross_cache: CrossCache | None,
) -> Tensor:
    """Feed ids (R, T) to a network; what it says comes next in each row, (R, V). No other logits are made."""
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
    """Logits in float32 or better."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def left_pad(sequences: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Rows of unequal length as (R, T), −1 to the left of shorter ones."""
    longest = max(len(row) for row in sequences)
    out = torch.full((len(sequences), longest), -1, dtype=torch.long)
    for i, row in enumerate(sequences):
        if row:
            out[i, longest - len(row) :] = torch.as_tensor(row, dtype=torch.long)
    return out.to(device)


def check_max_length(
    network: Decoder | Seq2Seq,
    prompts: Sequence[Sequence[int]],
    sources: Sequence[Sequence[int]] | None,
    max_new_tokens: int,
) -> None:
    """Refuse what the model's positions do not reach, before anything runs."""
    config = network.config
    assert config.decoder is not None
    for what, stack, rows, more in (
        ("source", config.encoder, sources, 0),
        ("prompt", config.decoder, prompts, max_new_tokens),
    ):
        if stack is None or rows is None:
            continue
        for number, row in enumerate(rows):
            if not row:
                raise UsageError(f"{what} {number} is empty: there is nothing to go on")
            if stack.has_max_positions and len(row) + more > stack.max_positions:
                wanted = f"{len(row)} tokens" + (f" and up to {more} new ones" if more else "")
                raise UsageError(
                    f"{what} {number} has {wanted}, but this model has {stack.max_positions} positions; "
                    f"shorten it{' or lower max_tokens' if more else ''}"
                )
