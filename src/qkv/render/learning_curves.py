"""Learning curves as a picture: the metrics.jsonl of one run or several → an SVG, written by hand.

    draw_curves({"small": Path("runs/small"), "large": Path("runs/large")}, Path("curves.svg"))

Above, the loss over the steps: thin lines for training, bold ones with points for held-out data. Below, the metric of
the task where there is one. The picture brings its own paper, so it reads the same on light and dark pages.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from qkv.errors import QkvError, UsageError, suggest_name
from qkv.render.formatting import format_number

FONT = "font-family='system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif'"
INK, FAINT, GRID, PAPER = "#1f2937", "#6b7280", "#e5e7eb", "#ffffff"
COLOURS = ("#2563eb", "#d97706", "#059669", "#7c3aed", "#dc2626", "#0891b2")
WIDTH, LEFT, RIGHT = 760, 64, 72  # of the picture, and of what stands beside the panels
LETTER = 7.2  # how wide a letter of the legend is, about
NOT_METRICS = ("kind", "step", "loss", "seconds", "tokens", "best")

Points = list[tuple[float, float]]
CurveTriple = tuple[Points, Points, Points]


@dataclass
class RunCurves:
    """What a run's metrics.jsonl holds: curves by name, each as (step, value)."""

    name: str
    training: Points = field(default_factory=list)
    validation: dict[str, Points] = field(default_factory=dict)  # "loss" and the task's metrics
    final: dict[str, Points] = field(default_factory=dict)  # of the weights that a run ended with, if not the last ones


def draw_curves(runs: Mapping[str, Path], out: Path, *, metric: str = "", title: str = "") -> None:
    """Draw the runs (name → run folder or metrics.jsonl) into one picture.

    `metric` is the one of the second panel; left out, it is the first that the runs have besides the loss.
    """
    learnt = [read_curves(name, path) for name, path in runs.items()]
    known = list(dict.fromkeys(key for run in learnt for key in run.validation if key != "loss"))
    if metric and metric not in known:
        raise UsageError(f"no evaluation of these runs has the metric {metric!r}; {suggest_name(metric, known)}")
    if not any(run.training or run.validation for run in learnt):
        raise QkvError(f"nothing to draw yet in {', '.join(str(path) for path in runs.values())}: no step was logged")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(_draw_svg(learnt, metric or next(iter(known), ""), title), encoding="utf-8")
    except OSError as error:
        raise QkvError(f"{out}: cannot be written ({error.strerror or error})") from error


def read_curves(name: str, path: Path) -> RunCurves:
    """The curves of one run. Where the last step was evaluated twice, the second are the weights that were kept."""
    path = path / "metrics.jsonl" if path.is_dir() else path
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise QkvError(f"{path} cannot be read ({error.strerror}); a run's folder has a metrics.jsonl") from error
    training: dict[float, float] = {}
    evaluated: dict[float, dict[str, float]] = {}
    again: dict[float, dict[str, float]] = {}
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            kind, step = row.get("kind"), float(row["step"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if number == 1 and len(lines) > 1:
                raise QkvError(f"{path}, line {number}: not a line of a metrics.jsonl ({error})") from error
            continue  # half a line, of a run that is still writing or was cut off
        if kind == "step" and row["loss"] is not None:  # steps that were left out have none
            training[step] = float(row["loss"])
        elif kind == "eval":
            metrics = {key: float(value) for key, value in row.items() if _is_metric(key, value)}
            (again if step in evaluated else evaluated)[step] = metrics
    held_out: dict[str, Points] = {}
    for step, metrics in sorted(evaluated.items()):
        for key, value in metrics.items():
            held_out.setdefault(key, []).append((step, value))
    return RunCurves(name, sorted(training.items()), held_out, _final_weights(evaluated, again))


def _is_metric(key: str, value: object) -> bool:
    """Whether something in the line of an evaluation is a metric."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and (key == "loss" or key not in NOT_METRICS)


def _final_weights(
    evaluated: Mapping[float, dict[str, float]], again: Mapping[float, dict[str, float]]
) -> dict[str, Points]:
    """The weights that were kept, where they are not the last ones.

    They are logged at the last step; those of an earlier one are known by their numbers, and stand there.
    """
    last = max(evaluated, default=0.0)
    metrics = again.get(last, {})
    if not metrics or _same_metrics(evaluated[last], metrics):
        return {}
    step = next((step for step in sorted(evaluated) if _same_metrics(evaluated[step], metrics)), last)
    return {key: [(step, value)] for key, value in metrics.items()}


def _same_metrics(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    """Whether two evaluations found the same."""
    shared = [(one[key], other[key]) for key in one if key in other]
    return bool(shared) and all(math.isclose(a, b, rel_tol=1e-6) or (a != a and b != b) for a, b in shared)


def _draw_svg(runs: Sequence[RunCurves], metric: str, title: str) -> str:
    parts: list[str] = []
    y = 18
    if title:
        parts.append(text(LEFT, y + 14, title, 16, anchor="start", weight=600))
        y += 30
    legend, y = _legend(runs, title, y + 14)
    parts += legend
    curves = [points for run in runs for points in (run.training, *run.validation.values())]
    steps = [0.0, *(step for points in curves for step, _ in points)]
    across = Scale(steps, LEFT, WIDTH - RIGHT, whole=True)
    losses = [(run.training, run.validation.get("loss", []), run.final.get("loss", [])) for run in runs]
    parts += _panel(y + 44, 250, "loss", losses, across, last=not metric)
    y += 44 + 250
    if metric:
        measured: list[CurveTriple] = [([], run.validation.get(metric, []), run.final.get(metric, [])) for run in runs]
        parts += _panel(y + 44, 170, metric, measured, across, last=True)
        y += 44 + 170
    height = y + 50
    label = escape(title or "learning curves of " + ", ".join(run.name for run in runs), quote=True)
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' role='img' aria-label='{label}'>"
    return "\n".join([head, f"<rect width='{WIDTH}' height='{height}' fill='{PAPER}'/>", *parts, "</svg>\n"])


def _legend(runs: Sequence[RunCurves], title: str, y: int) -> tuple[list[str], int]:
    """A name for each colour, unless it is the title, and what thin and bold mean; in as many lines as they need."""
    parts, x = [], float(LEFT)
    words = [(run.name, colour) for run, colour in zip(runs, _colours(len(runs)), strict=True)]
    if [run.name for run in runs] == [title]:
        words = []
    if any(run.training for run in runs) and any(run.validation for run in runs):
        words.append(("thin: training · bold: held out", ""))
    if any(run.final for run in runs):
        words.append(("ring: the weights that were kept", ""))
    for name, colour in words:
        wide = len(name) * LETTER + (26 if colour else 0)
        if x > LEFT and x + wide > WIDTH - RIGHT:
            x, y = float(LEFT), y + 20
        if colour:
            parts.append(f"<path d='M{x:.1f} {y - 4} h18' stroke='{colour}' stroke-width='3' stroke-linecap='round'/>")
        parts.append(text(x + (25 if colour else 0), y, name, 13, INK if colour else FAINT, "start"))
        x += wide + 24
    return parts, y if parts else y - 20


def _panel(top: int, high: int, name: str, curves: Sequence[CurveTriple], across: "Scale", last: bool) -> list[str]:
    """One pair of axes with (training, held out, kept) of each run; the last one has the steps below it."""
    values = [value for each in curves for points in each for _, value in points if math.isfinite(value)]
    right, bottom = WIDTH - RIGHT, top + high
    parts = [text(LEFT, top - 10, name, 13, weight=600, anchor="start")]
    if not values:
        return [*parts, text((LEFT + right) / 2, top + high / 2, "nothing measured yet", 13, FAINT)]
    up = Scale(values, bottom, top, log=min(values) > 0 and max(values) / min(values) > 30, marks=5).rounded()
    for tick in up.ticks():
        y = up(tick)
        parts.append(f"<path d='M{LEFT} {y:.1f} H{right}' stroke='{GRID}'/>")
        parts.append(text(LEFT - 8, y + 4, _format_tick(tick), 12, FAINT, "end"))
    for tick in across.ticks():
        x = across(tick)
        parts.append(f"<path d='M{x:.1f} {bottom} v5' stroke='{FAINT}'/>")
        if last:
            parts.append(text(x, bottom + 20, _format_tick(tick), 12, FAINT))
    parts.append(f"<path d='M{LEFT} {bottom} H{right}' stroke='{FAINT}'/>")
    if last:
        parts.append(text((LEFT + right) / 2, bottom + 40, "steps", 12, FAINT))
    ends: list[tuple[float, str, str]] = []
    for (training, held_out, kept), colour in zip(curves, _colours(len(curves)), strict=True):
        thin = "stroke-width='1' stroke-opacity='0.55'" if held_out else "stroke-width='1.5'"
        parts.append(_line(downsample(training, right - LEFT), across, up, f"stroke='{colour}' {thin}"))
        parts.append(_line(held_out, across, up, f"stroke='{colour}' stroke-width='2.5'"))
        points = [(across(step), up(value)) for step, value in held_out if math.isfinite(value)]
        if len(points) <= 60:
            parts += [f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3' fill='{colour}'/>" for x, y in points]
        ring = f"r='4.5' fill='{PAPER}' stroke='{colour}' stroke-width='2'"
        parts += [f"<circle cx='{across(x):.1f}' cy='{up(y):.1f}' {ring}/>" for x, y in kept if math.isfinite(y)]
        final = [value for _, value in kept or held_out or training if math.isfinite(value)][-1:]
        ends += [(up(value), format_number(value), colour) for value in final]
    for y, words, colour in _apart(ends, top + 6, bottom):
        parts.append(text(right + 8, y + 4, words, 12, colour, "start", 600))
    return [part for part in parts if part]


class Scale:
    """From numbers to places in the picture, straight or by the logarithm, with round numbers at its marks.

    A scale of a single number begins or ends at 0; it is 0 to 1 where that holds the number, as a share is such a one.
    `whole` leaves out marks between whole numbers.
    """

    def __init__(
        self,
        values: Iterable[float],
        start: float,
        end: float,
        *,
        log: bool = False,
        whole: bool = False,
        marks: int = 6,
    ) -> None:
        values = list(values)
        self.low, self.high, self.log, self.whole, self.marks = min(values), max(values), log, whole, marks
        if self.high - self.low <= max(abs(self.high) * 1e-12, 1e-300):
            share = self.low >= 0 and self.high <= 1
            self.low, self.high = (0.0, 1.0) if share else (min(2 * self.low, 0.0), max(2 * self.high, 0.0))
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        share = ((math.log(value) if self.log else value) - low) / (high - low)
        return self.start + share * (self.end - self.start)

    def rounded(self) -> "Scale":
        """The same, from the mark below its numbers to the mark above them."""
        marks = list(self._around())
        below, above = [m for m in marks if m <= self.low], [m for m in marks if m >= self.high]
        return Scale([below[-1], above[0]], self.start, self.end, log=self.log, whole=self.whole, marks=self.marks)

    def ticks(self) -> list[float]:
        """Round numbers inside the scale."""
        slack = (self.high - self.low) * 1e-9
        return [mark for mark in self._around() if self.low - slack <= mark <= self.high + slack]

    def _around(self) -> Iterator[float]:
        """Round numbers from below the scale to above it."""
        if self.log:
            for power in range(math.floor(math.log10(self.low)) - 1, math.ceil(math.log10(self.high)) + 2):
                yield from (digit * 10.0**power for digit in (1, 2, 5))
            return
        raw = (self.high - self.low) / self.marks
        raw = max(raw, 1.0) if self.whole else raw
        size = 10.0 ** math.floor(math.log10(raw))
        digits = (1, 2, 5, 10) if self.whole and size < 10 else (1, 2, 2.5, 5, 10)
        stride = next(size * digit for digit in digits if size * digit >= raw)
        for n in range(math.floor(self.low / stride) - 1, math.ceil(self.high / stride) + 2):
            yield n * stride


def downsample(points: Points, max_points: int) -> Points:
    """No more points than the picture has columns: neighbours become their mean. Breaks stay breaks."""
    if len(points) <= max_points:
        return points
    out = []
    for n in range(max_points):
        part = points[n * len(points) // max_points : (n + 1) * len(points) // max_points]
        out.append((sum(step for step, _ in part) / len(part), sum(value for _, value in part) / len(part)))
    return out


def _line(points: Points, across: Scale, up: Scale, style: str) -> str:
    """A line through the points, interrupted where a value is not a number."""
    pen, path = "M", []
    for step, value in points:
        if not math.isfinite(value):
            pen = "M"
            continue
        path.append(f"{pen}{across(step):.1f} {up(value):.1f}")
        pen = "L"
    return f"<path d='{' '.join(path)}' fill='none' stroke-linejoin='round' {style}/>" if path else ""


def _apart(ends: list[tuple[float, str, str]], top: float, bottom: float) -> list[tuple[float, str, str]]:
    """Labels at their heights, moved so far that none covers another."""
    placed: list[tuple[float, str, str]] = []
    for y, words, colour in sorted(ends):
        least = placed[-1][0] + 15 if placed else top
        placed.append((max(y, least), words, colour))
    over = placed[-1][0] - bottom if placed else 0.0
    return [(y - max(over, 0.0), words, colour) for y, words, colour in placed]


def _colours(count: int) -> list[str]:
    return [COLOURS[n % len(COLOURS)] for n in range(count)]


def _format_tick(value: float) -> str:
    """A number at a mark: no more digits than it needs."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.6g}"


def text(
    x: float, y: float, words: str, size: int, colour: str = INK, anchor: str = "middle", weight: int = 400
) -> str:
    """A line of words in a picture."""
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' {FONT} font-size='{size}' font-weight='{weight}' fill='{colour}' "
        f"text-anchor='{anchor}'>{escape(words)}</text>"
    )
