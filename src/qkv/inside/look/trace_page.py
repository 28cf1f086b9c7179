"""The page of a trace alone: its tokens, and its attention patterns if it has them. A notebook shows it.

A trace does not have the model, so there is no mask, no exact number and no lens: `Model.look` has these.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from qkv.inside.look.attention import DESCRIPTIONS, TITLES, summarise_head
from qkv.inside.look.page import Look
from qkv.inside.look.sequences import start_document
from qkv.inside.tokens import TokenList
from qkv.page import WEIGHT_ERROR, pack, pack_weights

MAX_SITES = 8
"""The heading names this many sites."""


def look_at_trace(values: Mapping[str, Tensor], tokens: Mapping[str, TokenList], heads: tuple[int, ...] | None) -> Look:
    """The tokens and patterns of a trace. `heads` are the heads of its patterns, or None for all."""
    attention = [
        _describe_patterns(name, stack, keys, values, tokens, heads)
        for name, stack, keys in (
            ("encoder", "encoder", "encoder"),
            ("decoder", "decoder", "decoder"),
            ("cross", "decoder", "encoder"),
        )
    ]
    found = [view for view in attention if view is not None]
    title = " → ".join(join_tokens(sequence) for sequence in tokens.values())
    words = {name: range(len(sequence)) for name, sequence in tokens.items()}
    names = [*list(values)[:MAX_SITES], *["…"] * (len(values) > MAX_SITES)]
    document = start_document(title, f"Trace of {len(values)} sites: {', '.join(names)}", tokens, words)
    document["footer"] = "Made by Trace in qkv.inside; Model.look shows more."
    if found:
        document["footer"] = f"Weights of heads are rounded to {WEIGHT_ERROR:.4f} or better. {document['footer']}"
        document["attention"] = found
        document["views"].append("attention")
    return Look(document)


def join_tokens(tokens: TokenList) -> str:
    """The text of tokens without special tokens."""
    return "".join(text for text, special in zip(tokens.texts, tokens.special, strict=True) if not special).strip()


def _describe_patterns(
    name: str,
    stack: str,
    keys: str,
    values: Mapping[str, Tensor],
    tokens: Mapping[str, TokenList],
    heads: tuple[int, ...] | None,
) -> dict[str, Any] | None:
    activation = "cross_pattern" if name == "cross" else "pattern"
    sites = [site for site in values if site.startswith(f"{stack}.") and site.endswith(f".{activation}")]
    if not sites:
        return None
    patterns = [values[site].float().numpy() for site in sites]
    layers = [int(site.split(".")[1]) for site in sites]
    no_reasons = np.zeros((len(tokens[stack]), len(tokens[keys])), np.uint8)
    return {
        "name": name,
        "title": TITLES[name],
        "description": DESCRIPTIONS[name],
        "queries": stack,
        "keys": keys,
        "layers": layers,
        "heads": list(heads) if heads is not None else list(range(len(patterns[0]))),
        "patterns": [pack_weights(pattern) for pattern in patterns],
        "summaries": [[summarise_head(head) for head in pattern] for pattern in patterns],
        "masks": [{"layers": layers, "reasons": pack(no_reasons), "num_masked": 0}],
        "mask_of_layer": [0] * len(layers),
        "details": [],
    }
