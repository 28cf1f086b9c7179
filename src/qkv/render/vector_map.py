"""Draw a map of texts as an SVG picture: a point for each text, coloured by its label or shaded by its score."""

from collections import Counter

from qkv.render.svg import COLOURS, FAINT, Axes, LegendEntry, Scale, document, dot_mark, legend, text
from qkv.tasks.run.vector_map import MAX_CLASSES, VectorMap

SIZE, MARGIN = 640, 48
LOW, HIGH = (219, 234, 254), (30, 58, 138)
"""The colours of the lowest and the highest score."""


def draw_vector_map(found: VectorMap, title: str) -> str:
    """The picture of a map."""
    x, y = (found.points[:, axis].tolist() for axis in range(2))
    axes = Axes(Scale(x, MARGIN, SIZE - MARGIN).rounded(), Scale(y, SIZE - MARGIN, MARGIN).rounded())
    colours, entries = choose_colours(found)
    parts = [text(MARGIN, MARGIN - 16, title, 13, anchor="start", weight=600)]
    for point, colour in zip(zip(x, y, strict=True), colours, strict=True):
        parts += axes.dots([point], f"r='3.5' fill='{colour}' fill-opacity='0.75'")
    first, second = (f"{100 * one:.0f} %" for one in found.explained)
    parts.append(text(SIZE / 2, SIZE - 12, f"first component, {first} of the variance", 12, FAINT))
    turned = text(0, 0, f"second component, {second}", 12, FAINT)
    parts.append(f"<g transform='translate(20 {SIZE / 2}) rotate(-90)'>{turned}</g>")
    drawn, bottom = legend(entries, MARGIN, SIZE - MARGIN, SIZE + 14)
    return document(SIZE, bottom + 16, f"{title}: {len(x)} texts as points", [*parts, *drawn])


def choose_colours(found: VectorMap) -> tuple[list[str], list[LegendEntry]]:
    """The colour of each point, and the entries of the legend."""
    if not found.labels:
        return [COLOURS[0]] * len(found.points), []
    if (scores := found.scores) is not None:
        low, high = min(scores), max(scores)
        shades = [shade((score - low) / (high - low)) for score in scores]
        ends = ((low, shade(0.0)), (high, shade(1.0)))
        return shades, [LegendEntry(f"{value:g}", dot_mark(colour), 16) for value, colour in ends]
    frequent = [label for label, _ in Counter(found.labels).most_common(MAX_CLASSES)]
    by_label = dict(zip(frequent, COLOURS, strict=False))
    entries = [LegendEntry(label, dot_mark(colour), 16) for label, colour in by_label.items()]
    if others := len(set(found.labels)) - len(frequent):
        entries.append(LegendEntry(f"{others} other labels", dot_mark(FAINT), 16))
    return [by_label.get(label, FAINT) for label in found.labels], entries


def shade(fraction: float) -> str:
    """A colour between `LOW` and `HIGH`.

    >>> shade(0.0), shade(1.0)
    ('#dbeafe', '#1e3a8a')
    """
    return "#" + "".join(f"{round(a + fraction * (b - a)):02x}" for a, b in zip(LOW, HIGH, strict=True))
