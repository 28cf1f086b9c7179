"""Numbers as a person reads them in passing: four digits, a clock, a curve in one line."""

import math
from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"


def format_duration(seconds: float) -> str:
    """
    >>> format_duration(52), format_duration(3723), format_duration(200_000)
    ('0:52', '1:02:03', '2 days 7:33:20')
    """
    minutes, rest = divmod(round(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if not (days or hours):
        return f"{minutes}:{rest:02}"
    said = f"{hours}:{minutes:02}:{rest:02}"
    return f"{days} day{'s' if days > 1 else ''} {said}" if days else said


def format_number(value: float) -> str:
    """Four digits, whatever the size.

    >>> format_number(0.2143456), format_number(41.0249), format_number(1.0), format_number(float("nan"))
    ('0.2143', '41.02', '1.000', 'nan')
    """
    if not math.isfinite(value):
        return str(value)
    digits = 3 - math.floor(math.log10(abs(value))) if value else 3
    return f"{value:.{min(max(digits, 0), 4)}f}" if abs(value) >= 1e-3 or not value else f"{value:.2e}"


def format_percent(fraction: float) -> str:
    """
    >>> format_percent(0.678), format_percent(1.02)
    ('68 %', '100 %')
    """
    return f"{min(max(fraction, 0.0), 1.0) * 100:.0f} %"


class DownsampledCurve:
    """A curve of any length in a few hundred points: when they grow too many, neighbours become their mean.

    >>> curve = DownsampledCurve(max_points=4)
    >>> for value in range(8):
    ...     curve.add(value)
    >>> curve.points
    [1.5, 5.5]
    """

    def __init__(self, max_points: int = 512) -> None:
        self.max_points, self.stride = max_points, 1
        self.points: list[float] = []
        self._waiting: list[float] = []

    def add(self, value: float) -> None:
        """One more value; what is no number is left out."""
        if not math.isfinite(value):
            return
        self._waiting.append(value)
        if len(self._waiting) < self.stride:
            return
        self.points.append(sum(self._waiting) / self.stride)
        self._waiting.clear()
        if len(self.points) == self.max_points:
            self.points = [(a + b) / 2 for a, b in zip(self.points[::2], self.points[1::2], strict=True)]
            self.stride *= 2


def sparkline(values: Sequence[float], width: int, *, log: bool = False) -> str:
    """A curve in one line of text: the whole of it, drawn to at most `width` blocks between its least and most.

    >>> sparkline([5, 4, 3, 2, 1, 1, 1, 1], 8)
    '█▆▅▃▁▁▁▁'

    With `log` by the logarithm, as suits a loss; what is not above 0 is then left out, as is what is no number.
    """
    kept = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
    if len(kept) < 2:
        return ""
    wide = min(width, len(kept))
    bins = [kept[i * len(kept) // wide : (i + 1) * len(kept) // wide] for i in range(wide)]
    means = [sum(one) / len(one) for one in bins]
    heights = [math.log(mean) for mean in means] if log else means
    least, most = min(heights), max(heights)
    if most == least:
        return BLOCKS[0] * wide
    return "".join(BLOCKS[round((height - least) / (most - least) * (len(BLOCKS) - 1))] for height in heights)
