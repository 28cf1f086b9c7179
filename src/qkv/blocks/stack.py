"""The stack: the same block again and again, and a last norm where the blocks do not end with one.

Everything that all layers share is made here, once a forward pass: the rendered masks, the rotary table, the bias
that positions add to the scores.
"""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from qkv.blocks.attention import PreparedMask, prepare_mask
from qkv.blocks.block import Block
from qkv.blocks.cache import CrossCache, EncoderMemory, SelfCache
from qkv.blocks.config import AttentionKernel, StackConfig
from qkv.blocks.mask import Mask, SequenceLayout
from qkv.blocks.norm import make_norm
from qkv.blocks.position import Rotary, ScoreBias
from qkv.blocks.tap import Tap

MIN_QUERY_REDUCTION = 4
"""Queries are chosen where they are at most one in so many: for more, a mask of their own costs what they save."""


class Stack(nn.Module):
    """Vectors with places in, vectors out. `name` is what the tap calls it."""

    def __init__(self, config: StackConfig, *, name: str, causal: bool, cross: bool = False) -> None:
        super().__init__()
        self.config, self.name, self.causal = config, name, causal
        self.kernel: AttentionKernel = "auto"
        self.gradient_checkpointing = False  # activation checkpointing: trade a second forward pass for memory
        self.residual_dtype: torch.dtype | None = None  # of the vectors between blocks, in training; None: as they come
        first = config.embedding_norm == "first"
        self.blocks = nn.ModuleList(
            Block(config, cross=cross, skip_norm=first and i == 0) for i in range(config.num_layer_groups)
        )
        self.bias = ScoreBias(config, causal) if config.position in ("alibi", "t5") else None
        # A post-norm block ends with a norm; after any other the stream has grown and is normed once more.
        self.norm = make_norm(config, config.width) if config.norm_placement != "post" else None

    def block_of(self, layer: int) -> nn.Module:
        """The block that a layer runs: its own, or one that it shares with its neighbours."""
        return self.blocks[layer * len(self.blocks) // self.config.layers]

    def forward(
        self,
        x: Tensor,
        layout: SequenceLayout,
        cache: SelfCache | None = None,
        memory: EncoderMemory | CrossCache | None = None,
        tap: Tap | None = None,
        selected: Tensor | None = None,
    ) -> Tensor:
        """x (B, T, C) → (B, T, C).

        Where only some vectors will be read, `only` (N,) gives their places in the rows laid end to end, and the answer
        is (N, C): the last block then works for these alone, once all have been seen. If each row has as many, given as
        (B, Q), the others do not even ask.
        """
        if cache is not None and cache.batch_size != x.shape[0]:
            raise ValueError(
                f"a cache of {cache.batch_size} rows cannot serve {x.shape[0]}; make one with as many rows"
            )
        if selected is not None and memory is not None:
            raise ValueError("a stack that reads a source answers for all places: leave out `only`")
        if self.residual_dtype is not None and self.training:
            x = x.to(self.residual_dtype)
        if (
            selected is not None
            and selected.dim() == 2
            and (cache is not None or MIN_QUERY_REDUCTION * selected.shape[1] > x.shape[1])
        ):
            selected = selected.flatten()
        keys = layout if cache is None else cache.extend(layout)
        sights = self.prepare_masks(x, layout, keys)
        rotaries = self.rotary_tables(x, layout)
        cross_sight = None
        if memory is not None:
            beams = x.shape[0] // memory.batch_size
            queries = layout if beams == 1 else layout.fold_beams(beams)
            wide = x if beams == 1 else x.reshape(memory.batch_size, -1, x.shape[-1])
            cross_sight = prepare_mask(Mask(queries, memory.layout), wide, kernel=self.kernel, dropout=self._dropout)
        for layer in range(self.config.layers):
            window = self.config.window_of(layer)
            here = tap.at(f"{self.name}.{layer}") if tap else None
            last = selected if layer == self.config.layers - 1 else None
            sight = sights[window]
            if last is not None and last.dim() == 2:
                sight = self.prepare_selected_mask(x, layout, last, window)
            arguments = (sight, rotaries.get(window), cache, memory, cross_sight, layer, here, last)
            if self.gradient_checkpointing and self.training and torch.is_grad_enabled():
                x = checkpoint(self.block_of(layer), x, *arguments, use_reentrant=False)
            else:
                x = self.block_of(layer)(x, *arguments)
        if self.norm is not None:
            x = self.norm(x)
        return tap(f"{self.name}.final", x) if tap else x

    def build_cross_cache(self, vectors: Tensor, layout: SequenceLayout) -> CrossCache:
        """Every layer's keys and values of the encoder's output (R, S, C), projected once and laid out for reading."""
        memory = EncoderMemory(vectors, layout)
        pairs = [memory.keys_values(i, self.block_of(i).cross) for i in range(self.config.layers)]  # type: ignore[arg-type]
        return CrossCache([k.contiguous() for k, _ in pairs], [v.contiguous() for _, v in pairs], layout)

    @property
    def _dropout(self) -> float:
        return self.config.attention_dropout if self.training else 0.0

    def _windows(self) -> list[int]:
        return sorted({self.config.window_of(layer) for layer in range(self.config.layers)})

    def prepare_masks(self, x: Tensor, queries: SequenceLayout, keys: SequenceLayout) -> dict[int, PreparedMask]:
        """The self-attention mask of each window that occurs, rendered."""
        bias = None if self.bias is None else self.bias(queries.positions, keys.positions, x.dtype)
        return {
            window: prepare_mask(
                Mask(queries, keys, self.causal, window), x, kernel=self.kernel, bias=bias, dropout=self._dropout
            )
            for window in self._windows()
        }

    def prepare_selected_mask(self, x: Tensor, layout: SequenceLayout, selected: Tensor, window: int) -> PreparedMask:
        """What the queries at places `only` (B, Q) see of all."""
        few = layout.gather(selected % x.shape[1])
        bias = None if self.bias is None else self.bias(few.positions, layout.positions, x.dtype)
        kernel: AttentionKernel = (
            "plain" if self.kernel == "plain" else "sdpa"
        )  # the others are for as many queries as keys
        return prepare_mask(Mask(few, layout, self.causal, window), x, kernel=kernel, bias=bias, dropout=self._dropout)

    def rotary_tables(self, x: Tensor, layout: SequenceLayout) -> dict[int, Rotary]:
        """How queries and keys turn under each window that occurs; empty where they do not."""
        config = self.config
        if config.position != "rotary":
            return {}
        return {
            window: Rotary(
                layout.positions,
                config.rotary_dim,
                config.rotary_base_sliding if window else config.rotary_base,
                config.rotary_scaling,
                x.dtype,
            )
            for window in self._windows()
        }
