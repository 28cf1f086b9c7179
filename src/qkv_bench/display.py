"""The output of `qkv bench`: measured throughput against the hardware's limits, as a table and as a picture.

The picture has two panels. The left one is a roofline plot: the maximum FLOP/s of a forward pass over its arithmetic
intensity (FLOPs per byte read). The roofline rises where memory bandwidth is the limit, and is flat where compute is
the limit. The right panel shows tokens per second over the batch size, with the limit as a dashed line.
"""

import math
from collections.abc import Sequence
from pathlib import Path

from rich.bar import Bar
from rich.console import Console
from rich.table import Table
from rich.text import Text

from qkv.files import save_text
from qkv.render.console import escape_controls
from qkv.render.formatting import format_count, plain_table
from qkv.render.info import FAMILY_NAMES
from qkv.render.svg import (
    COLOURS,
    DASHED,
    FAINT,
    PAPER,
    Axes,
    LegendEntry,
    Scale,
    document,
    dot_mark,
    legend,
    line_mark,
    text,
)
from qkv_bench.throughput import BenchKind, BenchPoint, BenchResult

COLOUR_OF_KIND: dict[BenchKind, str] = {
    "prefill": COLOURS[2],
    "decode": COLOURS[0],
    "engine": COLOURS[3],
    "search": COLOURS[1],
    "encode": COLOURS[0],
}


def print_bench(result: BenchResult, console: Console) -> None:
    """Print the table of `qkv bench`."""
    size = f"{format_count(result.parameters)} parameters, {format_count(result.weight_bytes, 'B')}"
    console.print(
        Text.assemble((escape_controls(result.model), "bold"), f"   {FAMILY_NAMES[result.family]}, {size}"),
    )
    console.print(Text(_describe_machine(result)))
    console.print(
        Text(f"limits: {format_count(result.limits.flops_per_second, 'FLOP/s')}, {_describe_bandwidth(result)}")
    )
    console.print()
    is_encoder = bool(result.points_of_kind("encode"))
    unit = "texts/s" if is_encoder else "tokens/s"
    table = plain_table("", "batch", "length", unit, "limit", "reached", "", "bound by")
    for column in table.columns:
        column.no_wrap = True
    table.columns[6].width = 16
    table.columns[7].justify = "left"
    previous_kind = result.points[0].kind if result.points else None
    for point in result.points:
        if point.kind != previous_kind:
            table.add_row()
            previous_kind = point.kind
        tokens = point.length if is_encoder else 1
        table.add_row(
            _point_name(point),
            f"{point.batch:,}",
            f"{point.length:,}",
            format_rate(point.tokens_per_second / tokens),
            format_rate(point.max_tokens_per_second / tokens),
            Text(f"{100 * point.fraction_of_limit:.0f} %", "yellow" if point.exceeds_limit else ""),
            Bar(1.0, 0.0, min(point.fraction_of_limit, 1.0), width=16, color="cyan"),
            Text(point.bound, "dim"),
        )
    console.print(table)
    if result.precisions:
        console.print()
        console.print(_precisions_table(result))
    if result.load_seconds is not None and result.first_token_seconds is not None:
        load, first = format_seconds(result.load_seconds), format_seconds(result.first_token_seconds)
        console.print(Text(f"first answer: {load} to load the model, {first} to the first token"))
    for note in result.notes:
        console.print(Text(escape_controls(note), "yellow"))


def _precisions_table(result: BenchResult) -> Table:
    """One row for each precision of the weights: decoding and prefill of one sequence."""
    length = result.precisions[0].prefill.length
    table = plain_table("weights", "size", "tokens/s", "limit", "reached", f"prefill {length:,}", "limit", "reached")
    for precision in result.precisions:
        cells = [
            cell
            for point in (precision.decode, precision.prefill)
            for cell in (
                format_rate(point.tokens_per_second),
                format_rate(point.max_tokens_per_second),
                Text(f"{100 * point.fraction_of_limit:.0f} %", "yellow" if point.exceeds_limit else ""),
            )
        ]
        table.add_row(precision.precision, format_count(precision.weight_bytes, "B"), *cells)
    return table


def format_seconds(seconds: float) -> str:
    """A time with three significant digits, in ms or s.

    >>> format_seconds(0.01234), format_seconds(2.5)
    ('12.3 ms', '2.50 s')
    """
    return f"{format_rate(1e3 * seconds)} ms" if seconds < 1 else f"{format_rate(seconds)} s"


def format_rate(value: float) -> str:
    """A rate with three significant digits.

    >>> format_rate(12345.6), format_rate(123.4), format_rate(1.234), format_rate(0.01234)
    ('12,300', '123', '1.23', '0.0123')
    """
    if value <= 0 or not math.isfinite(value):
        return str(value)
    digits = 2 - math.floor(math.log10(value))
    return f"{round(value, digits):,.{max(digits, 0)}f}"


def _point_name(point: BenchPoint) -> str:
    return f"beam {point.beams}" if point.kind == "search" else point.kind


def _describe_bandwidth(result: BenchResult) -> str:
    """The memory bandwidth and, if it is higher, the bandwidth at which weights are read from the CPU cache."""
    memory, cached = result.limits.memory_bandwidth, result.limits.weights_bandwidth
    in_cache = f" ({format_count(cached, 'B/s')} for weights in the cache)" if cached > 1.2 * memory else ""
    return f"{format_count(memory, 'B/s')} from memory{in_cache}"


def _dtype_name(result: BenchResult) -> str:
    return f"{result.precision} and {result.dtype}" if result.precision else result.dtype


def _describe_machine(result: BenchResult) -> str:
    threads = f", {result.threads} thread{'s' if result.threads > 1 else ''}" if result.device == "cpu" else ""
    return f"{result.machine} ({result.device}{threads}), {_dtype_name(result)}, torch {result.torch}"


WIDTH, HEIGHT, TOP, BOTTOM = 920, 470, 122, 400
LEFT_PANEL, RIGHT_PANEL = (74, 450), (548, 884)


def draw_bench(result: BenchResult, out: Path) -> None:
    """Draw the picture of `qkv bench` into a file."""
    save_text(out, bench_svg(result))


def bench_svg(result: BenchResult) -> str:
    """The picture of `qkv bench` as SVG."""
    title = escape_controls(result.model)
    left = LEFT_PANEL[0]
    parts = [
        text(left, 32, title, 17, anchor="start", weight=600),
        text(left, 52, _describe_machine(result), 12, FAINT, "start"),
        *legend(_legend_entries(result), left, WIDTH, 78)[0],
        *_draw_roofline(result),
        *_draw_throughput(result),
    ]
    return document(WIDTH, HEIGHT, f"{title} on {result.machine}", parts)


def _legend_entries(result: BenchResult) -> list[LegendEntry]:
    names = {point.kind: _point_name(point) for point in reversed(result.points)}
    kinds = sorted(names, key=list(COLOUR_OF_KIND).index)
    entries = [LegendEntry(names[kind], dot_mark(COLOUR_OF_KIND[kind]), 16) for kind in kinds]
    return [*entries, LegendEntry("limit", line_mark(f"stroke='{FAINT}' {DASHED}", 22), 29)]


def _draw_roofline(result: BenchResult) -> list[str]:
    """The left panel: FLOP/s over arithmetic intensity."""
    limits, ridge = result.limits, result.limits.ridge_point
    points = [(point.intensity, point.flops / point.seconds) for point in result.points]
    x = Scale(_log_range([x for x, _ in points] + [ridge / 8, 2 * ridge]), *LEFT_PANEL, log=True)
    lowest = min([y for _, y in points] + [x.low * limits.bandwidth])
    axes = Axes(x, Scale([lowest / 1.5, 2 * limits.flops_per_second], BOTTOM, TOP, log=True))
    x_ticks, y_ticks = _few_ticks(axes.x), _few_ticks(axes.y)
    parts = axes.frame("FLOP/s", "FLOPs per byte read", format_tick, x_ticks, y_ticks)
    low = max(axes.x.low, axes.y.low / limits.bandwidth)
    roof = [(low, low * limits.bandwidth), (ridge, limits.flops_per_second), (axes.x.high, limits.flops_per_second)]
    parts.append(axes.line(roof, f"stroke='{FAINT}' {DASHED}"))
    words = f"compute {format_count(limits.flops_per_second, 'FLOP/s')}"
    parts.append(text(LEFT_PANEL[1] - 2, axes.y(limits.flops_per_second) - 8, words, 12, FAINT, "end"))
    # The label "memory …" stands halfway up the slope and is rotated along it.
    middle = math.sqrt(low * ridge)
    run, rise = axes.x(ridge) - axes.x(low), axes.y(low * limits.bandwidth) - axes.y(limits.flops_per_second)
    angle = -math.degrees(math.atan2(rise, run))
    words = f"memory {format_count(limits.bandwidth, 'B/s')}"
    at = f"{axes.x(middle):.1f} {axes.y(middle * limits.bandwidth):.1f}"
    parts.append(f"<g transform='translate({at}) rotate({angle:.1f})'>{text(0, -8, words, 12, FAINT)}</g>")
    for kind in COLOUR_OF_KIND:
        of_kind = [xy for xy, point in zip(points, result.points, strict=True) if point.kind == kind]
        parts += axes.dots(of_kind, _dot_style(kind))
    return parts


def _draw_throughput(result: BenchResult) -> list[str]:
    """The right panel: tokens per second over the batch size."""
    points = result.points_of_kind("decode", "engine", "search", "encode")
    if not points:
        return []
    x = Scale([1, max(2, *(point.batch for point in points))], *RIGHT_PANEL, log=True)
    axes = Axes(
        x,
        Scale(
            _log_range([v for p in points for v in (p.tokens_per_second, p.max_tokens_per_second)]),
            BOTTOM,
            TOP,
            log=True,
        ),
    )
    batches = sorted({float(point.batch) for point in points})
    parts = axes.frame("tokens/s", "batch size", format_tick, batches, _few_ticks(axes.y))
    for kind in COLOUR_OF_KIND:
        of_kind = [point for point in points if point.kind == kind]
        limits = [(float(point.batch), point.max_tokens_per_second) for point in of_kind]
        reached = [(float(point.batch), point.tokens_per_second) for point in of_kind]
        parts.append(axes.line(limits, f"stroke='{COLOUR_OF_KIND[kind]}' stroke-opacity='0.6' {DASHED}"))
        parts.append(axes.line(reached, f"stroke='{COLOUR_OF_KIND[kind]}' stroke-width='2.5'"))
        parts += axes.dots(reached, _dot_style(kind))
    return parts


def format_tick(value: float) -> str:
    """The label of a tick.

    >>> format_tick(2e12), format_tick(5e9), format_tick(20_000), format_tick(500), format_tick(0.2)
    ('2T', '5G', '20k', '500', '0.2')
    """
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}"


def _log_range(values: Sequence[float]) -> list[float]:
    """The ends of a logarithmic scale that holds all values, with a margin."""
    return [min(values) / 1.8, max(values) * 1.8]


def _few_ticks(scale: Scale) -> list[float]:
    """The ticks of a logarithmic scale, or only the powers of ten if there are more than 8."""
    ticks = scale.ticks()
    powers = [tick for tick in ticks if abs(math.log10(tick) % 1.0) < 1e-9]
    return powers if len(ticks) > 8 and len(powers) >= 2 else ticks


def _dot_style(kind: BenchKind) -> str:
    return f"r='4.5' fill='{COLOUR_OF_KIND[kind]}' fill-opacity='0.85' stroke='{PAPER}'"
