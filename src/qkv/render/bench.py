"""What `qkv bench` shows: what was reached beside its limit, as a table and as a picture.

The picture has two panels. Left, the roofline: how many FLOPs a second a pass could do at most, by how many it does for
each byte that it reads, a slope where memory is the limit and flat where arithmetic is; every point lies below it by
as much as is lost. Right, tokens a second by the size of the batch, with the limit dashed above.
"""

import math
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from rich.bar import Bar
from rich.console import Console
from rich.table import Table
from rich.text import Text

from qkv.errors import QkvError
from qkv.measure.bench import BenchKind, BenchPoint, BenchResult
from qkv.render.info import FAMILY_NAMES, format_count
from qkv.render.learning_curves import COLOURS, FAINT, GRID, PAPER, Scale, text
from qkv.render.survey import escape_controls

COLOUR_OF_KIND: dict[BenchKind, str] = {
    "prefill": COLOURS[2],
    "decode": COLOURS[0],
    "search": COLOURS[1],
    "encode": COLOURS[0],
}


def print_bench(found: BenchResult, console: Console) -> None:
    """The table of `qkv bench`."""
    limits = found.limits
    console.print(
        Text.assemble(
            (escape_controls(found.model), "bold"),
            f"   {FAMILY_NAMES[found.family]}, {format_count(found.parameters)} parameters, {format_count(found.weight_bytes, 'B')}",
        )
    )
    console.print(Text(_machine(found)))
    console.print(Text(f"at most {format_count(limits.flops, 'FLOP/s')} and {_bandwidth(found)}"))
    console.print()
    texts = bool(found.points_of("encode"))
    one = "texts/s" if texts else "tokens/s"
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("", no_wrap=True)
    for name in ("batch", "length", one, "limit", "reached"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", width=16)
    table.add_column("waits for", no_wrap=True)
    last = found.points[0].kind if found.points else None
    for point in found.points:
        if point.kind != last:
            table.add_row()
            last = point.kind
        each = point.length if texts else 1
        table.add_row(
            _point_name(point),
            f"{point.batch:,}",
            f"{point.length:,}",
            format_rate(point.tokens_per_second / each),
            format_rate(point.limit / each),
            Text(f"{100 * point.fraction_of_limit:.0f} %", "yellow" if point.exceeds_limit else ""),
            Bar(1.0, 0.0, min(point.fraction_of_limit, 1.0), width=16, color="cyan"),
            Text(point.bound, "dim"),
        )
    console.print(table)
    for note in found.notes:
        console.print(Text(escape_controls(note), "yellow"))


def format_rate(value: float) -> str:
    """Tokens a second, with as many digits as mean something.

    >>> format_rate(12345.6), format_rate(123.4), format_rate(1.234), format_rate(0.01234)
    ('12,300', '123', '1.23', '0.0123')
    """
    if value <= 0 or not math.isfinite(value):
        return str(value)
    digits = 2 - math.floor(math.log10(value))
    return f"{round(value, digits):,.{max(digits, 0)}f}"


def _point_name(point: BenchPoint) -> str:
    return f"beam {point.beams}" if point.kind == "search" else point.kind


def _bandwidth(found: BenchResult) -> str:
    """How fast memory is read, and how fast the weights are, where a cache holds them."""
    memory, cached = found.limits.memory_bandwidth, found.limits.cached_bandwidth
    held = f" ({format_count(cached, 'B/s')} for so few weights)" if cached > 1.2 * memory else ""
    return f"{format_count(memory, 'B/s')} from memory{held}"


def _dtype_name(found: BenchResult) -> str:
    return f"int8 and {found.dtype}" if found.int8 else found.dtype


def _machine(found: BenchResult) -> str:
    threads = f", {found.threads} thread{'s' if found.threads > 1 else ''}" if found.device == "cpu" else ""
    return f"{found.machine} ({found.device}{threads}), {_dtype_name(found)}, torch {found.torch}"


# ── The picture ──────────────────────────────────────────────────────────────────────────────────────────────────

WIDTH, HEIGHT, TOP, BOTTOM = 920, 470, 122, 400
LEFT_PANEL, RIGHT_PANEL = (74, 450), (548, 884)
Places = list[tuple[float, float]]


def draw_bench(found: BenchResult, out: Path) -> None:
    """Draw the picture of `qkv bench`."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(bench_svg(found), encoding="utf-8")
    except OSError as error:
        raise QkvError(f"{out} cannot be written ({error.strerror}); choose another place for the picture") from error


def bench_svg(found: BenchResult) -> str:
    """The picture as SVG."""
    title = escape_controls(found.model)
    parts = [
        text(LEFT_PANEL[0], 32, title, 17, anchor="start", weight=600),
        text(LEFT_PANEL[0], 52, _machine(found), 12, FAINT, "start"),
        *_legend(found),
        *_roofline(found),
        *_batches(found),
    ]
    label = escape(f"{title} on {found.machine}", quote=True)
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' role='img' aria-label='{label}'>"
    return "\n".join([head, f"<rect width='{WIDTH}' height='{HEIGHT}' fill='{PAPER}'/>", *parts, "</svg>\n"])


def _legend(found: BenchResult) -> list[str]:
    parts, x = [], float(LEFT_PANEL[0])
    firsts = {point.kind: point for point in reversed(found.points)}
    for kind in sorted(firsts, key=list(COLOUR_OF_KIND).index):
        words = _point_name(firsts[kind])
        parts.append(f"<circle cx='{x + 5:.1f}' cy='74' r='5' fill='{COLOUR_OF_KIND[kind]}'/>")
        parts.append(text(x + 16, 78, words, 13, anchor="start"))
        x += 16 + 7.2 * len(words) + 24
    parts.append(f"<path d='M{x:.1f} 74 h22' stroke='{FAINT}' stroke-width='2' stroke-dasharray='5 4'/>")
    parts.append(text(x + 29, 78, "the limit", 13, anchor="start"))
    return parts


def _roofline(found: BenchResult) -> list[str]:
    """FLOPs a second by FLOPs for each byte."""
    limits, (left, right) = found.limits, LEFT_PANEL
    places = [(point.intensity, point.flops / point.seconds) for point in found.points]
    across = Scale(
        _log_range([x for x, _ in places] + [limits.ridge_point / 8, 2 * limits.ridge_point]), left, right, log=True
    )
    lowest = min([y for _, y in places] + [across.low * limits.bandwidth])
    up = Scale([lowest / 1.5, 2 * limits.flops], BOTTOM, TOP, log=True)
    parts = _axes(LEFT_PANEL, across, up, "FLOPs for each byte read", "FLOP/s", "FLOP/s")
    low = max(across.low, up.low / limits.bandwidth)
    roof = [(low, low * limits.bandwidth), (limits.ridge_point, limits.flops), (across.high, limits.flops)]
    parts.append(_path(roof, across, up, f"stroke='{FAINT}' stroke-width='2' stroke-dasharray='5 4'"))
    words = f"arithmetic {format_count(limits.flops, 'FLOP/s')}"
    parts.append(text(right - 2, up(limits.flops) - 8, words, 12, FAINT, "end"))
    # Along the slope, halfway up.
    x = math.sqrt(low * limits.ridge_point)
    run, rise = across(limits.ridge_point) - across(low), up(low * limits.bandwidth) - up(limits.flops)
    turned = -math.degrees(math.atan2(rise, run))
    words = f"memory {format_count(limits.bandwidth, 'B/s')}"
    at = f"{across(x):.1f} {up(x * limits.bandwidth):.1f}"
    parts.append(f"<g transform='translate({at}) rotate({turned:.1f})'>{text(0, -8, words, 12, FAINT)}</g>")
    for kind in COLOUR_OF_KIND:
        parts += _dots(
            [place for place, point in zip(places, found.points, strict=True) if point.kind == kind], kind, across, up
        )
    return parts


def _batches(found: BenchResult) -> list[str]:
    """Tokens a second by the size of the batch."""
    points = found.points_of("decode", "search", "encode")
    if not points:
        return []
    across = Scale([1, max(2, *(point.batch for point in points))], *RIGHT_PANEL, log=True)
    up = Scale(_log_range([value for p in points for value in (p.tokens_per_second, p.limit)]), BOTTOM, TOP, log=True)
    parts = _axes(RIGHT_PANEL, across, up, "batch", "tokens/s", "", sorted({p.batch for p in points}))
    for kind in COLOUR_OF_KIND:
        some = [point for point in points if point.kind == kind]
        limit = [(float(point.batch), point.limit) for point in some]
        style = f"stroke='{COLOUR_OF_KIND[kind]}' stroke-opacity='0.6' stroke-width='2' stroke-dasharray='5 4'"
        parts.append(_path(limit, across, up, style))
        reached = [(float(point.batch), point.tokens_per_second) for point in some]
        parts.append(_path(reached, across, up, f"stroke='{COLOUR_OF_KIND[kind]}' stroke-width='2.5'"))
        parts += _dots(reached, kind, across, up)
    return [part for part in parts if part]


def _axes(
    panel: tuple[int, int], across: Scale, up: Scale, below: str, above: str, unit: str, marks: Sequence[float] = ()
) -> list[str]:
    left, right = panel
    parts = [text(left, TOP - 14, above, 13, anchor="start", weight=600)]
    for tick in _powers_of_ten(up.ticks()):
        y = up(tick)
        parts.append(f"<path d='M{left} {y:.1f} H{right}' stroke='{GRID}'/>")
        parts.append(text(left - 8, y + 4, format_tick(tick), 12, FAINT, "end"))
    for tick in marks or _powers_of_ten(across.ticks()):
        x = across(tick)
        parts.append(f"<path d='M{x:.1f} {BOTTOM} v5' stroke='{FAINT}'/>")
        parts.append(text(x, BOTTOM + 20, format_tick(tick), 12, FAINT))
    parts.append(f"<path d='M{left} {BOTTOM} H{right}' stroke='{FAINT}'/>")
    parts.append(text((left + right) / 2, BOTTOM + 42, below, 12, FAINT))
    return parts


def format_tick(value: float) -> str:
    """A number at a mark.

    >>> format_tick(2e12), format_tick(5e9), format_tick(20_000), format_tick(500), format_tick(0.2)
    ('2T', '5G', '20k', '500', '0.2')
    """
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}"


def _log_range(values: Iterable[float]) -> list[float]:
    """The ends of a scale by the logarithm that holds these, with air around them."""
    kept = list(values)
    return [min(kept) / 1.8, max(kept) * 1.8]


def _powers_of_ten(ticks: list[float]) -> list[float]:
    """Powers of ten alone where there would be too many marks."""
    tens = [tick for tick in ticks if abs(math.log10(tick) % 1.0) < 1e-9]
    return tens if len(ticks) > 8 and len(tens) >= 2 else ticks


def _dots(places: Places, kind: BenchKind, across: Scale, up: Scale) -> list[str]:
    style = f"fill='{COLOUR_OF_KIND[kind]}' fill-opacity='0.85' stroke='{PAPER}'"
    return [f"<circle cx='{across(x):.1f}' cy='{up(y):.1f}' r='4.5' {style}/>" for x, y in places]


def _path(places: Places, across: Scale, up: Scale, style: str) -> str:
    if len(places) < 2:
        return ""
    steps = " L".join(f"{across(x):.1f} {up(y):.1f}" for x, y in places)
    return f"<path d='M{steps}' fill='none' stroke-linejoin='round' {style}/>"
