"""Format numbers, texts and tables for a terminal.

Users' texts go through `console.escape_controls`, so that their control characters are visible and have no effect.
"""

import math
from collections.abc import Sequence

from rich.table import Table

from qkv.render.console import escape_controls
from qkv.tasks.results import cut_text

BLOCKS = "▁▂▃▄▅▆▇█"


def token_label(token: str, max_chars: int = 10) -> str:
    """A short label for a token, in which spaces are visible.

    >>> token_label(" the"), token_label("")
    ('␣the', '∅')
    """
    return cut_text(escape_controls(token).replace(" ", "␣"), max_chars) or "∅"


def plain_table(*headings: str, header_style: str = "dim") -> Table:
    """A table without lines. Columns with a heading, except the first, are right-aligned."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style=header_style, show_header=any(headings))
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number and heading else "left")
    return table


def format_count(number: float, unit: str = "") -> str:
    """A large number, rounded, with a word (million) or, if it has a unit, a prefix (MB).

    >>> format_count(115_970_408_448), format_count(124_439_808), format_count(1_536, "B")
    ('116.0 billion', '124.4 million', '1,536 B')
    """
    if unit:
        for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
            if number >= size:
                scale = 1e3 if prefix == "k" else size
                return f"{number / scale:,.1f} {prefix}{unit}"
        return f"{number:,.0f} {unit}"
    for size, name in ((1e9, "billion"), (1e6, "million")):
        if number >= size:
            return f"{number / size:,.1f} {name}"
    return f"{number:,.0f}"


def format_duration(seconds: float) -> str:
    """A duration as hours, minutes and seconds.

    >>> format_duration(52), format_duration(3723), format_duration(200_000)
    ('0:52', '1:02:03', '2 days 7:33:20')
    """
    minutes, rest = divmod(round(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if not (days or hours):
        return f"{minutes}:{rest:02}"
    time = f"{hours}:{minutes:02}:{rest:02}"
    return f"{days} day{'s' if days > 1 else ''} {time}" if days else time


def format_number(value: float) -> str:
    """A number with four significant digits.

    >>> format_number(0.2143456), format_number(41.0249), format_number(1.0), format_number(float("nan"))
    ('0.2143', '41.02', '1.000', 'nan')
    """
    if not math.isfinite(value):
        return str(value)
    digits = 3 - math.floor(math.log10(abs(value))) if value else 3
    return f"{value:.{min(max(digits, 0), 4)}f}" if abs(value) >= 1e-3 or not value else f"{value:.2e}"


def format_percent(fraction: float) -> str:
    """A fraction as a percentage, limited to 0 … 100.

    >>> format_percent(0.678), format_percent(1.02)
    ('68 %', '100 %')
    """
    return f"{min(max(fraction, 0.0), 1.0) * 100:.0f} %"


class DownsampledCurve:
    """A growing curve of fewer than `max_points` points. When it is full, each pair of neighbours is averaged.

    >>> curve = DownsampledCurve(max_points=4)
    >>> for value in range(8):
    ...     curve.add(value)
    >>> curve.points
    [1.5, 5.5]
    """

    def __init__(self, max_points: int = 512) -> None:
        self.max_points, self.stride = max_points, 1
        self.points: list[float] = []
        self._pending: list[float] = []

    def add(self, value: float) -> None:
        """Add a value. A value that is not finite is ignored."""
        if not math.isfinite(value):
            return
        self._pending.append(value)
        if len(self._pending) < self.stride:
            return
        self.points.append(sum(self._pending) / self.stride)
        self._pending.clear()
        if len(self.points) == self.max_points:
            self.points = [(a + b) / 2 for a, b in zip(self.points[::2], self.points[1::2], strict=True)]
            self.stride *= 2


def sparkline(values: Sequence[float], width: int, *, log: bool = False) -> str:
    """A curve as one line of at most `width` block characters, scaled between its minimum and maximum.

    >>> sparkline([5, 4, 3, 2, 1, 1, 1, 1], 8)
    '█▆▅▃▁▁▁▁'

    With `log`, the scale is logarithmic, which suits a loss, and values <= 0 are left out. Values that are not finite
    are left out.
    """
    kept = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
    if len(kept) < 2:
        return ""
    width = min(width, len(kept))
    bins = [kept[i * len(kept) // width : (i + 1) * len(kept) // width] for i in range(width)]
    means = [sum(values) / len(values) for values in bins]
    heights = [math.log(mean) for mean in means] if log else means
    low, high = min(heights), max(heights)
    if high == low:
        return BLOCKS[0] * width
    return "".join(BLOCKS[round((height - low) / (high - low) * (len(BLOCKS) - 1))] for height in heights)
