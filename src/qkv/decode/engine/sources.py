"""The sources of encoder-decoder requests. Each source is encoded once, and kept until its request ends.

R sources, S source tokens, KV key/value heads, D head dim
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.blocks import CrossCache, Inputs, SequenceLayout
from qkv.models import Network


def encode_sources(network: Network, sources: Sequence[Sequence[int]]) -> list[CrossCache]:
    """Encode the sources in one batch. Returns the cross-attention cache of each source."""
    inputs = Inputs.from_sequences(sources, side="left", device=network.device)  # (R, S)
    batch = network.build_cross_cache(network.encode(inputs))
    if len(sources) == 1:
        return [batch]

    def copy_row(tensors: list[Tensor], row: int) -> list[Tensor]:
        # A view instead of a copy would keep the whole batch in memory until its last request ends.
        return [t[row : row + 1, :, t.shape[2] - len(sources[row]) :].clone() for t in tensors]

    layouts = [SequenceLayout(None, torch.arange(len(source), device=network.device)[None]) for source in sources]
    return [
        CrossCache(copy_row(batch.keys, row), copy_row(batch.values, row), layout) for row, layout in enumerate(layouts)
    ]


def batch_sources(sources: Sequence[CrossCache]) -> CrossCache:
    """Combine the caches of single sources into one right-padded batch."""
    if len(sources) == 1:
        return sources[0]
    lengths = [source.keys[0].shape[2] for source in sources]
    max_length = max(lengths)

    def pad_and_concatenate(tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat([F.pad(t, (0, 0, 0, max_length - t.shape[2])) for t in tensors])

    device = sources[0].keys[0].device
    positions = torch.arange(max_length, device=device)[None]
    document_ids = None
    if min(lengths) < max_length:
        document_ids = (positions < torch.tensor(lengths, device=device)[:, None]).long()
    keys = [pad_and_concatenate(layer) for layer in zip(*(source.keys for source in sources), strict=True)]
    values = [pad_and_concatenate(layer) for layer in zip(*(source.values for source in sources), strict=True)]
    return CrossCache(keys, values, SequenceLayout(document_ids, positions))
