"""The stack: the same block again and again, and a last norm where the blocks do not end with one.

Everything that all layers share is made here, once a forward pass: the rendered masks, the rotary table, the bias
that positions add to the scores.
"""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from qkv.blocks.attention import Sight, render
from qkv.blocks.block import Block
from qkv.blocks.cache import CrossCache, Memory, SelfCache
from qkv.blocks.config import Kernel, StackConfig
from qkv.blocks.mask import Mask, Place
from qkv.blocks.norm import make_norm
from qkv.blocks.position import Rotary, ScoreBias
from qkv.blocks.tap import Tap

FEW = 4
"""Queries are chosen where they are at most one in so many: for more, a mask of their own costs what they save."""


class Stack(nn.Module):
    """Vectors with places in, vectors out. `name` is what the tap calls it."""

    def __init__(self, config: StackConfig, *, name: str, causal: bool, cross: bool = False) -> None:
        super().__init__()
        self.config, self.name, self.causal = config, name, causal
        self.kernel: Kernel = "auto"
        self.recompute = False  # activation checkpointing: trade a second forward pass for memory
        self.stream: torch.dtype | None = None  # of the vectors between blocks, in training; None: as they come
        first = config.embedding_norm == "first"
        self.blocks = nn.ModuleList(
            Block(config, cross=cross, normed_already=first and i == 0) for i in range(config.distinct_layers)
        )
        self.bias = ScoreBias(config, causal) if config.position in ("alibi", "t5") else None
        # A post-norm block ends with a norm; after any other the stream has grown and is normed once more.
        self.norm = make_norm(config, config.width) if config.norm_place != "post" else None

    def block_of(self, layer: int) -> nn.Module:
        """The block that a layer runs: its own, or one that it shares with its neighbours."""
        return self.blocks[layer * len(self.blocks) // self.config.layers]

    def forward(
        self,
        x: Tensor,
        place: Place,
        cache: SelfCache | None = None,
        memory: Memory | CrossCache | None = None,
        tap: Tap | None = None,
        only: Tensor | None = None,
    ) -> Tensor:
        """x (B, T, C) → (B, T, C).

        Where only some vectors will be read, `only` (N,) gives their places in the rows laid end to end, and the answer
        is (N, C): the last block then works for these alone, once all have been seen. If each row has as many, given as
        (B, Q), the others do not even ask.
        """
        if cache is not None and cache.rows != x.shape[0]:
            raise ValueError(f"a cache of {cache.rows} rows cannot serve {x.shape[0]}; make one with as many rows")
        if only is not None and memory is not None:
            raise ValueError("a stack that reads a source answers for all places: leave out `only`")
        if self.stream is not None and self.training:
            x = x.to(self.stream)
        if only is not None and only.dim() == 2 and (cache is not None or FEW * only.shape[1] > x.shape[1]):
            only = only.flatten()
        keys = place if cache is None else cache.extend(place)
        sights = self.sights(x, place, keys)
        rotaries = self.rotaries(x, place)
        cross_sight = None
        if memory is not None:
            beams = x.shape[0] // memory.rows
            queries = place if beams == 1 else place.fold(beams)
            wide = x if beams == 1 else x.reshape(memory.rows, -1, x.shape[-1])
            cross_sight = render(Mask(queries, memory.place), wide, kernel=self.kernel, dropout=self._dropout)
        for layer in range(self.config.layers):
            window = self.config.window_of(layer)
            here = tap.at(f"{self.name}.{layer}") if tap else None
            last = only if layer == self.config.layers - 1 else None
            sight = sights[window]
            if last is not None and last.dim() == 2:
                sight = self.sight_of_few(x, place, last, window)
            arguments = (sight, rotaries.get(window), cache, memory, cross_sight, layer, here, last)
            if self.recompute and self.training and torch.is_grad_enabled():
                x = checkpoint(self.block_of(layer), x, *arguments, use_reentrant=False)
            else:
                x = self.block_of(layer)(x, *arguments)
        if self.norm is not None:
            x = self.norm(x)
        return tap(f"{self.name}.final", x) if tap else x

    def remember(self, vectors: Tensor, place: Place) -> CrossCache:
        """Every layer's keys and values of the encoder's output (R, S, C), projected once and laid out for reading."""
        memory = Memory(vectors, place)
        pairs = [memory.keys_values(i, self.block_of(i).cross) for i in range(self.config.layers)]  # type: ignore[arg-type]
        return CrossCache([k.contiguous() for k, _ in pairs], [v.contiguous() for _, v in pairs], place)

    @property
    def _dropout(self) -> float:
        return self.config.attention_dropout if self.training else 0.0

    def _windows(self) -> list[int]:
        return sorted({self.config.window_of(layer) for layer in range(self.config.layers)})

    def sights(self, x: Tensor, queries: Place, keys: Place) -> dict[int, Sight]:
        """The self-attention mask of each window that occurs, rendered."""
        bias = None if self.bias is None else self.bias(queries.position, keys.position, x.dtype)
        return {
            window: render(
                Mask(queries, keys, self.causal, window), x, kernel=self.kernel, bias=bias, dropout=self._dropout
            )
            for window in self._windows()
        }

    def sight_of_few(self, x: Tensor, place: Place, only: Tensor, window: int) -> Sight:
        """What the queries at places `only` (B, Q) see of all."""
        few = place.at(only % x.shape[1])
        bias = None if self.bias is None else self.bias(few.position, place.position, x.dtype)
        kernel: Kernel = "plain" if self.kernel == "plain" else "sdpa"  # the others are for as many queries as keys
        return render(Mask(few, place, self.causal, window), x, kernel=kernel, bias=bias, dropout=self._dropout)

    def rotaries(self, x: Tensor, place: Place) -> dict[int, Rotary]:
        """How queries and keys turn under each window that occurs; empty where they do not."""
        config = self.config
        if config.position != "rotary":
            return {}
        return {
            window: Rotary(
                place.position,
                config.rotary_width,
                config.rotary_base_windowed if window else config.rotary_base,
                config.rotary_scaling,
                x.dtype,
            )
            for window in self._windows()
        }
