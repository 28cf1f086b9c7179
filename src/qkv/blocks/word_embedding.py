"""The embedding of words from their hashed features: no vocabulary, so no word is unknown.

Two different features may fall into one row of a table. Each is therefore looked up in two rows, which are added: that
two features share both rows is improbable (Bloom embeddings, Serrà and Karatzoglou 2017).

m words, F features of a word, R rows and D width of a table, C model width
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.blocks.inputs import Payload
from qkv.blocks.norm import RMSNorm
from qkv.blocks.words import WordsConfig


class WordEmbedding(nn.Module):
    """The features of a word and of its neighbours → a gated linear unit → norm."""

    def __init__(self, config: WordsConfig, width: int) -> None:
        super().__init__()
        self.config = config
        self.table = nn.Embedding(config.features * config.rows, config.width)
        self.mix = nn.Linear(3 * config.features * config.width, 2 * width)
        self.norm = RMSNorm(width)
        self.dropout = nn.Dropout1d(config.dropout)

    def init_weights(self, config: object) -> None:
        """Sample small vectors, so that what is learnt about frequent features counts more than rare ones."""
        nn.init.normal_(self.table.weight, std=0.1)
        nn.init.xavier_normal_(self.mix.weight)

    def forward(self, payload: Payload) -> Tensor:
        """The hashes (m, F) → (m, C)."""
        hashes, rows = payload.values.long(), self.config.rows
        first = torch.arange(self.config.features, device=hashes.device) * rows  # the first row of each feature
        found = self.table(hashes % rows + first) + self.table(hashes // rows % rows + first)  # (m, F, D)
        x = self.dropout(found).flatten(1)
        is_first, is_last = x.new_ones(len(x), 1), x.new_ones(len(x), 1)
        ends = payload.lengths.cumsum(0)
        is_first[(ends - payload.lengths)] = 0
        is_last[ends - 1] = 0
        before, after = x.roll(1, 0) * is_first, x.roll(-1, 0) * is_last
        value, gate = self.mix(torch.cat([before, x, after], 1)).chunk(2, 1)
        out: Tensor = self.norm(value * F.silu(gate))
        return out
