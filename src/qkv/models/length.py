"""A table of positions ends somewhere: refuse what lies beyond it instead of cutting the text or reading garbage."""

from torch import Tensor

from qkv.blocks import SelfCache, StackConfig
from qkv.errors import UsageError


def check_length(
    config: StackConfig, ids: Tensor, position: Tensor | None = None, cache: SelfCache | None = None
) -> None:
    """Raise where `ids` (B, T) would need positions that the model does not have; costs no look at a tensor.

    Positions given by the caller are taken at their word, and packed rows restart them.
    """
    if position is not None or not config.limited:
        return
    needed = ids.shape[1] + (cache.filled if cache is not None else 0)
    if needed > config.max_positions:
        raise UsageError(
            f"{needed} tokens are more than the {config.max_positions} positions that this model has; "
            "shorten the text or split it"
        )
