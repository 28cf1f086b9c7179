"""Decoders of about equal size, to compare recurrence with attention: the keys of a recipe."""

from math import sqrt
from typing import Any

WIDTHS = {"RNN": sqrt(12), "GRU": 2.0, "LSTM": sqrt(3), "attention": 1.0}
"""Widths, as multiples of C, with 24·C² weights in the layers. RNN, GRU and LSTM have one layer, attention has two.

A layer of width W has 2·W² weights in an RNN, 6·W² in a GRU and 8·W² in an LSTM. A Transformer block has about 12·W².
"""


def comparable_decoders(width: int) -> dict[str, dict[str, Any]]:
    """The keys of decoders that have about the size of a Transformer of two layers of this width.

    >>> {name: keys["model.width"] for name, keys in comparable_decoders(32).items()}
    {'RNN': 110, 'GRU': 64, 'LSTM': 56, 'attention': 32}
    """
    models = {}
    for name, factor in WIDTHS.items():
        has_blocks = name == "attention"
        sizes = {"model.width": 2 * int(width * factor / 2), "model.layers": 2 if has_blocks else 1}
        # A tiny model needs a larger embedding than the default of 0.02; a recurrent one has it already.
        family = {"model.heads": 4, "model.init_std": 0.1} if has_blocks else {"model.family": name.lower()}
        models[name] = {**sizes, **family, "model.dropout": 0.0}
    return models
