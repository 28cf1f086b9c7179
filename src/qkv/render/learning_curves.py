"""Draw learning curves from the metrics.jsonl of one or several runs, as an SVG picture.

    draw_curves({"small": Path("runs/small"), "large": Path("runs/large")}, Path("curves.svg"))

The upper panel shows the loss over the steps, with thin lines for training and bold lines for validation. The lower
panel shows a metric of the task, if there is one.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from qkv.errors import QkvError, UsageError, suggest_name
from qkv.files import save_text
from qkv.render.formatting import format_number
from qkv.render.svg import (
    COLOURS,
    FAINT,
    PAPER,
    Axes,
    LegendEntry,
    Scale,
    document,
    legend,
    line_mark,
    text,
)
from qkv.train.run.curves import Points, RunCurves, read_curves

WIDTH, LEFT, RIGHT = 760, 64, 72  # width of the picture, and the margins beside the panels

CurveTriple = tuple[Points, Points, Points]
"""The training points, the validation points and the point of the kept weights of one run."""


def draw_curves(
    runs: Mapping[str, Path],
    out: Path,
    *,
    metric: str = "",
    title: str = "",
    groups: Mapping[str, str] | None = None,
) -> None:
    """Draw the curves of runs (name → run folder or metrics.jsonl) into one picture.

    `metric` is shown in the lower panel; by default it is the first metric of the runs besides the loss. Runs of one
    group (name → group), such as the seeds of a variant, have one colour and one label.
    """
    curves = [read_curves(name, path) for name, path in runs.items()]
    known = list(dict.fromkeys(key for run in curves for key in run.validation if key != "loss"))
    if metric and metric not in known:
        raise UsageError(f"no evaluation of these runs has the metric {metric!r}; {suggest_name(metric, known)}")
    if not any(run.training or run.validation for run in curves):
        raise QkvError(
            f"nothing to draw yet in {', '.join(str(path) for path in runs.values())}: no step was logged; train first"
        )
    group_of = [(groups or {}).get(run.name, run.name) for run in curves]
    save_text(out, _draw_svg(curves, group_of, metric or next(iter(known), ""), title))


def _draw_svg(runs: Sequence[RunCurves], groups: Sequence[str], metric: str, title: str) -> str:
    parts: list[str] = []
    y = 18
    if title:
        parts.append(text(LEFT, y + 14, title, 16, anchor="start", weight=600))
        y += 30
    entries = _legend_entries(runs, groups, title)
    legend_parts, y = legend(entries, float(LEFT), WIDTH - RIGHT, y + 14 if entries else y - 6)
    parts += legend_parts
    all_points = [points for run in runs for points in (run.training, *run.validation.values())]
    steps = [0.0, *(step for points in all_points for step, _ in points)]
    x_scale = Scale(steps, LEFT, WIDTH - RIGHT, whole=True)
    losses = [(run.training, run.validation.get("loss", []), run.kept.get("loss", [])) for run in runs]
    parts += _draw_panel(y + 44, 250, "loss", losses, groups, x_scale, caption="" if metric else "steps")
    y += 44 + 250
    if metric:
        values: list[CurveTriple] = [([], run.validation.get(metric, []), run.kept.get(metric, [])) for run in runs]
        parts += _draw_panel(y + 44, 170, metric, values, groups, x_scale, caption="steps")
        y += 44 + 170
    label = title or "learning curves of " + ", ".join(run.name for run in runs)
    return document(WIDTH, y + 50, label, parts)


def _legend_entries(runs: Sequence[RunCurves], groups: Sequence[str], title: str) -> list[LegendEntry]:
    """The legend: the runs (but not a single run that is the title), and what thin lines, bold lines and rings mean."""
    entries = []
    if [*groups] != [title]:
        colours = dict(zip(groups, _colours(groups), strict=True))
        styles = {
            name: f"stroke='{colour}' stroke-width='3' stroke-linecap='round'" for name, colour in colours.items()
        }
        entries += [LegendEntry(name, line_mark(style), 25) for name, style in styles.items()]
    if any(run.training for run in runs) and any(run.validation for run in runs):
        entries.append(LegendEntry("thin: training · bold: validation"))
    if any(run.kept for run in runs):
        entries.append(LegendEntry("ring: the kept weights"))
    return entries


def _draw_panel(
    top: int,
    height: int,
    name: str,
    curves: Sequence[CurveTriple],
    groups: Sequence[str],
    x_scale: Scale,
    caption: str,
) -> list[str]:
    """Draw one pair of axes with the curves of each run, and the mean of the last values of each group."""
    values = [value for each in curves for points in each for _, value in points if math.isfinite(value)]
    right, bottom = WIDTH - RIGHT, top + height
    if not values:
        title = text(LEFT, top - 12, name, 13, weight=600, anchor="start")
        return [title, text((LEFT + right) / 2, top + height / 2, "nothing measured yet", 13, FAINT)]
    is_log = min(values) > 0 and max(values) / min(values) > 30
    axes = Axes(x_scale, Scale(values, bottom, top, log=is_log, max_ticks=5).rounded())
    parts = axes.frame(name, caption, _format_tick)
    ends: dict[tuple[str, str], list[float]] = {}
    for (training, validation, kept), group, colour in zip(curves, groups, _colours(groups), strict=True):
        thin = "stroke-width='1' stroke-opacity='0.55'" if validation else "stroke-width='1.5'"
        parts.append(axes.line(downsample(training, right - LEFT), f"stroke='{colour}' {thin}"))
        parts.append(axes.line(validation, f"stroke='{colour}' stroke-width='2.5'"))
        if len(validation) <= 60:
            parts += axes.dots(validation, f"r='3' fill='{colour}'")
        parts += axes.dots(kept, f"r='4.5' fill='{PAPER}' stroke='{colour}' stroke-width='2'")
        last = [value for _, value in kept or validation or training if math.isfinite(value)][-1:]
        ends.setdefault((group, colour), []).extend(last)
    means = [(sum(last) / len(last), colour) for (_, colour), last in ends.items() if last]
    labels = [(axes.y(mean), format_number(mean), colour) for mean, colour in means]
    for y, words, colour in _spread_labels(labels, top + 6, bottom):
        parts.append(text(right + 8, y + 4, words, 12, colour, "start", 600))
    return parts


def downsample(points: Points, max_points: int) -> Points:
    """Average neighbours, so that at most `max_points` points are left. An average with a NaN is NaN, so gaps stay."""
    if len(points) <= max_points:
        return points
    out = []
    for n in range(max_points):
        part = points[n * len(points) // max_points : (n + 1) * len(points) // max_points]
        out.append((sum(step for step, _ in part) / len(part), sum(value for _, value in part) / len(part)))
    return out


def _spread_labels(labels: list[tuple[float, str, str]], top: float, bottom: float) -> list[tuple[float, str, str]]:
    """Move labels apart that would overlap. A label is its height, its text and its colour."""
    placed: list[tuple[float, str, str]] = []
    for y, words, colour in sorted(labels):
        lowest = placed[-1][0] + 15 if placed else top
        placed.append((max(y, lowest), words, colour))
    overflow = max(placed[-1][0] - bottom, 0.0) if placed else 0.0
    return [(y - overflow, words, colour) for y, words, colour in placed]


def _colours(groups: Sequence[str]) -> list[str]:
    """The colour of each run, by its group."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(groups))}
    return [COLOURS[numbers[name] % len(COLOURS)] for name in groups]


def _format_tick(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.6g}"
