"""Check inputs against a table of learned positions. A longer input is an error; it is never truncated silently."""

import torch
from torch import Tensor

from qkv.blocks import SelfCache, StackConfig, positions_in_documents
from qkv.errors import UsageError


def check_length(
    config: StackConfig,
    ids: Tensor,
    positions: Tensor | None = None,
    cache: SelfCache | None = None,
    document_ids: Tensor | None = None,
) -> None:
    """Raise if `ids` (B, T) need positions that the model does not have.

    Positions from the caller are not checked. With a cache, the number of filled slots + T is checked. Without one, a
    sequence that is longer than the table may consist of several shorter documents or have padding. If it has document
    ids, the length of its longest document is checked instead, but not under torch.compile, which cannot read tensors.
    """
    if positions is not None or not config.has_max_positions:
        return
    needed = ids.shape[1] + (cache.filled if cache is not None else 0)
    if needed <= config.max_positions:
        return
    if document_ids is not None and cache is None:
        if torch.compiler.is_compiling():
            return
        needed = int(positions_in_documents(document_ids).max()) + 1
    if needed > config.max_positions:
        raise UsageError(
            f"{needed} tokens are more than the {config.max_positions} positions that this model has; "
            "shorten the text or split it"
        )
