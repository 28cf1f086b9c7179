"""Parts of small SVG charts, as strings: a document, scales with round ticks, axes, lines, dots and legends.

Every picture has a white background, so that it looks the same on light and dark pages.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

FONT = "font-family='system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif'"
INK, FAINT, GRID, PAPER = "#1f2937", "#6b7280", "#e5e7eb", "#ffffff"
COLOURS = ("#2563eb", "#d97706", "#059669", "#7c3aed", "#dc2626", "#0891b2")
DASHED = "stroke-width='2' stroke-dasharray='5 4'"
LETTER_WIDTH = 7.2  # average width of a letter in a legend, in pixels
LEGEND_GAP = 24

Points = list[tuple[float, float]]


def document(width: int, height: int, label: str, parts: Iterable[str]) -> str:
    """Join parts to a picture. Screen readers read `label`."""
    label = escape(label, quote=True)
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' role='img' aria-label='{label}'>"
    background = f"<rect width='{width}' height='{height}' fill='{PAPER}'/>"
    return "\n".join([head, background, *(part for part in parts if part), "</svg>\n"])


def text(
    x: float, y: float, words: str, size: int, colour: str = INK, anchor: str = "middle", weight: int = 400
) -> str:
    """A line of text."""
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' {FONT} font-size='{size}' font-weight='{weight}' fill='{colour}' "
        f"text-anchor='{anchor}'>{escape(words)}</text>"
    )


class Scale:
    """Maps numbers to pixels, linearly or logarithmically, with round numbers at its ticks.

    The scale reaches from the smallest to the largest of `values`. If they are all equal, `widen_range` gives the
    range. With `whole`, ticks are at whole numbers only. `max_ticks` is the approximate number of ticks. `start` and
    `end` are in pixels.
    """

    def __init__(
        self,
        values: Iterable[float],
        start: float,
        end: float,
        *,
        log: bool = False,
        whole: bool = False,
        max_ticks: int = 6,
    ) -> None:
        values = list(values)
        self.low, self.high, self.log, self.whole, self.max_ticks = min(values), max(values), log, whole, max_ticks
        if self.high - self.low <= max(abs(self.high) * 1e-12, 1e-300):
            self.low, self.high = widen_range(self.low, log=log)
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        fraction = ((math.log(value) if self.log else value) - low) / (high - low)
        return self.start + fraction * (self.end - self.start)

    def rounded(self) -> "Scale":
        """The scale, extended at both ends to the next tick."""
        ticks = list(self._nearby_ticks())
        below, above = [t for t in ticks if t <= self.low], [t for t in ticks if t >= self.high]
        ends = [below[-1], above[0]]
        return Scale(ends, self.start, self.end, log=self.log, whole=self.whole, max_ticks=self.max_ticks)

    def ticks(self) -> list[float]:
        """The round numbers inside the scale."""
        below, above = (self.low, self.high) if self.log else (self.high - self.low,) * 2
        low, high = self.low - 1e-9 * below, self.high + 1e-9 * above
        return [tick for tick in self._nearby_ticks() if low <= tick <= high]

    def _nearby_ticks(self) -> Iterator[float]:
        """The round numbers inside the scale, and at least one below and one above it."""
        if self.log:
            for power in range(math.floor(math.log10(self.low)) - 1, math.ceil(math.log10(self.high)) + 2):
                yield from (digit * 10.0**power for digit in (1, 2, 5))
            return
        raw = (self.high - self.low) / self.max_ticks
        raw = max(raw, 1.0) if self.whole else raw
        size = 10.0 ** math.floor(math.log10(raw))
        digits = (1, 2, 5, 10) if self.whole and size < 10 else (1, 2, 2.5, 5, 10)
        stride = next(size * digit for digit in digits if size * digit >= raw)
        for n in range(math.floor(self.low / stride) - 1, math.ceil(self.high / stride) + 2):
            yield n * stride


def widen_range(value: float, *, log: bool = False) -> tuple[float, float]:
    """The range of a scale whose values are all equal: a factor of 10 on both sides of a logarithmic scale.

    A linear scale is 0 … 1 for a value in that range, else it reaches from 0 to twice the value.

    >>> widen_range(0.25), widen_range(20.0), widen_range(20.0, log=True)
    ((0.0, 1.0), (0.0, 40.0), (2.0, 200.0))
    """
    if log:
        return value / 10, value * 10
    return (0.0, 1.0) if 0 <= value <= 1 else (min(2 * value, 0.0), max(2 * value, 0.0))


@dataclass(frozen=True)
class Axes:
    """A pair of axes: the horizontal scale from left to right, the vertical one from bottom to top."""

    x: Scale
    y: Scale

    def frame(
        self,
        title: str,
        caption: str,
        label: Callable[[float], str],
        x_ticks: Sequence[float] | None = None,
        y_ticks: Sequence[float] | None = None,
    ) -> list[str]:
        """The title, grid lines and ticks with labels. The x axis has labels only if it has a caption."""
        left, right, bottom, top = self.x.start, self.x.end, self.y.start, self.y.end
        parts = [text(left, top - 12, title, 13, anchor="start", weight=600)]
        for tick in self.y.ticks() if y_ticks is None else y_ticks:
            parts.append(f"<path d='M{left} {self.y(tick):.1f} H{right}' stroke='{GRID}'/>")
            parts.append(text(left - 8, self.y(tick) + 4, label(tick), 12, FAINT, "end"))
        for tick in self.x.ticks() if x_ticks is None else x_ticks:
            parts.append(f"<path d='M{self.x(tick):.1f} {bottom} v5' stroke='{FAINT}'/>")
            if caption:
                parts.append(text(self.x(tick), bottom + 20, label(tick), 12, FAINT))
        parts.append(f"<path d='M{left} {bottom} H{right}' stroke='{FAINT}'/>")
        return [*parts, text((left + right) / 2, bottom + 40, caption, 12, FAINT)] if caption else parts

    def line(self, points: Points, style: str) -> str:
        """A line through the points, with a gap at each value that is not finite."""
        command, path = "M", []
        for x, y in points:
            if not math.isfinite(y):
                command = "M"
                continue
            path.append(f"{command}{self.x(x):.1f} {self.y(y):.1f}")
            command = "L"
        return f"<path d='{' '.join(path)}' fill='none' stroke-linejoin='round' {style}/>" if path else ""

    def dots(self, points: Points, style: str) -> list[str]:
        """A circle at each point with a finite value."""
        finite = [(self.x(x), self.y(y)) for x, y in points if math.isfinite(y)]
        return [f"<circle cx='{x:.1f}' cy='{y:.1f}' {style}/>" for x, y in finite]


@dataclass(frozen=True)
class LegendEntry:
    """A name in a legend. `mark(x, y)` draws its symbol, which is `width` pixels wide. A note has no symbol."""

    name: str
    mark: Callable[[float, float], str] | None = None
    width: int = 0


def line_mark(style: str, width: int = 18) -> Callable[[float, float], str]:
    """The symbol of a line in a legend."""
    return lambda x, y: f"<path d='M{x:.1f} {y - 4:.1f} h{width}' {style}/>"


def dot_mark(colour: str) -> Callable[[float, float], str]:
    """The symbol of dots in a legend."""
    return lambda x, y: f"<circle cx='{x + 5:.1f}' cy='{y - 4:.1f}' r='5' fill='{colour}'/>"


def legend(entries: Iterable[LegendEntry], left: float, right: float, y: int) -> tuple[list[str], int]:
    """The parts of a legend, wrapped between `left` and `right`, and the y coordinate of its last line."""
    parts, x = [], left
    for entry in entries:
        width = entry.width + len(entry.name) * LETTER_WIDTH
        if x > left and x + width > right:
            x, y = left, y + 20
        if entry.mark is not None:
            parts.append(entry.mark(x, y))
        parts.append(text(x + entry.width, y, entry.name, 13, INK if entry.mark else FAINT, "start"))
        x += width + LEGEND_GAP
    return parts, y
