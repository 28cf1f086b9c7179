"""The block: self-attention, optional cross-attention, feed-forward. Each part adds its output to the residual stream.

           pre-norm                     post-norm (2017, BERT)            sandwich

      x ───┬─────────────┐         x ───┬─────────────┐             x ───┬─────────────┐
           norm          │              attention     │                  norm          │
           attention     │              + ────────────┘                  attention     │
           + ────────────┘              norm                             norm          │
           │                            │                                + ────────────┘

Cross-attention and the feed-forward follow in the same form. With `parallel` (GPT-NeoX), attention and feed-forward
read the same x, and both outputs are added to x. With `residual = "none"`, the output of each part is not added to x
but replaces it. Causality depends on the mask, so there is one class of block.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from qkv.blocks.attention import CrossAttention, SelfAttention
from qkv.blocks.cache import LayerCache, LayerMemory
from qkv.blocks.config import StackConfig
from qkv.blocks.dropout import Dropout, drop_sequences
from qkv.blocks.feedforward import FeedForward
from qkv.blocks.kernels.prepared import PreparedMask
from qkv.blocks.norm import make_norm
from qkv.blocks.parts import make_part
from qkv.blocks.position import Rotary
from qkv.blocks.tap import LayerTap


class ResidualWrapper(nn.Module):
    """The norms, the dropout and the residual sum around one part of a block (attention or feed-forward)."""

    def __init__(self, config: StackConfig, *, skip_norm: bool = False) -> None:
        super().__init__()
        self.norm_placement, self.has_residual = config.norm_placement, config.residual != "none"
        self.norm = nn.Identity() if skip_norm else make_norm(config, config.width)
        self.norm_out = make_norm(config, config.width) if config.norm_placement == "sandwich" else None
        self.gain = nn.Parameter(torch.full((config.width,), config.layer_scale)) if config.layer_scale else None
        self.dropout, self.drop_path = Dropout(config.dropout), config.drop_path

    def init_weights(self, config: StackConfig) -> None:
        """Set the gain of LayerScale (Touvron et al. 2021), which starts small in a deep stack."""
        if self.gain is not None:
            nn.init.constant_(self.gain, config.layer_scale)

    def residual_update(self, x: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        """Return what the part adds to the residual stream."""
        h = part(x if self.norm_placement == "post" else self.norm(x))
        if self.norm_out is not None:
            h = self.norm_out(h)
        if self.gain is not None:
            h = h * self.gain.to(h.dtype)
        return drop_sequences(self.dropout(h), self.drop_path if self.training else 0.0)

    def add_and_norm(self, x: Tensor, update: Tensor) -> Tensor:
        """Return the residual sum x + update, or the update alone without skip connections. Post-norm norms it."""
        x = x + update if self.has_residual else update
        return self.norm(x).to(x.dtype) if self.norm_placement == "post" else x

    def forward(self, x: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        """x (B, T, C) → (B, T, C)."""
        return self.add_and_norm(x, self.residual_update(x, part))


class Block(nn.Module):
    """Self-attention, optional cross-attention, feed-forward."""

    def __init__(self, config: StackConfig, *, cross: bool = False, skip_norm: bool = False) -> None:
        super().__init__()
        self.parallel = config.residual == "parallel"
        self.attention: SelfAttention = make_part("attention", config)
        self.attention_sub = ResidualWrapper(config, skip_norm=skip_norm)
        self.cross: CrossAttention | None = make_part("attention", config, cross=True) if cross else None
        self.cross_sub = ResidualWrapper(config) if cross else None
        self.ffn: FeedForward = make_part("feedforward", config)
        self.ffn_sub = ResidualWrapper(config)

    def forward(
        self,
        x: Tensor,
        mask: PreparedMask,
        rotary: Rotary | None = None,
        cache: LayerCache | None = None,
        source: LayerMemory | None = None,
        tap: LayerTap | None = None,
        shared: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """x (B, T, C) → (B, T, C)."""
        values = () if shared is None else (shared,)

        def tapped(site: str, value: Tensor) -> Tensor:
            return tap(site, value) if tap else value

        def attention(h: Tensor) -> Tensor:
            return tapped("attn_out", self.attention(h, mask, rotary, cache, tap, *values))

        def cross_attention(h: Tensor) -> Tensor:
            assert self.cross is not None
            return tapped("cross_out", self.cross(h, source, tap))

        def feedforward(h: Tensor) -> Tensor:
            return tapped("mlp_out", self.ffn(h, tap))

        x = tapped("resid_pre", x)
        update = self.attention_sub.residual_update(x, attention)
        x = mask.select_residual(x)  # the last block may need only some positions of x
        if self.parallel:
            return tapped("resid_post", x + update + self.ffn_sub.residual_update(x, feedforward))
        x = tapped("resid_mid", self.attention_sub.add_and_norm(x, update))
        if self.cross_sub is not None and source is not None:
            x = tapped("cross_mid", self.cross_sub(x, cross_attention))
        return tapped("resid_post", self.ffn_sub(x, feedforward))
