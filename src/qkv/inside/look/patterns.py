"""The pattern of one head of a document: exact if the document has the head's q and k, else rounded to 8 bits.

T queries, S keys
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from qkv.page import unpack


def head_pattern(attention: Mapping[str, Any], layer: int, head: int) -> np.ndarray:
    """The weights (T, S) of a head."""
    row = attention["layers"].index(layer)
    for detail in attention["details"]:
        if (detail["layer"], detail["head"]) == (layer, head):
            return _softmax_of_scores(detail, attention["masks"][attention["mask_of_layer"][row]])
    pattern: np.ndarray = unpack(attention["patterns"][row])[attention["heads"].index(head)]
    return pattern


def _softmax_of_scores(detail: Mapping[str, Any], mask: Mapping[str, Any]) -> np.ndarray:
    """softmax(q·k · scale + bias), with zeros for a query that attends to no key."""
    scores = unpack(detail["q"]).astype(np.float64) @ unpack(detail["k"]).T * detail["scale"]
    if detail["bias"] is not None:
        scores = scores + unpack(detail["bias"])
    visible = unpack(mask["reasons"]) == 0
    lowest = scores.min()
    largest = np.where(visible, scores, lowest).max(axis=1, keepdims=True)
    weights = visible * np.exp(np.where(visible, scores, lowest) - largest)
    total = weights.sum(axis=1, keepdims=True)
    pattern: np.ndarray = weights / np.where(total == 0, 1.0, total)
    return pattern
