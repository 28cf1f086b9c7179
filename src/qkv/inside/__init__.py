"""Looking inside a model: read and change the activations of all three families.

    trace        `Trace`: the activations of one text, by site         record       makes traces
    tokens       ids and texts of tokens
    trace_files  traces of a corpus on disk                            forward      runs any family on token ids

The sites have the names of `qkv.blocks.tap`. Recording leaves the fast attention kernels on.
"""

from qkv.inside.record import DEFAULT_SITES, list_sites, trace, trace_many
from qkv.inside.tokens import TokenList
from qkv.inside.trace import Trace
from qkv.inside.trace_files import read_traces, write_traces

__all__ = [
    "DEFAULT_SITES",
    "TokenList",
    "Trace",
    "list_sites",
    "read_traces",
    "trace",
    "trace_many",
    "write_traces",
]
