"""A network with its config and tokenizer."""

from dataclasses import dataclass, field
from typing import Any

from qkv.blocks import Tap
from qkv.errors import UsageError
from qkv.models import Config, Network
from qkv.progress import OnProgress
from qkv.text import Tokenizer


@dataclass(frozen=True)
class TextModel:
    """What every task needs: a network with its config and tokenizer, and how texts are run."""

    network: Network
    tokenizer: Tokenizer
    config: Config
    tap: Tap | None = field(default=None, compare=False)  # changes activations inside the network
    batch_size: int = field(default=32, compare=False)  # of texts
    progress: OnProgress | None = field(default=None, compare=False)
    kept: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)  # data that tasks keep between calls


def require_tokenizer(tokenizer: Tokenizer | None) -> Tokenizer:
    """The tokenizer; raises an error if the model has no tokenizer."""
    if tokenizer is None:
        raise UsageError(
            "this model has no tokenizer, so it cannot read text; use a model with a tokenizer, or pass token ids"
        )
    return tokenizer
