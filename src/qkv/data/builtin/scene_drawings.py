"""Drawings: one or two groups of equal shapes, in an arrangement that the caption fully describes.

a red circle
three blue squares
a red circle above two blue squares
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from qkv.data.builtin.scene import COLOURS, SHAPES, Draw
from qkv.images.shapes import Shape, draw_shapes, write_png

SIDE = 32  # pixels
RADIUS, STEP = 0.13, 0.3  # radius of a shape, and distance of two shapes of a group; fractions of the side
COUNTS = {1: ("a", "one"), 2: ("two",), 3: ("three",)}
RELATIONS = {
    "above": ("above", "over"),
    "below": ("below", "under"),
    "left of": ("left of", "to the left of"),
    "right of": ("right of", "to the right of"),
}
"""The relation of the first group to the second, and the words for it."""
MAX_IN_A_ROW = 3
WHITE = (255, 255, 255)


class Group(NamedTuple):
    """Equal shapes side by side."""

    number: int
    colour: str
    shape: str


class ShapeDrawing(NamedTuple):
    """One or two groups; `relation` is empty for one."""

    groups: tuple[Group, ...]
    relation: str = ""


def draw_drawing(draw: Draw) -> ShapeDrawing:
    """A random drawing. Groups side by side have three shapes together."""
    if not draw.below(4):
        return ShapeDrawing((draw_group(draw, MAX_IN_A_ROW),))
    relation = draw.choose(tuple(RELATIONS))
    if relation in ("above", "below"):
        return ShapeDrawing((draw_group(draw, MAX_IN_A_ROW), draw_group(draw, MAX_IN_A_ROW)), relation)
    first = draw_group(draw, MAX_IN_A_ROW - 1)
    return ShapeDrawing((first, draw_group(draw, MAX_IN_A_ROW - first.number)), relation)


def draw_group(draw: Draw, max_count: int) -> Group:
    """A random group of at most `max_count` shapes."""
    return Group(1 + draw.below(max_count), draw.choose(tuple(COLOURS)), draw.choose(SHAPES))


def plural(shape: str) -> str:
    """The plural of a shape.

    >>> plural("circle"), plural("cross")
    ('circles', 'crosses')
    """
    return f"{shape}es" if shape.endswith("s") else f"{shape}s"


def write_group(group: Group, draw: Draw) -> str:
    """A group in words."""
    number = draw.choose(COUNTS[group.number])
    if number == "a" and group.colour[0] in "aeiou":
        number = "an"
    return f"{number} {group.colour} {group.shape if group.number == 1 else plural(group.shape)}"


def write_drawing(drawing: ShapeDrawing, draw: Draw) -> str:
    """A caption of a drawing."""
    words = [write_group(group, draw) for group in drawing.groups]
    return f" {draw.choose(RELATIONS[drawing.relation])} ".join(words) if drawing.relation else words[0]


GROUP = re.compile(
    rf"\b(an?|one|two|three) ({'|'.join(COLOURS)}) ({'|'.join(f'{plural(one)}|{one}' for one in SHAPES)})\b"
)


def parse_drawing(text: str) -> ShapeDrawing | None:
    """The drawing that a caption describes; None if it describes none.

    >>> parse_drawing("two red crosses over a blue circle").relation
    'above'
    """
    found = list(GROUP.finditer(text))
    if not 1 <= len(found) <= 2:
        return None
    numbers = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3}
    shapes = {name: one for one in SHAPES for name in (one, plural(one))}
    groups = tuple(Group(numbers[one[1]], one[2], shapes[one[3]]) for one in found)
    if len(groups) == 1:
        return ShapeDrawing(groups)
    between = text[found[0].end() : found[1].start()].strip()
    relation = next((name for name, words in RELATIONS.items() if between in words), None)
    return None if relation is None else ShapeDrawing(groups, relation)


def place_groups(drawing: ShapeDrawing) -> list[tuple[Group, float, float]]:
    """Each shape of a drawing: its group, and the middle x, y of the shape."""
    first = drawing.groups[0]
    if not drawing.relation:
        return place_row([first], 0.5)
    second = drawing.groups[1]
    if drawing.relation in ("above", "below"):
        heights = (0.5 - STEP / 2, 0.5 + STEP / 2)
        upper, lower = heights if drawing.relation == "above" else heights[::-1]
        return [*place_row([first], upper), *place_row([second], lower)]
    return place_row([first, second] if drawing.relation == "left of" else [second, first], 0.5)


def place_row(groups: Sequence[Group], y: float) -> list[tuple[Group, float, float]]:
    """Groups side by side, in the middle of the picture."""
    shapes = [group for group in groups for _ in range(group.number)]
    return [(group, 0.5 + STEP * (i - (len(shapes) - 1) / 2), y) for i, group in enumerate(shapes)]


def render_drawing(drawing: ShapeDrawing) -> bytes:
    """A picture as the bytes of a PNG file."""
    shapes = [Shape(one.shape, COLOURS[one.colour], x, y, RADIUS) for one, x, y in place_groups(drawing)]
    return write_png(draw_shapes(shapes, SIDE, WHITE))
