"""The picture of a claim: one panel for each of its charts, with 95 % confidence intervals over seeds."""

import math
from collections.abc import Sequence

from qkv.render.svg import (
    COLOURS,
    FAINT,
    Axes,
    LegendEntry,
    Scale,
    document,
    dot_mark,
    legend,
    line_mark,
    text,
)
from qkv_lab.claim import Chart, Claim
from qkv_lab.table import Table

WIDTH, LEFT, RIGHT = 760, 72, 28
PANEL_HEIGHT, PANEL_GAP = 250, 92
DASHES = ("", "6 3", "2 3", "8 3 2 3", "1 2", "10 4")
"""Lines differ in their dashes as well as in their colours, so that a picture can be read without colour."""


def draw_claim(claim: Claim, table: Table) -> str:
    """The picture of a claim, as SVG."""
    parts, y = [text(LEFT, 30, claim.title, 16, anchor="start", weight=600)], 44
    for chart in claim.charts_of(table):
        panel, y = draw_panel(chart, table, y)
        parts += panel
    return document(WIDTH, y + 8, f"{claim.title}. {claim.question}", parts)


def draw_panel(chart: Chart, table: Table, y: int) -> tuple[list[str], int]:
    """A panel whose upper edge is at y, and the y coordinate of its lower edge."""
    names = table.series(chart.measure)
    has_names = any(isinstance(x, str) for x in table.xs(chart.measure))
    marks = [dot_mark(colour(i)) if has_names else line_mark(line_style(i)) for i in range(len(names))]
    entries = [LegendEntry(name, mark, 16 if has_names else 24) for name, mark in zip(names, marks, strict=True)]
    parts, y = legend(entries if len(names) > 1 else [], LEFT, WIDTH - RIGHT, y + 18) if len(names) > 1 else ([], y)
    top, bottom = y + 40, y + 40 + PANEL_HEIGHT
    draw = draw_bars if has_names else draw_lines
    return [*parts, *draw(chart, table, names, top, bottom)], bottom + PANEL_GAP - 28


def draw_lines(chart: Chart, table: Table, names: Sequence[str], top: int, bottom: int) -> list[str]:
    """Lines over numbers, with error bars."""
    xs = [float(x) for x in table.xs(chart.measure)]
    x_scale = Scale(xs, LEFT, WIDTH - RIGHT, log=chart.log_x, whole=chart.integer_x)
    axes = Axes(x_scale, value_scale(chart, table, names, bottom, top))
    x_ticks = xs if len(xs) <= 12 else thin_ticks(x_scale.ticks())
    parts = axes.frame(chart.title or chart.measure, chart.x, format_tick, x_ticks, thin_ticks(axes.y.ticks()))
    for i, name in enumerate(names):
        curve = [(float(x), y) for x, y in sorted(table.curve(chart.measure, name).items(), key=lambda p: float(p[0]))]
        curve = [(x, y if not chart.log_y or y > 0 else math.nan) for x, y in curve]
        parts.append(axes.line(curve, line_style(i)))
        parts += axes.dots(curve, f"r='3' fill='{colour(i)}'")
        for x, y in curve:
            half = table.half_interval(chart.measure, name, x if x in table.curve(chart.measure, name) else int(x))
            parts.append(error_bar(axes, axes.x(x), y, half, colour(i)))
    return parts


def draw_bars(chart: Chart, table: Table, names: Sequence[str], top: int, bottom: int) -> list[str]:
    """Groups of bars, one group for each name on the x axis, with error bars."""
    groups = table.xs(chart.measure)
    axes = Axes(Scale([0.0, float(len(groups))], LEFT, WIDTH - RIGHT), value_scale(chart, table, names, bottom, top))
    parts = axes.frame(chart.title or chart.measure, "", format_tick, [], thin_ticks(axes.y.ticks()))
    slot = (axes.x.end - axes.x.start) / len(groups)
    width = min(0.8 * slot / len(names), 60.0)
    low = min(max(0.0, axes.y.low), axes.y.high) if not chart.log_y else axes.y.low
    for g, group in enumerate(groups):
        middle = axes.x.start + (g + 0.5) * slot
        for i, name in enumerate(names):
            if not table.has(chart.measure, name, group):
                continue
            value, half = table.mean(chart.measure, name, group), table.half_interval(chart.measure, name, group)
            x = middle + (i - len(names) / 2) * width
            parts += [bar(axes, x, width, low, value, colour(i)), error_bar(axes, x + width / 2, value, half, FAINT)]
        parts += wrap_label(str(group), middle, bottom + 18, slot)
    return [*parts, text((axes.x.start + axes.x.end) / 2, bottom + 52, chart.x, 12, FAINT)]


def value_scale(chart: Chart, table: Table, names: Sequence[str], bottom: int, top: int) -> Scale:
    """The y axis. Bars start at 0; lines have a scale that fits them. Values that are not finite are left out.

    If no mean is negative, an interval does not extend the axis below 0: the quantity is a count, a fraction or a norm.
    """
    if chart.is_fraction:
        return Scale([0.0, 1.0], bottom, top)
    values: list[float] = []
    lowest = min((mean for name in names for mean in table.curve(chart.measure, name).values()), default=0.0)
    for name in names:
        for x, mean in table.curve(chart.measure, name).items():
            half = table.half_interval(chart.measure, name, x)
            low = max(mean - half, 0.0) if lowest >= 0 else mean - half
            values += [mean, low, mean + half] if not chart.log_y or low > 0 else [mean]
    values = [value for value in values if math.isfinite(value) and (value > 0 or not chart.log_y)] or [1.0, 10.0]
    if not chart.log_y and any(isinstance(x, str) for x in table.xs(chart.measure)):
        values.append(0.0)
    return Scale(values, bottom, top, log=chart.log_y).rounded()


def bar(axes: Axes, x: float, width: float, low: float, value: float, fill: str) -> str:
    """A bar from `low` to a value, or a cross if the value is not finite."""
    if not math.isfinite(value) or (axes.y.log and value <= 0):
        return text(x + width / 2, axes.y(low) - 6, "×", 16, fill)
    a, b = sorted((axes.y(low), axes.y(value)))
    return f"<rect x='{x:.1f}' y='{a:.1f}' width='{width - 2:.1f}' height='{max(b - a, 0.5):.1f}' fill='{fill}'/>"


def error_bar(axes: Axes, x: float, value: float, half: float, stroke: str) -> str:
    """A vertical line over a confidence interval, cut at the axes. On a log axis it has no lower half below 0."""
    low, high = value - half, min(value + half, axes.y.high)
    if not half or not math.isfinite(value) or not math.isfinite(half):
        return ""
    low = value if axes.y.log and low <= 0 else max(low, axes.y.low)
    return f"<path d='M{x:.1f} {axes.y(low):.1f} V{axes.y(high):.1f}' stroke='{stroke}' stroke-width='1.5'/>"


def wrap_label(label: str, x: float, y: float, width: float) -> list[str]:
    """A label of at most two lines that fits under its bars."""
    words, lines = label.split(), [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + len(word) + 1 > width / 6.2 and len(lines) < 2:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return [text(x, y + 14 * i, line, 11, FAINT) for i, line in enumerate(lines)]


def colour(i: int) -> str:
    """The colour of series i."""
    return COLOURS[i % len(COLOURS)]


def line_style(i: int) -> str:
    """The colour and the dashes of series i."""
    dashes = DASHES[i % len(DASHES)]
    return f"stroke='{colour(i)}' stroke-width='2'" + (f" stroke-dasharray='{dashes}'" if dashes else "")


def thin_ticks(ticks: Sequence[float], max_ticks: int = 10) -> list[float]:
    """At most `max_ticks` of the ticks. A long logarithmic axis keeps powers of ten.

    >>> thin_ticks([digit * 10.0**power for power in range(4) for digit in (1, 2, 5)])
    [1.0, 10.0, 100.0, 1000.0]
    """
    powers = [tick for tick in ticks if tick > 0 and math.log10(tick).is_integer()]
    if len(ticks) > max_ticks and len(powers) > 2:
        ticks = powers
    return list(ticks[:: math.ceil(len(ticks) / max_ticks)]) if ticks else []


def format_tick(value: float) -> str:
    """The label of a tick.

    >>> format_tick(4096), format_tick(0.25), format_tick(2e-7), format_tick(3e9)
    ('4,096', '0.25', '2e-07', '3e+09')
    """
    if value == int(value) and abs(value) < 1e7:
        return f"{int(value):,}"
    return f"{value:.3g}" if 1e-3 <= abs(value) < 1e7 else f"{value:.0e}"
