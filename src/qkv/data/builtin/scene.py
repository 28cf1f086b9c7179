"""A scene: coloured objects in the cells of a grid. Captions describe it in several wordings, and can be parsed again.

a large red circle left of a small blue square above a small green cross
there is a small green cross which is below a small blue square which is right of a big red circle
"""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

from qkv.data.builtin.dataset import splitmix64
from qkv.images.shapes import SHAPES as DISTANCES

T = TypeVar("T")
SHAPES = tuple(DISTANCES)
COLOURS = {
    "red": (220, 40, 40),
    "green": (40, 160, 60),
    "blue": (50, 80, 220),
    "yellow": (240, 210, 40),
    "purple": (150, 60, 180),
    "orange": (245, 130, 30),
    "cyan": (60, 200, 215),
    "grey": (120, 120, 120),
}
SIZES = {"small": ("small", "little"), "large": ("large", "big")}
"""The size of an object, and the words for it."""
GRID = 3


class Thing(NamedTuple):
    """An object of a scene."""

    size: str
    colour: str
    shape: str
    row: int = 0
    column: int = 0

    @property
    def attributes(self) -> tuple[str, str, str]:
        """The size, the colour and the shape."""
        return self[:3]


Scene = tuple[Thing, ...]
"""Objects in reading order: by row, then by column."""


class Draw:
    """A sequence of random numbers that depends only on its seed, and is the same on every machine."""

    def __init__(self, number: int) -> None:
        self.state = number

    def below(self, limit: int) -> int:
        """The next number, 0 … limit − 1."""
        self.state = splitmix64(self.state)
        return (self.state >> 16) % limit

    def choose(self, values: Sequence[T]) -> T:
        """One of the values."""
        return values[self.below(len(values))]

    def uniform(self, low: float, high: float) -> float:
        """A number between two others."""
        return low + (high - low) * self.below(1 << 24) / (1 << 24)


# ── Captions ─────────────────────────────────────────────────────────────────────────────────────────────────────

OPPOSITES = {"left": "right", "right": "left", "above": "below", "below": "above"}


def find_relation(first: Thing, second: Thing) -> tuple[str, ...]:
    """The position of the first of two objects relative to the second: ("above",), ("left",), ("above", "left"), …"""
    vertical = () if first.row == second.row else ("above",) if first.row < second.row else ("below",)
    horizontal = () if first.column == second.column else ("left",) if first.column < second.column else ("right",)
    return vertical + horizontal


def write_relation(relation: Sequence[str], draw: Draw) -> str:
    """A relation in words: "above", "to the left of", "below and right of"."""
    to_the = draw.choose(("", "to the "))
    words = [f"{to_the}{word} of" if word in ("left", "right") else word for word in relation]
    return " and ".join(words)


def write_thing(thing: Thing, draw: Draw) -> str:
    """An object in words."""
    return f"a {draw.choose(SIZES[thing.size])} {thing.colour} {thing.shape}"


def write_caption(scene: Scene, draw: Draw) -> str:
    """A caption: the objects in reading order or backwards, each with its relation to the next."""
    things = scene if draw.below(2) else scene[::-1]
    start, link = draw.choose((("", ""), ("there is ", "which is "), ("i see ", "")))
    text = start + write_thing(things[0], draw)
    for first, second in pairwise(things):
        text += f" {link}{write_relation(find_relation(first, second), draw)} {write_thing(second, draw)}"
    return text


WORDS_OF_SIZE = {word: size for size, words in SIZES.items() for word in words}
THING = re.compile(rf"\ban? ({'|'.join(WORDS_OF_SIZE)}) ({'|'.join(COLOURS)}) ({'|'.join(SHAPES)})\b")
RELATION = re.compile(r"\b(left|right|above|below)\b")
Fact = tuple[tuple[str, ...], ...]


def parse_caption(text: str) -> Counter[Fact]:
    """Parse a caption in any wording: its objects, and the relation of each to the next. Empty if nothing.

    >>> parse_caption("a small red circle above a big blue cross") == parse_caption(
    ...     "i see a large blue cross below a little red circle")
    True
    """
    found = list(THING.finditer(text))
    things = [(WORDS_OF_SIZE[one[1]], one[2], one[3]) for one in found]
    facts: Counter[Fact] = Counter((thing,) for thing in things)
    for number in range(len(found) - 1):
        words = RELATION.findall(text[found[number].end() : found[number + 1].start()])
        first, second = things[number], things[number + 1]
        if "below" in words or words == ["right"]:
            first, second, words = second, first, [OPPOSITES[word] for word in words]
        facts[first, tuple(sorted(words)), second] += 1
    return facts
