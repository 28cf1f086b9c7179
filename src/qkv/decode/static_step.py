"""The model's part of a step whose shapes and addresses never change, as CUDA graphs and the compiler need them.

Each of N rows takes T new tokens a step: one for greedy decoding, one for each beam in a search. Beams of one source
write into one cache, side by side, and what each of them sees there is a mask of its own:

    slots of one source     prompt │ step 1: beam 0, beam 1 │ step 2: beam 0, beam 1 │ …
    beam 0 came from 1      seen   │         –       seen   │         seen   –       │

When hypotheses fork and die only the masks move; keys and values stay where they were written, and a prompt is kept
once for all beams. The operators are those of `Stack`, on the same numbers; `Stack` stays the reference.

N rows (sources), T new tokens a row, S slots, H heads, KV key/value heads, G heads that share a key, D head width
"""

from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.blocks import Place
from qkv.blocks.attention import CrossAttention, SelfAttention, heads_of
from qkv.blocks.block import Block
from qkv.blocks.position import Rotary
from qkv.decode.run import Run
from qkv.models import Decoder, Seq2Seq

ALIGNED = 64
"""Lengths are rounded up to this: attention kernels would copy a mask with odd rows in every layer (16 would do for
that), and the compiler makes fewer versions."""
NEVER = float("-inf")


class Seen(NamedTuple):
    """The first so many slots of the caches: views, so that nothing moves when there are more."""

    keys: list[Tensor]  # per layer (N, KV, S, D)
    values: list[Tensor]
    sight: Tensor  # (N, T, S) 0 where a row's token t sees the slot, −∞ elsewhere
    position: Tensor  # (N, S) of the token that is, or will be, in the slot


class Turning(Rotary):
    """Rows of a rotary table that was made before."""

    def __init__(self, table: Rotary, position: Tensor) -> None:
        self.cos, self.sin = table.cos[0, 0][position][:, None], table.sin[0, 0][position][:, None]  # (N, 1, 1, D)


def fits(network: Decoder | Seq2Seq) -> bool:
    """Whether steps may run here: with the kernel that is used here, and not while the network trains."""
    return not network.training and network.decoder.kernel in ("auto", "sdpa")


class StaticRun:
    """A run that was just made, prefilled, and from then on in caches of fixed shape. It takes over the run's memory.

    `first` (N, V) are the logits after the prompts; `logits` gives those after each further step.
    """

    def __init__(self, run: Run, most: int, *, beams: int = 1, network: Decoder | Seq2Seq | None = None) -> None:
        self.network = run.network if network is None else network
        self.stack, self.head, self.cross = self.network.decoder, self.network.head, run.cross
        self.embedding = self.network.target_embedding if isinstance(self.network, Seq2Seq) else self.network.embedding
        self.rows, self.start = run.tokens.shape
        self.beams = beams
        self.first = run.prefill()
        device, dtype = run.tokens.device, run.cache.keys[0].dtype
        steps = most - 1  # what is written last is never read
        self.length = rounded(self.start + steps * beams)
        for tensors in (run.cache.keys, run.cache.values):
            for layer, tensor in enumerate(tensors):
                tensors[layer] = F.pad(tensor[:, :, : self.start], (0, 0, 0, self.length - self.start))
        self.keys, self.values = run.cache.keys, run.cache.values
        real = run.tokens >= 0
        self.sight = torch.full((self.rows, beams, self.length), NEVER, device=device, dtype=dtype)
        self.sight[:, :, : self.start].masked_fill_(real[:, None], 0.0)
        self.position = real.sum(1, keepdim=True)  # (N, 1) of the next token
        self.slots = self.start + torch.arange(beams, device=device)  # (T,) where the next tokens go
        ahead = torch.arange(self.length - self.start, device=device) // beams
        self.slot_position = torch.cat([(real.cumsum(1) - 1).clamp(min=0), self.position + ahead], dim=1)
        every = torch.arange(self._reach(most), device=device)[None]  # (1, P)
        self.rotaries = self.stack.rotaries(self.keys[0], Place(None, every))
        places = self.embedding.of_positions(every)
        self.places = None if places is None else places[0].to(self.embedding.token.weight.dtype)  # (P, C)
        self.source = _source_mask(run, dtype)

    def _reach(self, most: int) -> int:
        """How many positions rows may come to: no more than a table of the model has."""
        config = self.stack.config
        reach = rounded(self.start + most)
        return min(reach, config.max_positions) if config.limited else reach

    @property
    def state(self) -> list[Tensor]:
        """What a step changes, besides the slots that it writes: put back, the same steps can be made again."""
        return [self.sight, self.position, self.slots]

    def seen(self, slots: int) -> Seen:
        """The caches up to so many slots."""
        cut = min(slots, self.length)
        return Seen(
            [t[:, :, :cut] for t in self.keys],
            [t[:, :, :cut] for t in self.values],
            self.sight[:, :, :cut],
            self.slot_position[:, :cut],
        )

    def logits(self, token: Tensor, seen: Seen) -> Tensor:
        """Read the newest tokens (N, T); the logits (N·T, V) of what comes next."""
        seen.sight.scatter_(2, self.slots[None, :, None].expand(self.rows, -1, 1), 0.0)  # each sees itself
        x = self.embedding.join(token, None if self.places is None else self.places[self.position])  # (N, T, C)
        rotaries = {window: Turning(table, self.position) for window, table in self.rotaries.items()}
        masks = self._masks(seen, x.dtype)
        for layer in range(self.stack.config.layers):
            x = self._block(x, layer, seen, masks, rotaries)
        if self.stack.norm is not None:
            x = self.stack.norm(x)
        self.position.add_(1)
        self.slots.add_(self.beams)
        return self.head.read(x).flatten(0, 1)

    def _block(
        self, x: Tensor, layer: int, seen: Seen, masks: dict[int, Tensor], rotaries: dict[int, Turning]
    ) -> Tensor:
        block = cast(Block, self.stack.block_of(layer))
        window = self.stack.config.window_of(layer)

        def attend(h: Tensor) -> Tensor:
            keys, values = seen.keys[layer], seen.values[layer]
            return self._attend(block.attention, h, keys, values, masks[window], rotaries.get(window))

        def attend_source(h: Tensor) -> Tensor:
            assert block.cross is not None
            return self._attend_source(block.cross, h, layer)

        if block.parallel:
            return x + block.attention_sub.change(x, attend) + block.ffn_sub.change(x, block.ffn)
        x = block.attention_sub(x, attend)
        if block.cross_sub is not None:
            x = block.cross_sub(x, attend_source)
        return cast(Tensor, block.ffn_sub(x, block.ffn))

    def _attend(
        self, attention: SelfAttention, h: Tensor, keys: Tensor, values: Tensor, mask: Tensor, rotary: Rotary | None
    ) -> Tensor:
        q, k, v = attention.qkv(h).split(attention.split, dim=-1)
        q, k = heads_of(q, attention.heads), heads_of(k, attention.kv_heads)
        if attention.q_norm is not None and attention.k_norm is not None:
            q, k = attention.q_norm(q), attention.k_norm(k)
        if rotary is not None:
            q, k = rotary.turn(q), rotary.turn(k)
        keys.index_copy_(2, self.slots, k.to(keys.dtype))
        values.index_copy_(2, self.slots, heads_of(v, attention.kv_heads).to(values.dtype))
        return cast(Tensor, attention.out(_mix(q, keys, values, mask, attention.scale)))

    def _attend_source(self, attention: CrossAttention, h: Tensor, layer: int) -> Tensor:
        assert self.cross is not None
        q = heads_of(attention.q(h), attention.heads)
        if attention.q_norm is not None:
            q = attention.q_norm(q)
        keys, values = self.cross.keys[layer], self.cross.values[layer]
        return cast(Tensor, attention.out(_mix(q, keys, values, self.source, attention.scale)))

    def _masks(self, seen: Seen, dtype: torch.dtype) -> dict[int, Tensor]:
        """By window, what is added to the scores of folded queries: (N, 1 or KV, 1 or G·T, S)."""
        config = self.stack.config
        groups = config.heads // config.kv_heads
        sight = seen.sight[:, None]  # (N, 1, T, S)
        if self.stack.bias is not None:
            bias = self.stack.bias(self.position.expand(-1, self.beams), seen.position, dtype)  # (N, H, T, S)
            sight = (sight + bias).to(seen.sight.dtype).unflatten(1, (config.kv_heads, groups)).flatten(2, 3)
        elif self.beams > 1 and groups > 1:
            sight = sight.repeat(1, 1, groups, 1)
        far = (self.position - seen.position)[:, None, None]  # (N, 1, 1, S)
        windows = {config.window_of(layer) for layer in range(config.layers)}
        return {w: sight.masked_fill(far > w, NEVER) if w else sight for w in windows}


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """softmax(QKᵀ · scale + mask) V for few queries: q (N, KV, G·T, D), k and v (N, KV, S, D)."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)


def _mix(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Heads that share a key become more queries of it, as kernels for masks know no groups; → (N, T, H · D)."""
    rows, heads, new, width = q.shape
    kv_heads = k.shape[1]
    z = attend(q.reshape(rows, kv_heads, -1, width), k, v, mask, scale)
    return z.reshape(rows, heads, new, width).transpose(1, 2).flatten(2)


def rounded(count: int, unit: int = ALIGNED) -> int:
    """The next multiple of a unit."""
    return -(-count // unit) * unit


def _source_mask(run: Run, dtype: torch.dtype) -> Tensor | None:
    """(N, 1, 1, S) 0 where there is a source token, −∞ where there is none; None where there is one everywhere."""
    if run.cross is None or run.cross.place.segment is None:
        return None
    segment = run.cross.place.segment
    mask = torch.zeros(len(segment), 1, 1, rounded(segment.shape[1]), device=segment.device, dtype=dtype)
    mask = mask[..., : segment.shape[1]]
    return mask.masked_fill_((segment == 0)[:, None, None], NEVER)
