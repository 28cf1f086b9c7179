"""The sources of encoder-decoder requests: each is encoded once, and kept as long as its request.

R sources, S source tokens, KV key/value heads, D head dim
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.blocks import CrossCache, SequenceLayout
from qkv.decode.runner import left_pad
from qkv.models import Seq2Seq


def encode_sources(network: Seq2Seq, sources: Sequence[Sequence[int]]) -> list[CrossCache]:
    """The keys and values of each source, all encoded in one batch."""
    padded = left_pad(sources, next(network.parameters()).device)  # (R, S)
    segment = None if min(map(len, sources)) == padded.shape[1] else (padded >= 0).long()
    every = network.build_cross_cache(network.encode(padded.clamp(min=0), segment))
    if len(sources) == 1:
        return [every]

    def own(tensors: list[Tensor], row: int) -> list[Tensor]:
        # A copy: a view would keep the whole batch in memory until its last request ends.
        return [t[row : row + 1, :, padded.shape[1] - len(sources[row]) :].clone() for t in tensors]

    return [
        CrossCache(own(every.keys, i), own(every.values, i), _source_layout(every, s)) for i, s in enumerate(sources)
    ]


def _source_layout(cross: CrossCache, source: Sequence[int]) -> SequenceLayout:
    return SequenceLayout(None, torch.arange(len(source), device=cross.keys[0].device)[None])


def batch_sources(sources: Sequence[CrossCache]) -> CrossCache:
    """Single sources as one right-padded batch."""
    if len(sources) == 1:
        return sources[0]
    lengths = [one.keys[0].shape[2] for one in sources]
    longest = max(lengths)

    def lay(layers: Sequence[list[Tensor]]) -> list[Tensor]:
        return [
            torch.cat([F.pad(t, (0, 0, 0, longest - t.shape[2])) for t in rows]) for rows in zip(*layers, strict=True)
        ]

    device = sources[0].keys[0].device
    shown = torch.arange(longest, device=device)[None]
    segment = None if min(lengths) == longest else (shown < torch.tensor(lengths, device=device)[:, None]).long()
    return CrossCache(
        lay([one.keys for one in sources]), lay([one.values for one in sources]), SequenceLayout(segment, shown)
    )
