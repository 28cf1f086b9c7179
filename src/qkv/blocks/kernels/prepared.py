"""A mask in the form that an attention kernel reads, made once per forward pass and shared by all layers.

B batch, T queries, S keys, H heads, D head dim, C model width, N selected positions or documents
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from qkv.blocks.config import AttentionKernel
from qkv.blocks.mask import Mask


class KernelHints(NamedTuple):
    """What the caller knows about a layout without reading its tensors. Hints affect speed, never results."""

    max_documents: int = 0  # upper bound on the documents in a sequence; 0: unknown
    max_document_length: int = 0  # upper bound on the tokens in a document; 0: the length of the sequence
    in_order: bool = False  # each sequence is one document without padding, at positions 0, 1, 2, …


NO_HINTS = KernelHints()


class DocumentOffsets(NamedTuple):
    """Documents end to end, for variable-length kernels: document n is the tokens offset[n] … offset[n + 1] − 1."""

    query: Tensor  # (N + 1,) int32
    key: Tensor  # (N + 1,) int32
    max_query_length: int
    max_key_length: int


@dataclass
class Selection:
    """Which positions of the last block are computed; see `kernels/selection.py`."""

    indices: Tensor  # into the flattened sequences: (N,), or (B, Q) for the same number in each sequence

    @property
    def selects_queries(self) -> bool:
        """Whether attention itself is restricted to these queries, rather than its output."""
        return self.indices.dim() == 2

    def queries(self, q: Tensor) -> Tensor:
        """(B, H, T, D) → (B, H, Q, D), or unchanged where attention computes all queries."""
        if not self.selects_queries:
            return q
        column = (self.indices % q.shape[2])[:, None, :, None]
        return q.gather(2, column.expand(-1, q.shape[1], -1, q.shape[3]))

    def attention_output(self, z: Tensor) -> Tensor:
        """What attention computed, (B, T, C) or (B, Q, C) → (N, C)."""
        return z.flatten(0, 1) if self.selects_queries else self.residual(z)

    def residual(self, x: Tensor) -> Tensor:
        """The residual stream (B, T, C) → (N, C)."""
        return x.flatten(0, 1).index_select(0, self.indices.flatten())


@dataclass
class PreparedMask:
    """One mask, and what the kernel that will run needs of it."""

    mask: Mask
    kernel: AttentionKernel
    bias: Tensor | None = None  # (B, H, T, S) added to the scores: ALiBi, T5
    dense: Tensor | None = None  # sdpa: bool, or float with the bias added; None: full or plainly causal
    fully_masked: Tensor | None = None  # sdpa: (B, 1, T, 1) queries that may attend to no key
    block_mask: BlockMask | None = None  # flex
    offsets: DocumentOffsets | None = None  # varlen
    selection: Selection | None = None  # last block only: the positions whose outputs are needed

    def select_queries(self, q: Tensor) -> Tensor:
        """The queries to compute, of q (B, H, T, D): all of them, unless there is a selection."""
        return q if self.selection is None else self.selection.queries(q)

    def select_output(self, z: Tensor) -> Tensor:
        """Attention's output z (B, T, C), or (N, C) at the selected positions."""
        return z if self.selection is None else self.selection.attention_output(z)

    def select_residual(self, x: Tensor) -> Tensor:
        """The residual stream x (B, T, C), or (N, C) at the selected positions."""
        return x if self.selection is None else self.selection.residual(x)
