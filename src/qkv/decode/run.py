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
from qkv.decode import fast_encode
from qkv.decode.choice import Choice
from qkv.decode.fast_cpu import FastStep, fits
from qkv.errors import UsageError
from qkv.models import Decoder, Seq2Seq

ROOM = 4096
"""New tokens that there is room for from the start; a cache grows where there are more."""


class Run:
    """One batch being decoded. `tokens` (R, T) is all that was read or written so far, −1 left of shorter rows."""

    def __init__(self, network: Decoder | Seq2Seq, prompts: Sequence[Sequence[int]], *, room: int) -> None:
        self.network = network
        self.tokens = flush_right(prompts, next(network.parameters()).device)
        self.cache = network.new_cache(len(prompts), self.tokens.shape[1] + min(room, ROOM))
        self.cross: CrossCache | None = None
        self._fast = FastStep(network) if fits(network, self.cache) else None

    def read_source(self, sources: Sequence[Sequence[int]]) -> None:
        """An encoder-decoder reads its sources once, before anything is written."""
        assert isinstance(self.network, Seq2Seq)
        if self._fast is not None and fast_encode.fits(self.network):
            self.cross = fast_encode.read(self.network, sources)
            return
        padded = flush_right(sources, self.tokens.device)
        segment = None if bool((padded >= 0).all()) else (padded >= 0).long()
        self.cross = self.network.remember(self.network.encode(padded.clamp(min=0), segment))

    def prefill(self) -> Tensor:
        """Read the prompts; the logits (R, V) of what comes next."""
        if self.tokens.shape[1] == 1:
            return self._newest(self.tokens[:, 0])
        segment = None if bool((self.tokens >= 0).all()) else (self.tokens >= 0).long()
        return self._forward(self.tokens.clamp(min=0), segment)

    def step(self, chosen: Tensor) -> Tensor:
        """Write a token (R,) to each row; the logits (R, V) of what comes next."""
        self.tokens = torch.cat([self.tokens, chosen[:, None]], dim=1)
        return self._newest(chosen)

    def choose(self, choice: Choice, logits: Tensor, numbers: Tensor | None) -> Tensor:
        """What comes next, from the logits of the last step and, for a draw, a number (R,) a row."""
        return choice(logits, self.tokens, None if numbers is None else numbers.to(logits.device))

    def fork(self, beams: int) -> None:
        """After the prompts were read: each row becomes so many, side by side."""
        rows = torch.arange(len(self.tokens), device=self.tokens.device).repeat_interleave(beams)
        if self._fast is not None and beams > 1:
            self._fast.fork(self.cache, beams)
        else:
            self.cache.reorder(rows)
        self.tokens = self.tokens[rows]

    def reorder(self, rows: Tensor, since: int = 0) -> None:
        """Row r goes on from what row `rows[r]` was, within the beams of one fork.

        The first `since` tokens are known to be the same in both.
        """
        if self._fast is not None:
            self._fast.reorder(self.cache, rows)
        else:
            self.cache.reorder(rows, since)
        self.tokens = self.tokens[rows]

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows alone, all the beams of the forks that stay."""
        beams = 1 if self.cross is None else len(self.tokens) // self.cross.rows
        self.reorder(rows)
        if self.cross is not None:
            self.cross = self.cross.of(rows[::beams] // beams)

    def _newest(self, ids: Tensor) -> Tensor:
        if self._fast is not None:
            return exact(self._fast(ids, self.cache, self.cross))
        return self._forward(ids[:, None], None)

    def _forward(self, ids: Tensor, segment: Tensor | None) -> Tensor:
        return exact(next_logits(self.network, ids, segment, cache=self.cache, cross=self.cross))


def next_logits(
    network: Decoder | Seq2Seq,
    ids: Tensor,
    segment: Tensor | None,
    position: Tensor | None = None,
    *,
    cache: SelfCache,
    cross: CrossCache | None,
) -> Tensor:
    """Feed ids (R, T) to a network; what it says comes next in each row, (R, V). No other logits are made."""
    rows, length = ids.shape
    if isinstance(network, Seq2Seq):
        assert cross is not None
        x, _ = network.hidden(ids, cross, segment, position, cache=cache)
    elif length == 1:
        x, _ = network.hidden(ids, segment, position, cache=cache)
    else:
        last = torch.arange(length - 1, rows * length, length, device=ids.device)
        x, _ = network.hidden(ids, segment, position, cache=cache, only=last)
    return network.head.read(x if x.dim() == 2 else x[:, -1])


def exact(logits: Tensor) -> Tensor:
    """Logits in float32 or better."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def flush_right(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Rows of unequal length as (R, T), −1 to the left of shorter ones."""
    longest = max(len(row) for row in rows)
    out = torch.full((len(rows), longest), -1, dtype=torch.long)
    for i, row in enumerate(rows):
        if row:
            out[i, longest - len(row) :] = torch.as_tensor(row, dtype=torch.long)
    return out.to(device)


def check_room(
    network: Decoder | Seq2Seq, prompts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] | None, new: int
) -> None:
    """Refuse what the model's positions do not reach, before anything runs."""
    config = network.config
    assert config.decoder is not None
    for what, stack, rows, more in (("source", config.encoder, sources, 0), ("prompt", config.decoder, prompts, new)):
        if stack is None or rows is None:
            continue
        for number, row in enumerate(rows):
            if not row:
                raise UsageError(f"{what} {number} is empty: there is nothing to go on")
            if stack.limited and len(row) + more > stack.max_positions:
                wanted = f"{len(row)} tokens" + (f" and up to {more} new ones" if more else "")
                raise UsageError(
                    f"{what} {number} has {wanted}, but this model has {stack.max_positions} positions; "
                    f"shorten it{' or lower max_tokens' if more else ''}"
                )
