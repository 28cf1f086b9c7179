"""The three families of models, their configs, and the tables that convert public checkpoints.

config    an encoder, a decoder or both, and a head          network    what all families have in common
families  Encoder, Decoder and Seq2Seq; config → network
runtime   checks of inputs, evaluation mode, memory
tables/   published models: presets, config keys and tensor names; parameter and FLOP counts

A config and the tables need no torch. The networks import it when they are first used.
"""

from typing import TYPE_CHECKING

from qkv.lazy import lazy_names

if TYPE_CHECKING:
    from qkv.models.config import Config
    from qkv.models.families import Decoder, Encoder, Seq2Seq, build
    from qkv.models.network import Network
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "config": "Config",
            "families": "Decoder Encoder Seq2Seq build",
            "network": "Network",
        },
    )

__all__ = ["Config", "Decoder", "Encoder", "Network", "Seq2Seq", "build"]
