"""The stack: a sequence of blocks of the same form, and a final norm if the blocks are not post-norm.

The stack computes what all layers share once per forward pass: the prepared masks, the rotary tables, and the bias
that ALiBi or T5 positions add to the scores.
"""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from qkv.blocks.attention import Attention
from qkv.blocks.block import Block
from qkv.blocks.cache import CrossCache, EncoderMemory, LayerCache, LayerMemory, SelfCache
from qkv.blocks.config import AttentionKernel, StackConfig
from qkv.blocks.kernels.choose import prepare_mask
from qkv.blocks.kernels.prepared import NO_HINTS, KernelHints, PreparedMask
from qkv.blocks.kernels.selection import gather_positions, restrict_mask
from qkv.blocks.mask import Mask, SequenceLayout
from qkv.blocks.norm import make_norm
from qkv.blocks.parts import make_part, make_position, state_shapes
from qkv.blocks.position import Rotary, RotaryPositions, ScoreBias
from qkv.blocks.tap import LayerTap, Tap


def make_stack(config: StackConfig, *, name: str, causal: bool, cross: bool = False) -> "Stack":
    """Return the stack that a config describes.

    A part that is a whole stack is declared as a `Stack`, too, because it has the same `forward`. It has no blocks, so
    code that reads them first checks `config.has_blocks`.
    """
    if config.has_blocks:
        return Stack(config, name=name, causal=causal, cross=cross)
    whole: Stack = make_part("block", config, name=name, causal=causal, cross=cross)
    return whole


class Stack(nn.Module):
    """A stack of blocks on vectors with a layout.

    `name` is the first part of the names of this stack's activations in a `Tap`, as in "decoder.3.z".
    """

    def __init__(self, config: StackConfig, *, name: str, causal: bool, cross: bool = False) -> None:
        super().__init__()
        self.config, self.name, self.causal = config, name, causal
        is_fast = not config.score_cap and config.attention_sinks == "none"
        self.kernel: AttentionKernel = "auto" if is_fast else "eager"
        self.gradient_checkpointing = False  # recompute each block in the backward pass, to save memory
        # The dtype of the residual stream in training. `train/setup.py` may set it to bfloat16, to save memory
        # and bandwidth. None: the dtype of the embedding.
        self.residual_dtype: torch.dtype | None = None
        first = config.embedding_norm == "replaces_first"
        self.blocks = nn.ModuleList(
            make_part("block", config, cross=cross, skip_norm=first and i == 0) for i in range(config.num_layer_groups)
        )
        self.rotation: RotaryPositions | None = make_position(config, "rotation")
        self.bias: ScoreBias | None = make_position(config, "scores", causal=causal)
        # A post-norm block ends with a norm. After other blocks, the residual stream is not normed yet.
        self.norm = make_norm(config, config.width) if config.norm_placement != "post" else None

    def block_of(self, layer: int) -> nn.Module:
        """Return the block that a layer runs. If there are fewer blocks than layers, neighbours share one."""
        return self.blocks[layer * len(self.blocks) // self.config.layers]

    def forward(
        self,
        x: Tensor,
        layout: SequenceLayout,
        cache: SelfCache | None = None,
        memory: EncoderMemory | CrossCache | None = None,
        tap: Tap | None = None,
        *,
        selected: Tensor | None = None,
        hints: KernelHints = NO_HINTS,
    ) -> Tensor:
        """x (B, T, C) → (B, T, C).

        `selected` are flat indices b·T + t, (N,) or (B, Q). With them, the last block computes only these positions,
        and the result is (N, C). `hints` help to choose a kernel.
        """
        if cache is not None and cache.batch_size != x.shape[0]:
            raise ValueError(f"the cache has batch size {cache.batch_size}, the input {x.shape[0]}: make another cache")
        if selected is not None and memory is not None:
            raise ValueError("a stack with cross-attention computes all positions: leave out `selected`")
        if self.residual_dtype is not None and self.training:
            x = x.to(self.residual_dtype)
        if tap is not None:
            tap.layouts[self.name] = layout
            if memory is not None:
                tap.layouts["source"] = memory.layout
        keys = layout if cache is None else cache.add_layout(layout)
        masks = self.prepare_masks(x, layout, keys, hints)
        rotaries = self.rotary_tables(x, layout)
        cross_mask = None if memory is None else self._prepare_cross_mask(x, layout, memory, hints)
        shared: tuple[dict[str, Tensor], ...] = () if self.config.value_residual == "none" else ({},)
        last = self.config.layers - 1
        for layer in range(self.config.layers):
            block, window = self.block_of(layer), self.config.window_of(layer)
            mask = masks[window]
            if selected is not None and layer == last and _can_restrict(block):
                # With a cache, attention needs the layout of all queries (see `zero_padding`), so only its output is
                # selected: (N,) indices.
                chosen = selected if cache is None else selected.flatten()
                mask = restrict_mask(mask, x, chosen, score_bias=self._score_bias, dropout=self._dropout)
            arguments = (
                mask,
                rotaries.get(window),
                None if cache is None else LayerCache(cache, layer),
                None if memory is None or cross_mask is None else LayerMemory(memory, layer, cross_mask),
                None if tap is None else LayerTap(tap, f"{self.name}.{layer}"),
                *shared,
            )
            if self.gradient_checkpointing and self.training and torch.is_grad_enabled():
                x = checkpoint(block, x, *arguments, use_reentrant=False)
            else:
                x = block(x, *arguments)
        if x.dim() == 3:  # a registered part in the last block has computed all positions
            x = gather_positions(x, selected)
        if self.norm is not None:
            x = self.norm(x)
        return tap(f"{self.name}.final", x) if tap else x

    def build_cross_cache(self, vectors: Tensor, layout: SequenceLayout) -> CrossCache:
        """Project the encoder's output (B, S, C) to contiguous keys and values for every layer."""
        memory = EncoderMemory(vectors, layout)
        pairs = [memory.keys_values(i, self.block_of(i).cross.keys_values) for i in range(self.config.layers)]  # type: ignore[union-attr, arg-type]
        return CrossCache([k.contiguous() for k, _ in pairs], [v.contiguous() for _, v in pairs], layout)

    def new_cache(self, batch_size: int, capacity: int) -> SelfCache:
        """Return an empty cache with room for `capacity` tokens per sequence, on the stack's device, in its dtype."""
        config, weight = self.config, next(self.parameters())
        dtype = weight.dtype if weight.dtype.is_floating_point else torch.float32
        size = (config.layers, batch_size, config.kv_heads, capacity, config.head_dim)
        return SelfCache(*size, state_shapes=state_shapes(config), device=weight.device, dtype=dtype)

    def prepare_masks(
        self, x: Tensor, queries: SequenceLayout, keys: SequenceLayout, hints: KernelHints = NO_HINTS
    ) -> dict[int, PreparedMask]:
        """Return the self-attention mask for each window size in the stack."""
        bias, key_hints = self._score_bias(x, queries, keys), hints if keys is queries else NO_HINTS
        masks = {}
        for window in self._windows():
            mask = Mask(queries, keys, self.causal, window)
            masks[window] = prepare_mask(
                mask, x, kernel=self.kernel, bias=bias, dropout=self._dropout, query_hints=hints, key_hints=key_hints
            )
        return masks

    def rotary_tables(self, x: Tensor, layout: SequenceLayout) -> dict[int, Rotary]:
        """Return the rotary table for each window size in the stack. The dict is empty without rotary positions."""
        if self.rotation is None:
            return {}
        return {window: self.rotation(layout.positions, x.dtype, window) for window in self._windows()}

    def _prepare_cross_mask(
        self, x: Tensor, layout: SequenceLayout, memory: EncoderMemory | CrossCache, hints: KernelHints
    ) -> PreparedMask:
        num_beams = x.shape[0] // memory.batch_size
        if num_beams > 1:
            layout, x = layout.fold_beams(num_beams), x.reshape(memory.batch_size, -1, x.shape[-1])
            hints = KernelHints(max_documents=hints.max_documents)
        mask = Mask(layout, memory.layout)
        return prepare_mask(
            mask, x, kernel=self.kernel, dropout=self._dropout, query_hints=hints, key_hints=memory.hints
        )

    def _score_bias(self, x: Tensor, queries: SequenceLayout, keys: SequenceLayout) -> Tensor | None:
        return None if self.bias is None else self.bias(queries.positions, keys.positions, x.dtype)

    @property
    def _dropout(self) -> float:
        return self.config.attention_dropout if self.training else 0.0

    def _windows(self) -> list[int]:
        return sorted({self.config.window_of(layer) for layer in range(self.config.layers)})


def _can_restrict(block: nn.Module) -> bool:
    """Whether a block can compute some positions only: registered parts may need all of them."""
    return isinstance(block, Block) and isinstance(block.attention, Attention)
