"""The terminal's heat map of one attention: shaded cells with query tokens on the left and key tokens on top.

A cell is readable without colour: its shading has five steps.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from qkv.inside.look.masks import REASONS
from qkv.page import unpack
from qkv.render.formatting import token_label

SHADES = " ░▒▓█"
LIMITS = (0.02, 0.1, 0.3, 0.6)
CELL_WIDTH = 2
MAX_LISTED = 8


def print_heatmap(document: Mapping[str, Any], console: Console) -> None:
    """Print the heat map of the last layer: of its cross-attention if it has one, else of its self-attention.

    If the document has a single head, the map shows this head, else the mean of the heads.
    """
    attention = document["attention"][-1]
    layer = attention["layers"][-1]
    pattern = unpack(attention["patterns"][-1]).mean(axis=0)  # (queries, keys)
    heads = attention["heads"]
    which = f"head {heads[0]}" if len(heads) == 1 else f"mean of {len(heads)} heads"
    console.print(Text(f"{attention['title']}, layer {layer}, {which}", style="bold"))
    queries = document["sequences"][attention["queries"]]["texts"]
    keys = document["sequences"][attention["keys"]]["texts"]
    for line in draw_heatmap(pattern, queries, keys, console.width):
        console.print(line, no_wrap=True, overflow="crop", crop=True)


def print_masks(document: Mapping[str, Any], console: Console) -> None:
    """Print how many cells of each mask are visible, why the others are masked, and the fully masked queries."""
    for attention in document["attention"]:
        queries = document["sequences"][attention["queries"]]["texts"]
        for mask in attention["masks"]:
            reasons = unpack(mask["reasons"])
            layers = f", layers {', '.join(map(str, mask['layers']))}" if len(attention["masks"]) > 1 else ""
            console.print(Text(f"{attention['title']}{layers}", style="bold"))
            counts = [f"{(reasons == number).sum():,} {name}" for number, name in enumerate(REASONS)]
            shown = [count for count in counts if not count.startswith("0 ")]
            console.print(Text(f"{reasons.shape[0]} queries × {reasons.shape[1]} keys: {', '.join(shown)}"))
            if mask["padding_queries"]:
                console.print(Text(f"{len(mask['padding_queries'])} padding positions attend to no key"))
            padding = set(mask["padding_queries"])
            masked = [f"{token_label(queries[i])} ({i})" for i in mask["fully_masked_queries"] if i not in padding]
            if masked:
                listed = ", ".join(masked[:MAX_LISTED]) + (", …" if len(masked) > MAX_LISTED else "")
                console.print(Text(f"{len(masked)} tokens attend to no key: {listed}", style="yellow"))


def draw_heatmap(pattern: np.ndarray, queries: list[str], keys: list[str], width: int) -> list[Text]:
    """The lines of a heat map that fits into `width` columns. Keys that do not fit are counted in a last line."""
    labels = [token_label(text) for text in queries]
    margin = max(map(cell_len, labels)) + 1
    num_keys = max(1, min(len(keys), (width - margin) // CELL_WIDTH))
    lines = [
        _key_line(keys[:num_keys], margin, row) for row in range(max(len(token_label(key)) for key in keys[:num_keys]))
    ]
    for label, row in zip(labels, pattern, strict=True):
        line = Text(" " * (margin - 1 - cell_len(label)) + label + " ")
        for weight in row[:num_keys]:
            line.append(SHADES[sum(weight > limit for limit in LIMITS)] * CELL_WIDTH, style="blue")
        lines.append(line)
    legend = "  ".join(f"{shade * 2} > {limit}" for shade, limit in zip(SHADES[1:], LIMITS, strict=True))
    lines.append(Text(f"{'':{margin}}weight  {legend}", style="dim"))
    if num_keys < len(keys):
        lines.append(Text(f"{len(keys) - num_keys} of {len(keys)} keys do not fit; the page has them all", style="dim"))
    return lines


def _key_line(keys: list[str], margin: int, row: int) -> Text:
    """One line of the key labels, which run from top to bottom."""
    labels = [token_label(key) for key in keys]
    height = max(map(len, labels))
    letters = [label.rjust(height)[row] for label in labels]
    return Text(" " * margin + "".join(set_cell_size(letter, CELL_WIDTH) for letter in letters), style="dim")
