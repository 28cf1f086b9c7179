"""Decoder-only (GPT): every token attends to itself and to the tokens before it. Trained to predict the next token."""

from typing import cast

import torch
from torch import Tensor, nn

from qkv.blocks import (
    Embedding,
    Head,
    KernelHints,
    RecurrentCache,
    RecurrentStack,
    SelfCache,
    SequenceLayout,
    Stack,
    Tap,
    make_layout,
    make_stack,
)
from qkv.models.config import Config
from qkv.models.runtime.length import check_length


class Decoder(nn.Module):
    """ids → embedding → causal stack → head. `document_ids` and `max_documents` are as in `Encoder`."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        assert config.decoder is not None
        self.config = config
        self.embedding = Embedding(config.decoder)
        self.decoder = make_stack(config.decoder, name="decoder", causal=True)
        self.head = Head(config.head, config.decoder, self.embedding.token)

    def new_cache(self, batch_size: int, capacity: int) -> SelfCache:
        """Return an empty cache with room for `capacity` tokens per sequence. It grows when it is full."""
        return new_cache(self.decoder, batch_size, capacity)

    def hidden(
        self,
        ids: Tensor,
        document_ids: Tensor | None = None,
        positions: Tensor | None = None,
        *,
        max_documents: int = 0,
        max_document_length: int = 0,
        cache: SelfCache | None = None,
        tap: Tap | None = None,
        selected: Tensor | None = None,
    ) -> tuple[Tensor, SequenceLayout]:
        """Return the hidden states (B, T, C) for the head, and their layout; parameters as in `Encoder.hidden`."""
        check_length(self.decoder.config, ids, positions, cache, document_ids)
        if cache is not None and positions is None:
            positions = cache.next_positions(ids, document_ids)
        layout = make_layout(ids, document_ids, positions)
        hints = KernelHints(max_documents, max_document_length, is_default=document_ids is None and positions is None)
        x = self.embedding(ids, layout.positions)
        return self.decoder(x, layout, cache, tap=tap, selected=selected, hints=hints), layout

    def forward(
        self,
        ids: Tensor,
        document_ids: Tensor | None = None,
        positions: Tensor | None = None,
        *,
        max_documents: int = 0,
        cache: SelfCache | None = None,
        tap: Tap | None = None,
    ) -> Tensor:
        """Return the head's output (B, T, V) or, if the head pools, the output that `Encoder` describes."""
        x, layout = self.hidden(ids, document_ids, positions, max_documents=max_documents, cache=cache, tap=tap)
        out: Tensor = self.head(x, layout, max_documents)
        return out


def new_cache(stack: Stack, batch_size: int, capacity: int) -> SelfCache:
    """Return an empty cache for a stack, on its device and in its dtype.

    A recurrent stack gets a `RecurrentCache`, of any capacity. It is declared as a `SelfCache`, because networks and
    decoding use only the methods that both have.
    """
    config, weight = stack.config, next(stack.parameters())
    dtype = weight.dtype if weight.dtype.is_floating_point else torch.float32
    if isinstance(stack, RecurrentStack):
        shape = (config.layers, batch_size, config.width, stack.num_states)
        return cast(SelfCache, RecurrentCache(*shape, device=weight.device, dtype=dtype))
    size = (config.layers, batch_size, config.kv_heads, capacity, config.head_dim)
    return SelfCache(*size, device=weight.device, dtype=dtype)
