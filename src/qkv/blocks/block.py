"""The block: attend, perhaps attend to a source, think; each time adding to the stream that runs through the model.

           pre-norm                     post-norm (2017, BERT)            sandwich

      x ───┬─────────────┐         x ───┬─────────────┐             x ───┬─────────────┐
           norm          │              attention     │                  norm          │
           attention     │              + ────────────┘                  attention     │
           + ────────────┘              norm                             norm          │
           │                            │                                + ────────────┘

The same for cross-attention, where there is one, and for the feed-forward. `parallel` (GPT-NeoX) lets attention and
feed-forward read the same x and adds both at once. Causality is a mask, not a class.
"""

from collections.abc import Callable

from torch import Tensor, nn

from qkv.blocks.attention import CrossAttention, PreparedMask, SelfAttention, gather_positions
from qkv.blocks.cache import CrossCache, EncoderMemory, SelfCache
from qkv.blocks.config import StackConfig
from qkv.blocks.feedforward import FeedForward
from qkv.blocks.norm import make_norm
from qkv.blocks.position import Rotary
from qkv.blocks.tap import LayerTap


class Sublayer(nn.Module):
    """What surrounds each part of a block: norm before, after or on both sides, dropout, and the residual sum."""

    def __init__(self, config: StackConfig, *, skip_norm: bool = False) -> None:
        super().__init__()
        self.norm_placement = config.norm_placement
        self.norm = nn.Identity() if skip_norm else make_norm(config, config.width)
        self.norm_out = make_norm(config, config.width) if config.norm_placement == "sandwich" else None
        self.dropout = nn.Dropout(config.dropout)

    def residual_update(self, x: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        """What the part would add to the stream, before a post-norm."""
        h = part(x if self.norm_placement == "post" else self.norm(x))
        if self.norm_out is not None:
            h = self.norm_out(h)
        out: Tensor = self.dropout(h)
        return out

    def forward(self, x: Tensor, part: Callable[[Tensor], Tensor], selected: Tensor | None = None) -> Tensor:
        """x (B, T, C) → the same, or (N, C) where the part answers for N places `only`."""
        change = self.residual_update(x, part)
        x = gather_positions(x, selected) + change
        return self.norm(x).to(x.dtype) if self.norm_placement == "post" else x


class Block(nn.Module):
    """Self-attention, optional cross-attention, feed-forward."""

    def __init__(self, config: StackConfig, *, cross: bool = False, skip_norm: bool = False) -> None:
        super().__init__()
        self.parallel = config.residual == "parallel"
        self.attention = SelfAttention(config)
        self.attention_sub = Sublayer(config, skip_norm=skip_norm)
        self.cross = CrossAttention(config) if cross else None
        self.cross_sub = Sublayer(config) if cross else None
        self.ffn = FeedForward(config)
        self.ffn_sub = Sublayer(config)

    def forward(
        self,
        x: Tensor,
        mask: PreparedMask,
        rotary: Rotary | None = None,
        cache: SelfCache | None = None,
        memory: EncoderMemory | CrossCache | None = None,
        cross_mask: PreparedMask | None = None,
        layer: int = 0,
        tap: LayerTap | None = None,
        selected: Tensor | None = None,
    ) -> Tensor:
        """x (B, T, C) → (B, T, C). `layer` says whose slots of the caches are meant: layers may share weights.

        With places `only` (see `Stack`), everything after self-attention is done for these alone: → (N, C).
        """

        def seen(site: str, value: Tensor) -> Tensor:
            return tap(site, value) if tap else value

        def attend(h: Tensor) -> Tensor:
            return seen("attn_out", self.attention(h, mask, rotary, cache, layer, tap, selected))

        def attend_source(h: Tensor) -> Tensor:
            assert self.cross is not None
            return seen("cross_out", self.cross(h, memory, cross_mask, layer, tap))

        def think(h: Tensor) -> Tensor:
            return seen("mlp_out", self.ffn(h, tap))

        x = seen("resid_pre", x)
        if self.parallel:
            change = self.attention_sub.residual_update(x, attend)
            x = gather_positions(x, selected)
            return seen("resid_post", x + change + self.ffn_sub.residual_update(x, think))
        x = seen("resid_mid", self.attention_sub(x, attend, selected))
        if self.cross_sub is not None and memory is not None:
            x = seen("cross_mid", self.cross_sub(x, attend_source))
        return seen("resid_post", self.ffn_sub(x, think))
