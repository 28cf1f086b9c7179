"""The three families of models, their configs, and the tables that convert public checkpoints.

config    an encoder, a decoder or both, and a head          network    what all families have in common
encoder   decoder   seq2seq                                  families   config → network
runtime   checks of inputs, evaluation mode, memory
tables/   published models: presets, config keys and tensor names; parameter and FLOP counts

A config and the tables need no torch. The networks import it when they are first used.
"""

from typing import TYPE_CHECKING

from qkv.lazy import lazy_names

if TYPE_CHECKING:
    from qkv.models.config import Config
    from qkv.models.decoder import Decoder
    from qkv.models.encoder import Encoder
    from qkv.models.families import build
    from qkv.models.network import Network
    from qkv.models.seq2seq import Seq2Seq
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "config": "Config",
            "decoder": "Decoder",
            "encoder": "Encoder",
            "families": "build",
            "network": "Network",
            "seq2seq": "Seq2Seq",
        },
    )

__all__ = ["Config", "Decoder", "Encoder", "Network", "Seq2Seq", "build"]
