"""Looking inside a model: read and change the activations of all three families.

    trace        `Trace`: the activations of one text, by site         record       makes traces
    tokens       ids and texts of tokens
    trace_files  traces of a corpus on disk                            forward      runs any family on token ids
    edits        change activations, also while generating             sites        the names of the sites of a model

The sites have the names of `qkv.blocks.tap`. Recording leaves the fast attention kernels on.
"""

from qkv.inside.edits import (
    Edit,
    EditTap,
    change,
    check_edits,
    mean_ablate,
    mean_values,
    patch,
    resample_ablate,
    steer,
    zero_ablate,
)
from qkv.inside.record import DEFAULT_SITES, trace, trace_many
from qkv.inside.sites import list_sites
from qkv.inside.tokens import TokenList
from qkv.inside.trace import Trace
from qkv.inside.trace_files import read_traces, write_traces

__all__ = [
    "DEFAULT_SITES",
    "Edit",
    "EditTap",
    "TokenList",
    "Trace",
    "change",
    "check_edits",
    "list_sites",
    "mean_ablate",
    "mean_values",
    "patch",
    "read_traces",
    "resample_ablate",
    "steer",
    "trace",
    "trace_many",
    "write_traces",
    "zero_ablate",
]
