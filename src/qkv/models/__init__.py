"""The three families of models, their configs, and the tables that convert public checkpoints.

config    an encoder, a decoder or both, and a head          network    what all families have in common
encoder   decoder   seq2seq                                  families   config → network
runtime/  checks of inputs, evaluation mode, memory
tables/   published models: presets, config keys and tensor names; parameter and FLOP counts

A config and the tables need no torch. The networks import it when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from qkv.models.config import Config

if TYPE_CHECKING:
    from qkv.models.decoder import Decoder
    from qkv.models.encoder import Encoder
    from qkv.models.families import build
    from qkv.models.network import Network
    from qkv.models.seq2seq import Seq2Seq

NEED_TORCH = {
    "Decoder": "qkv.models.decoder",
    "Encoder": "qkv.models.encoder",
    "Network": "qkv.models.network",
    "Seq2Seq": "qkv.models.seq2seq",
    "build": "qkv.models.families",
}

__all__ = ["Config", "Decoder", "Encoder", "Network", "Seq2Seq", "build"]


def __getattr__(name: str) -> Any:
    if name in NEED_TORCH:
        return getattr(import_module(NEED_TORCH[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
