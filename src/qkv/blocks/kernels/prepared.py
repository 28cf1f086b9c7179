"""A mask in the form that an attention kernel reads. The stack prepares it once per forward pass for all layers.

B batch, T queries, S keys, H heads, D head dim, C model width, Q selected in each sequence, N selected in the batch
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from qkv.blocks.config import AttentionKernel
from qkv.blocks.kernels.rows import RowPlan
from qkv.blocks.mask import Mask


class KernelHints(NamedTuple):
    """Properties of a layout that the caller knows without reading its tensors.

    A true hint changes only the speed. A false hint gives wrong results.
    """

    max_documents: int = 0  # an upper bound on the documents of a sequence; 0: unknown
    max_document_length: int = 0  # an upper bound on the tokens of a document; 0: unknown
    repeats_positions: bool = False  # the tokens of an image have the same position
    is_default: bool = False  # True: each sequence is one document without padding, at positions 0, 1, 2, …


NO_HINTS = KernelHints()


class DocumentOffsets(NamedTuple):
    """The boundaries of M concatenated documents: document m has the tokens offset[m] … offset[m + 1] − 1."""

    query: Tensor  # (M + 1,) int32
    key: Tensor  # (M + 1,) int32
    max_query_length: int
    max_key_length: int


@dataclass
class Selection:
    """The positions that the last block computes; see `kernels/selection.py`."""

    indices: Tensor  # flat indices b·T + t: (N,), or (B, Q) for the same number in each sequence

    @property
    def selects_queries(self) -> bool:
        """True: attention runs for the selected queries only. False: it runs for all, and its output is selected."""
        return self.indices.dim() == 2

    def select_queries(self, q: Tensor) -> Tensor:
        """q (B, H, T, D) → (B, H, Q, D), or q itself if attention runs for all queries."""
        if not self.selects_queries:
            return q
        column = (self.indices % q.shape[2])[:, None, :, None]
        return q.gather(2, column.expand(-1, q.shape[1], -1, q.shape[3]))

    def select_output(self, z: Tensor) -> Tensor:
        """The weighted values (B, T, H·D), or (B, Q, H·D) for selected queries → (N, H·D)."""
        return z.flatten(0, 1) if self.selects_queries else self.select_residual(z)

    def select_residual(self, x: Tensor) -> Tensor:
        """The residual stream (B, T, C) → (N, C)."""
        return x.flatten(0, 1).index_select(0, self.indices.flatten())


@dataclass
class PreparedMask:
    """A mask, the kernel chosen for it, and the extra tensors which that kernel needs."""

    mask: Mask
    kernel: AttentionKernel
    bias: Tensor | None = None  # (B, H, T, S), added to the scores: ALiBi, T5
    attn_mask: Tensor | None = None  # for sdpa: bool, or float including the bias; None: all allowed, or only causal
    fully_masked: Tensor | None = None  # for sdpa: (B, 1, T, 1), True for queries that may attend to no key
    row_plan: RowPlan | None = None  # for sdpa on a CPU: the blocks of queries, planned by the first layer
    block_mask: BlockMask | None = None  # for flex
    offsets: DocumentOffsets | None = None  # for varlen
    selection: Selection | None = None  # for the last block: the positions whose outputs are needed

    def select_queries(self, q: Tensor) -> Tensor:
        """Return the selected queries of q (B, H, T, D), or all of them if there is no selection."""
        return q if self.selection is None else self.selection.select_queries(q)

    def select_output(self, z: Tensor) -> Tensor:
        """Return the weighted values z (B, T, H·D), or their part (N, H·D) at the selected positions."""
        return z if self.selection is None else self.selection.select_output(z)

    def select_residual(self, x: Tensor) -> Tensor:
        """Return the residual stream x (B, T, C), or its part (N, C) at the selected positions."""
        return x if self.selection is None else self.selection.select_residual(x)
