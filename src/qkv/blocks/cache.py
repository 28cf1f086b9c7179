"""Key/value caches for decoding. The caller creates them and passes them to the network.

    cache = network.new_cache(batch_size=8, capacity=256)
    network(ids, cache=cache)         # stores the keys and values of `ids`; attention sees all tokens stored so far

A self cache has the keys and values of self-attention and grows with each step. A cross cache has the keys and values
of cross-attention and is filled once from the encoder's output. It is not copied per beam: the beams of a source are
treated as extra queries on the same keys. A self cache also has the document id and the position of each token in it,
so the mask treats cached tokens like any others.

B batch, T new tokens, L slots, S source tokens, KV key/value heads, D head dim, C model width
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from qkv.blocks.kernels.prepared import NO_HINTS, KernelHints, PreparedMask
from qkv.blocks.mask import SequenceLayout

Projection = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Projects the encoder's output (B, S, C) to keys and values (B, KV, S, D): `CrossAttention.keys_values`."""


class SelfCache:
    """The keys and values of the tokens so far, for each layer of a stack.

    All sequences have the same number of filled slots; a shorter sequence has padding in some of them. Attention sees
    only the filled slots. A full cache is enlarged.
    """

    def __init__(
        self,
        layers: int,
        batch_size: int,
        kv_heads: int,
        capacity: int,
        head_dim: int,
        *,
        state_shapes: Mapping[str, tuple[int, ...]] | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if capacity < 1 or batch_size < 1:
            raise ValueError(f"batch_size = {batch_size} and capacity = {capacity} of a cache must be at least 1")
        shape = (batch_size, kv_heads, capacity, head_dim)
        self.keys = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(layers)]
        self.values = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(layers)]
        zeros = {
            name: torch.zeros(batch_size, *s, device=device, dtype=dtype) for name, s in (state_shapes or {}).items()
        }
        # For each layer, what its parts keep besides keys and values (`register_part(cache=…)`): name → (B, …)
        self.states: list[dict[str, Tensor]] = [
            {name: one.clone() for name, one in zeros.items()} for _ in range(layers)
        ]
        self.document_ids = torch.zeros(batch_size, capacity, device=device, dtype=torch.long)
        self.positions = torch.zeros(batch_size, capacity, device=device, dtype=torch.long)
        self.filled = 0  # the number of slots in use
        self.is_default = True  # each sequence is one document without padding, at positions 0, 1, 2, …

    @property
    def batch_size(self) -> int:
        """The number of sequences."""
        return self.document_ids.shape[0]

    @property
    def capacity(self) -> int:
        """The number of slots, filled or not."""
        return self.document_ids.shape[1]

    def next_positions(self, ids: Tensor, document_ids: Tensor | None) -> Tensor | None:
        """Return the positions (B, T) of new tokens: each sequence continues after its last token that is not padding.

        The last token has the highest position; the tokens of an image may share a position. The result is None if the
        cache is empty and nothing is padded: `make_layout` then counts from 0.
        """
        if self.is_default and document_ids is None:
            if self.filled == 0:
                return None
            return torch.arange(self.filled, self.filled + ids.shape[1], device=ids.device)[None]
        real = torch.ones_like(ids) if document_ids is None else (document_ids != 0).long()
        lengths = torch.where(self.document_ids != 0, self.positions + 1, 0).amax(dim=1, keepdim=True)  # (B, 1)
        return (lengths + real.cumsum(dim=1) - 1).clamp(min=0)

    def add_layout(self, layout: SequenceLayout) -> SequenceLayout:
        """Add the layout of new tokens. Return the layout of all tokens in the cache. `write` then adds their keys."""
        new = layout.positions.shape[1]
        if self.filled + new > self.capacity:
            self._grow(max(2 * self.capacity, self.filled + new))
        self.filled += new
        document_ids = torch.ones_like(layout.positions) if layout.document_ids is None else layout.document_ids
        self._write_slots(self.document_ids, 1, document_ids.expand(self.batch_size, -1))
        self._write_slots(self.positions, 1, layout.positions.expand(self.batch_size, -1))
        self.is_default = self.is_default and layout.document_ids is None and len(layout.positions) == 1
        if self.is_default and self.filled == new:
            return layout  # queries and keys are the same tokens
        if self.is_default:
            return SequenceLayout(None, self.positions[:1, : self.filled])
        return SequenceLayout(self.document_ids[:, : self.filled], self.positions[:, : self.filled])

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store the new keys and values (B, KV, T, D) of a layer; return all of that layer, (B, KV, filled, D)."""
        self._write_slots(self.keys[layer], 2, keys)
        self._write_slots(self.values[layer], 2, values)
        return self.keys[layer].narrow(2, 0, self.filled), self.values[layer].narrow(2, 0, self.filled)

    def _write_slots(self, tensor: Tensor, dim: int, new: Tensor) -> None:
        """Copy `new` to the slots of the newest tokens."""
        num_new = new.shape[dim]
        tensor.narrow(dim, self.filled - num_new, num_new).copy_(new)

    def _grow(self, capacity: int) -> None:
        more = capacity - self.capacity
        self.keys = [pad(tensor, (0, 0, 0, more)) for tensor in self.keys]
        self.values = [pad(tensor, (0, 0, 0, more)) for tensor in self.values]
        self.document_ids, self.positions = pad(self.document_ids, (0, more)), pad(self.positions, (0, more))


class EncoderMemory:
    """The encoder's output, as training uses it: each layer projects it to keys and values in every forward pass."""

    def __init__(self, vectors: Tensor, layout: SequenceLayout, hints: KernelHints = NO_HINTS) -> None:
        self.vectors = layout.zero_padding(vectors)  # (B, S, C)
        self.layout, self.hints = layout, hints

    @property
    def batch_size(self) -> int:
        """The number of sources."""
        return self.vectors.shape[0]

    def keys_values(self, layer: int, project: Projection) -> tuple[Tensor, Tensor]:
        """Return the keys and values (B, KV, S, D) of one layer."""
        return project(self.vectors)


class CrossCache:
    """The keys and values of every layer, projected once from the encoder's output and used in all decoding steps."""

    hints = NO_HINTS

    def __init__(self, keys: list[Tensor], values: list[Tensor], layout: SequenceLayout) -> None:
        self.keys, self.values = keys, values  # one (B, KV, S, D) tensor per layer
        self.layout = layout

    @property
    def batch_size(self) -> int:
        """The number of sources."""
        return self.keys[0].shape[0]

    def keys_values(self, layer: int, project: Projection) -> tuple[Tensor, Tensor]:
        """Return the keys and values (B, KV, S, D) of one layer."""
        return self.keys[layer], self.values[layer]


@dataclass
class LayerCache:
    """A self cache and the number of the layer that uses it."""

    cache: SelfCache
    layer: int

    def write(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store new keys and values (B, KV, T, D); return all keys and values of this layer, old and new."""
        return self.cache.write(self.layer, keys, values)

    @property
    def state(self) -> dict[str, Tensor]:
        """What the parts of this layer keep besides keys and values, name → (B, …). Replace a value to change it."""
        return self.cache.states[self.layer]


@dataclass
class LayerMemory:
    """The source, the number of the layer that reads it, and the mask between target queries and source keys."""

    memory: EncoderMemory | CrossCache
    layer: int
    mask: PreparedMask

    def keys_values(self, project: Projection) -> tuple[Tensor, Tensor]:
        """Return the source's keys and values (B, KV, S, D) for this layer."""
        return self.memory.keys_values(self.layer, project)
