"""A linear model of one-hot features beside a stack: a vector for each token at each position.

The variants of a protein differ in a few residues, and the effect of a variant is mostly the sum of the effects of its
residues. Such a sum is linear in one-hot features, but a stack needs many examples to learn it. So these vectors skip
the stack: the head reads the mean over a document of gain · hidden state + table[position, token].

B batch, T tokens, C model width
"""

import torch
from torch import Tensor, nn


class OneHotTable(nn.Module):
    """gain · x + table[position, token]; the table starts at 0. Later positions than the table's have no vector."""

    def __init__(self, positions: int, vocab_size: int, width: int) -> None:
        super().__init__()
        self.positions, self.vocab_size = positions, vocab_size
        self.table = nn.Embedding(positions * vocab_size, width)
        self.gain = nn.Parameter(torch.ones(width))

    @torch.no_grad()
    def init_weights(self, config: object) -> None:
        """The table has no effect at first."""
        self.table.weight.zero_()
        self.gain.fill_(1.0)

    def rows(self, ids: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The row of each token, and whether it has one; ids (B, T), positions (B, T) or (1, T) → (B, T)."""
        positions = positions.expand_as(ids)
        return positions.clamp(max=self.positions - 1) * self.vocab_size + ids, positions < self.positions

    def forward(self, x: Tensor, ids: Tensor, positions: Tensor) -> Tensor:
        """Hidden states (B, T, C), ids (B, T), positions (B, T) or (1, T) → (B, T, C)."""
        rows, has_row = self.rows(ids, positions)
        out: Tensor = self.gain * x + self.table(rows) * has_row[:, :, None]
        return out
