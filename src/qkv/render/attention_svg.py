"""The attention of a document as an SVG picture: a grid of layers and heads, or one head with tokens and weights."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from qkv.inside.look.attention import head_pattern
from qkv.page import unpack
from qkv.render.formatting import token_label
from qkv.render.svg import FAINT, document, text

LOW, MIDDLE, HIGH = (242, 243, 245), (143, 178, 234), (18, 63, 150)
THUMBNAIL, GAP, LEFT, CELL = 120, 14, 70, 26


def draw_attention(look: Mapping[str, Any]) -> str:
    """All attentions of a document as grids; if each has one head only, with their tokens."""
    parts: list[str] = []
    y, width = 20, 0
    for attention in look["attention"]:
        queries, keys = (look["sequences"][attention[side]]["texts"] for side in ("queries", "keys"))
        is_single = len(attention["layers"]) * len(attention["heads"]) == 1
        title = attention["title"]
        if is_single:
            title += f", layer {attention['layers'][0]}, head {attention['heads'][0]}"
        parts.append(text(12, y, title, 15, anchor="start", weight=600))
        patterns = [unpack(packed) for packed in attention["patterns"]]
        if is_single:
            pattern = head_pattern(attention, attention["layers"][0], attention["heads"][0])
            drawn, right, bottom = _draw_head(pattern, queries, keys, y + 14)
        else:
            drawn, right, bottom = _draw_grid(attention, patterns, y + 16)
        parts += drawn
        y, width = bottom + 34, max(width, right)
    return document(width + 12, y - 20, f"Attention: {look['title']}", parts)


def _draw_grid(attention: Mapping[str, Any], patterns: list[np.ndarray], top: int) -> tuple[list[str], int, int]:
    """Rows are layers, columns are heads. Returns the parts, and the right and lower end."""
    num_queries, num_keys = patterns[0].shape[1:]
    cell = THUMBNAIL / max(num_queries, num_keys)
    height = round(num_queries * cell)
    parts = []
    for row, (layer, heads) in enumerate(zip(attention["layers"], patterns, strict=True)):
        y = top + row * (height + GAP + 12)
        parts.append(text(12, y + height / 2, f"layer {layer}", 12, FAINT, "start"))
        for column, pattern in enumerate(heads):
            x = LEFT + column * (THUMBNAIL + GAP)
            parts += _cells(pattern, x, y, cell)
            parts.append(
                text(x + num_keys * cell / 2, y + height + 13, f"head {attention['heads'][column]}", 11, FAINT)
            )
    right = LEFT + len(attention["heads"]) * (THUMBNAIL + GAP)
    return parts, right, top + len(patterns) * (height + GAP + 12)


def _draw_head(pattern: np.ndarray, queries: list[str], keys: list[str], top: int) -> tuple[list[str], int, int]:
    """One head with its tokens, and its weights as numbers. Returns the parts, and the right and lower end."""
    left = 24 + 8 * max(len(token_label(query)) for query in queries)
    top += 8 * max(len(token_label(key)) for key in keys) + 8
    parts = _cells(pattern, left, top, CELL)
    for i, query in enumerate(queries):
        parts.append(text(left - 8, top + (i + 0.5) * CELL + 4, token_label(query), 12, anchor="end"))
    for j, key in enumerate(keys):
        x = left + (j + 0.5) * CELL + 4
        parts.append(
            f"<g transform='rotate(-90 {x:.1f} {top - 8})'>{text(x, top - 8, token_label(key), 12, anchor='start')}</g>"
        )
    for i, j in zip(*np.nonzero(pattern >= 0.05), strict=True):
        colour = "#ffffff" if pattern[i, j] > 0.3 else "#1f2937"
        words = f"{pattern[i, j]:.2f}".lstrip("0")
        parts.append(text(left + (j + 0.5) * CELL, top + (i + 0.5) * CELL + 4, words, 10, colour))
    return parts, left + len(keys) * CELL, top + len(queries) * CELL


def _cells(pattern: np.ndarray, x: float, y: float, size: float) -> list[str]:
    """A background, and a rectangle for each run of equal cells that differ from it."""
    rows, columns = pattern.shape
    parts = [f"<rect x='{x}' y='{y}' width='{columns * size:.1f}' height='{rows * size:.1f}' fill='{_colour(0)}'/>"]
    levels = np.rint(np.sqrt(pattern.clip(0, 1)) * 15).astype(int)
    for i, row in enumerate(levels):
        start = 0
        for j in range(1, columns + 1):
            if j < columns and row[j] == row[start]:
                continue
            if row[start]:
                parts.append(
                    f"<rect x='{x + start * size:.1f}' y='{y + i * size:.1f}' width='{(j - start) * size:.1f}' "
                    f"height='{size:.1f}' fill='{_colour(row[start] / 15)}'/>"
                )
            start = j
    return parts


def _colour(fraction: float) -> str:
    low, high, part = (LOW, MIDDLE, fraction * 2) if fraction < 0.5 else (MIDDLE, HIGH, fraction * 2 - 1)
    return "#" + "".join(f"{round(a + (b - a) * part):02x}" for a, b in zip(low, high, strict=True))
