"""The embedding: token ids become vectors of width C.

A stack takes vectors and a `SequenceLayout` (the document id and the position of each token, see mask.py). Front ends
(front_ends.py) overwrite the vectors of placeholders. A stack without a vocabulary has a table without rows.

MASKED_IN_TRAINING is the fraction of tokens that ESM replaces by the mask token: 80 % of the 15 % that it predicts.

B batch, T tokens, W width of the tables (`embedding_width` or, if it is not set, C), C model width
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.blocks.config import StackConfig
from qkv.blocks.dropout import Dropout
from qkv.blocks.norm import make_norm
from qkv.blocks.parts import make_position

MASKED_IN_TRAINING = 0.15 * 0.8


class Embedding(nn.Module):
    """token (· scale) + position + token type → norm → dropout → projection; each step only if the config has it."""

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        width = config.embedding_width or config.width
        self.width = width
        self.scale = width**0.5 if config.embedding_scale == "sqrt" else 1.0
        self.mask_token_id = config.mask_token_id if config.embedding_scale == "unmasked" else None
        self.token = nn.Embedding(config.vocab_size, width)
        if not config.vocab_size:
            self.token.requires_grad_(False)  # data parallelism waits for a gradient of every other parameter
        self.position = make_position(config, "embedding")
        self.types = nn.Embedding(config.token_types, width) if config.token_types else None
        self.norm = make_norm(config, width) if config.embedding_norm != "none" else None
        self.dropout = Dropout(config.dropout)
        self.window = config.embedding_window
        has_projection = config.embedding_width or self.window
        self.project = nn.Linear((2 * self.window + 1) * width, config.width) if has_projection else None

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        token_type_ids: Tensor | None = None,
        document_ids: Tensor | None = None,
    ) -> Tensor:
        """ids (B, T), positions (B, T) or (1, T), token_type_ids (B, T) or None for all 0 → (B, T, C).

        Without document_ids (B, T), each sequence is one document.
        """
        return self.combine(ids, self.position_vectors(positions), token_type_ids, document_ids)

    def position_vectors(self, positions: Tensor) -> Tensor | None:
        """Return the vectors to add at these positions, (B, T) → (B, T, W), or None if positions enter elsewhere."""
        return None if self.position is None else self.position(positions)

    def combine(
        self,
        ids: Tensor,
        position_vectors: Tensor | None,
        token_type_ids: Tensor | None = None,
        document_ids: Tensor | None = None,
    ) -> Tensor:
        """Add the embeddings of tokens, positions and token types; then apply norm, dropout and projection."""
        has_vocabulary = self.token.num_embeddings > 0
        x: Tensor = self.token(ids) if has_vocabulary else self.token.weight.new_zeros(*ids.shape, self.width)
        if self.scale != 1.0:
            x = x * self.scale
        if self.mask_token_id is not None:
            is_mask = ids == self.mask_token_id
            x = x.masked_fill(is_mask[:, :, None], 0.0) * (1 - MASKED_IN_TRAINING)
            x = (x / unmasked_fraction(is_mask, document_ids)[:, :, None]).to(self.token.weight.dtype)
        if position_vectors is not None:
            x = x + position_vectors.to(x.dtype)
        if self.types is not None:
            x = x + (self.types.weight[0] if token_type_ids is None else self.types(token_type_ids))
        if self.norm is not None:
            x = self.norm(x)
        x = self.dropout(x)
        if self.window:
            x = join_neighbours(x, self.window, document_ids)
        return x if self.project is None else self.project(x)


def join_neighbours(x: Tensor, distance: int, document_ids: Tensor | None) -> Tensor:
    """Join each vector (B, T, W) with those of its neighbours up to a distance R → (B, T, (2R + 1)·W).

    A neighbour that is not in the same document, or does not exist, is a vector of zeros.

    >>> join_neighbours(torch.tensor([[[1.0], [2.0], [3.0]]]), 1, torch.tensor([[1, 1, 2]]))[0].tolist()
    [[0.0, 1.0, 2.0], [1.0, 2.0, 0.0], [0.0, 3.0, 0.0]]
    """
    joined = F.pad(x, (0, 0, distance, distance)).unfold(1, 2 * distance + 1, 1).transpose(2, 3)  # (B, T, 2R + 1, W)
    if document_ids is not None:
        neighbours = F.pad(document_ids, (distance, distance), value=-1).unfold(1, 2 * distance + 1, 1)
        joined = joined * (neighbours == document_ids[:, :, None])[..., None]
    return joined.flatten(2)


def unmasked_fraction(is_mask: Tensor, document_ids: Tensor | None) -> Tensor:
    """Return the fraction of a document's tokens that are not masks, for each token (B, T) or sequence (B, 1)."""
    masked = is_mask.float()
    if document_ids is None:
        fraction = masked.mean(1, keepdim=True)
    else:
        index = document_ids.long()
        zeros = masked.new_zeros(len(masked), masked.shape[1] + 1)  # the documents of a sequence have ids from 0 to T
        count = zeros.scatter_add(1, index, torch.ones_like(masked))
        fraction = (zeros.scatter_add(1, index, masked) / count.clamp(min=1)).gather(1, index)
    return (1 - fraction).clamp(min=1 / masked.shape[1])  # a document of masks only has vectors of 0
