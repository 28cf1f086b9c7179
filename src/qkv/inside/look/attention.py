"""The attention of a document: the patterns of all heads in 8 bits, their masks, and the exact numbers of some heads.

T queries, S keys, H heads, D head dim
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.blocks import Mask, Stack
from qkv.blocks.mask import SequenceLayout
from qkv.inside.look.masks import describe_mask
from qkv.page import pack, pack_weights, unpack

MAX_DETAIL_BYTES = 600_000
"""The exact numbers of heads take at most about this many bytes of a page."""

TITLES = {
    "encoder": "Encoder self-attention",
    "decoder": "Decoder self-attention",
    "cross": "Cross-attention",
}
DESCRIPTIONS = {
    "encoder": "Rows are queries, columns are keys; every token attends to the whole text.",
    "decoder": "Rows are queries, columns are keys; a token attends to itself and to the tokens before it.",
    "cross": "Rows are tokens that the decoder has read (queries), columns are tokens of the source (keys). The row of "
    "a token shows where the model looks while it predicts the next one.",
}


@dataclass(frozen=True)
class AttentionKind:
    """One of the attentions of a model: of the encoder, of the decoder, or between them."""

    name: str  # "encoder", "decoder" or "cross"
    stack: Stack
    queries: SequenceLayout
    keys: SequenceLayout

    @property
    def stack_name(self) -> str:
        """The stack whose tokens are the queries."""
        return "decoder" if self.name == "cross" else self.name

    @property
    def key_stack_name(self) -> str:
        """The stack whose tokens are the keys."""
        return "encoder" if self.name == "cross" else self.name

    def site(self, layer: int, activation: str) -> str:
        """The name of a site: `site(0, "q")` is "decoder.0.cross_q" for cross-attention."""
        prefix = "cross_" if self.name == "cross" else ""
        return f"{self.stack_name}.{layer}.{prefix}{activation}"

    def mask(self, layer: int) -> Mask:
        """The mask of a layer."""
        if self.name == "cross":
            return Mask(self.queries, self.keys)
        return Mask(self.queries, self.keys, self.stack.causal, self.stack.config.window_of(layer))

    def bias(self) -> Tensor | None:
        """What positions add to the scores, (H, T, S); None if they add nothing."""
        if self.name == "cross" or self.stack.bias is None:
            return None
        device = next(self.stack.parameters()).device
        bias: Tensor = self.stack.bias(self.queries.positions.to(device), self.keys.positions.to(device), torch.float32)
        return bias[0].detach().cpu()


def describe_attention(
    kind: AttentionKind,
    values: Mapping[str, Tensor],
    layers: Sequence[int],
    heads: Sequence[int],
    exact_heads: Sequence[tuple[int, int]],
) -> dict[str, Any]:
    """The attention as part of a document. `exact_heads` are the (layer, head) pairs with exact numbers."""
    patterns = {layer: values[kind.site(layer, "pattern")][list(heads)].float().numpy() for layer in layers}
    masks, mask_of_layer = describe_masks(kind, layers)
    return {
        "name": kind.name,
        "title": TITLES[kind.name],
        "description": DESCRIPTIONS[kind.name],
        "queries": kind.stack_name,
        "keys": kind.key_stack_name,
        "layers": list(layers),
        "heads": list(heads),
        "patterns": [pack_weights(patterns[layer]) for layer in layers],
        "summaries": [[summarise_head(pattern) for pattern in patterns[layer]] for layer in layers],
        "masks": masks,
        "mask_of_layer": mask_of_layer,
        "details": [describe_head(kind, values, layer, head) for layer, head in exact_heads],
    }


def describe_masks(kind: AttentionKind, layers: Sequence[int]) -> tuple[list[dict[str, Any]], list[int]]:
    """The distinct masks of the layers, and the index of each layer's mask."""
    windows = [kind.mask(layer).window for layer in layers]
    distinct = sorted(set(windows))
    masks = []
    for window in distinct:
        shared = [layer for layer, layer_window in zip(layers, windows, strict=True) if layer_window == window]
        masks.append(describe_mask(kind.mask(shared[0]), shared))
    return masks, [distinct.index(window) for window in windows]


def summarise_head(pattern: np.ndarray) -> dict[str, Any]:
    """Of a pattern (T, S): the mean entropy of its queries in bits, and its largest weight with query and key.

    Queries with a single visible key, such as the first one of a causal mask, have no choice. They do not count for the
    entropy and for the largest weight, except if no other queries exist.
    """
    logs = np.log2(pattern, out=np.zeros_like(pattern), where=pattern > 0)
    entropies = -(pattern * logs).sum(axis=1)
    has_choice = (pattern > 0).sum(axis=1) > 1
    counted = has_choice if has_choice.any() else np.ones_like(has_choice)
    query, key = np.unravel_index(np.where(counted[:, None], pattern, -1).argmax(), pattern.shape)
    return {
        "entropy": round(float(entropies[counted].mean()), 4),
        "strongest": [int(query), int(key)],
        "strongest_weight": round(float(pattern[query, key]), 4),
    }


def describe_head(kind: AttentionKind, values: Mapping[str, Tensor], layer: int, head: int) -> dict[str, Any]:
    """The exact numbers of one head: q (T, D), k and v (S, D), the scale and the bias (T, S) of its scores."""
    config = kind.stack.config
    kv_head = head // (config.heads // config.kv_heads)
    bias = kind.bias()
    return {
        "layer": layer,
        "head": head,
        "scale": config.head_dim**-0.5 if config.score_scale == "sqrt" else 1.0,
        "q": pack(values[kind.site(layer, "q")][head].float().numpy()),
        "k": pack(values[kind.site(layer, "k")][kv_head].float().numpy()),
        "v": pack(values[kind.site(layer, "v")][kv_head].float().numpy()),
        "bias": None if bias is None else pack(bias[head].float().numpy()),
    }


def choose_exact_heads(
    kinds: Sequence[AttentionKind],
    values: Mapping[str, Tensor],
    layers: dict[str, list[int]],
    heads: dict[str, list[int]],
) -> dict[str, list[tuple[int, int]]]:
    """The heads whose exact numbers fit into a page: all of them, or the sharpest ones of each layer in turn."""
    exact_heads: dict[str, list[tuple[int, int]]] = {kind.name: [] for kind in kinds}
    room = MAX_DETAIL_BYTES
    for kind, layer, head in _sharpest_first(kinds, values, layers, heads):
        num_queries, num_keys = kind.queries.positions.shape[1], kind.keys.positions.shape[1]
        size = 4 * kind.stack.config.head_dim * (num_queries + 2 * num_keys)
        if kind.name != "cross" and kind.stack.bias is not None:
            size += 4 * num_queries * num_keys
        if room < size and any(exact_heads.values()):
            break
        exact_heads[kind.name].append((layer, head))
        room -= size
    return exact_heads


def _sharpest_first(
    kinds: Sequence[AttentionKind],
    values: Mapping[str, Tensor],
    layers: dict[str, list[int]],
    heads: dict[str, list[int]],
) -> Iterator[tuple[AttentionKind, int, int]]:
    """All heads: first the head with the lowest entropy of each layer, then the second head of each layer, …."""
    ranked = []
    for kind in kinds:
        for layer in layers[kind.name]:
            patterns = values[kind.site(layer, "pattern")].float().numpy()
            ordered = sorted(heads[kind.name], key=lambda head: summarise_head(patterns[head])["entropy"])
            ranked.append((kind, layer, ordered))
    for rank in range(max(len(ordered) for _, _, ordered in ranked)):
        for kind, layer, ordered in ranked:
            if rank < len(ordered):
                yield kind, layer, ordered[rank]


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
