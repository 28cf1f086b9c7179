"""A table of positions ends somewhere: refuse what lies beyond it instead of cutting the text or reading garbage."""

import torch
from torch import Tensor

from qkv.blocks import SelfCache, StackConfig, count_positions
from qkv.errors import UsageError


def check_length(
    config: StackConfig,
    ids: Tensor,
    positions: Tensor | None = None,
    cache: SelfCache | None = None,
    document_ids: Tensor | None = None,
) -> None:
    """Raise where `ids` (B, T) would need positions that the model does not have.

    Positions given by the caller are taken at their word. A row may be longer than the table where it packs several
    texts or ends in padding: only then are its segments looked at (and not while a model is being compiled).
    """
    if positions is not None or not config.has_max_positions:
        return
    needed = ids.shape[1] + (cache.filled if cache is not None else 0)
    if needed <= config.max_positions:
        return
    if document_ids is not None and cache is None:
        if torch.compiler.is_compiling():
            return
        needed = int(count_positions(document_ids).max()) + 1
    if needed > config.max_positions:
        raise UsageError(
            f"{needed} tokens are more than the {config.max_positions} positions that this model has; "
            "shorten the text or split it"
        )
