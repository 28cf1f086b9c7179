"""The measurements of all seeds, by measure, series and x, with means and confidence intervals."""

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from qkv.errors import suggest_name
from qkv.tasks.study.paired import t_quantile


class Point(NamedTuple):
    """One measurement: the value of a series at a position of the x axis, which is a number or a name."""

    measure: str
    series: str
    x: float | str
    value: float


class Table:
    """Points of several seeds.

    >>> table = Table([[Point("loss", "a", 1, 2.0)], [Point("loss", "a", 1, 4.0)]])
    >>> table.mean("loss", "a", 1), table.curve("loss", "a")
    (3.0, {1: 3.0})
    """

    def __init__(self, points_of_seeds: Sequence[Iterable[Point]]) -> None:
        self.num_seeds = len(points_of_seeds)
        self._values: dict[tuple[str, str], dict[float | str, list[float]]] = {}
        for points in points_of_seeds:
            for measure, series, x, value in points:
                self._values.setdefault((measure, series), {}).setdefault(x, []).append(value)

    def measures(self) -> list[str]:
        """The measures, in the order of the experiment."""
        return list(dict.fromkeys(measure for measure, _ in self._values))

    def series(self, measure: str) -> list[str]:
        """The series of a measure."""
        return [series for found, series in self._values if found == measure]

    def xs(self, measure: str) -> list[float | str]:
        """The positions on the x axis of all series of a measure: numbers in order, names in the given order."""
        xs = list(dict.fromkeys(x for series in self.series(measure) for x in self._values[measure, series]))
        return sorted(xs) if all(isinstance(x, int | float) for x in xs) else xs

    def values(self, measure: str, series: str, x: float | str) -> list[float]:
        """The values of all seeds at one point."""
        known = self._values.get((measure, series))
        if known is None:
            names = self.series(measure) or self.measures()
            raise KeyError(f"no series {series!r} of {measure!r}; {suggest_name(series, names)}")
        return known[x]

    def has(self, measure: str, series: str, x: float | str) -> bool:
        """Whether a series has a value at x."""
        return x in self._values.get((measure, series), {})

    def mean(self, measure: str, series: str, x: float | str) -> float:
        """The mean over seeds at one point."""
        return fmean(self.values(measure, series, x))

    def half_interval(self, measure: str, series: str, x: float | str) -> float:
        """Half the width of the 95 % confidence interval of the mean (Student's t); 0 with one seed."""
        return half_interval(self.values(measure, series, x))

    def curve(self, measure: str, series: str) -> dict[float | str, float]:
        """The means of a series: x → mean."""
        return {x: fmean(values) for x, values in self._values[measure, series].items()}

    def difference(self, measure: str, a: tuple[str, float | str], b: tuple[str, float | str]) -> tuple[float, float]:
        """The mean of a − b over seeds, paired by seed, and half of its confidence interval. a and b: (series, x)."""
        pairs = zip(self.values(measure, *a), self.values(measure, *b), strict=True)
        differences = [first - second for first, second in pairs]
        return fmean(differences), half_interval(differences)

    def exponent(self, measure: str, series: str, xs: Sequence[float] | None = None) -> float:
        """The exponent p of the power law c·x^p that fits a series best, in logarithms. `xs` restricts the points."""
        curve = self.curve(measure, series)
        points = [(float(x), y) for x, y in curve.items() if xs is None or x in xs]
        return fit_exponent([x for x, _ in points], [y for _, y in points])


def half_interval(values: Sequence[float]) -> float:
    """Half the width of the 95 % confidence interval of a mean.

    >>> round(half_interval([1.0, 2.0, 3.0]), 3)
    2.484
    """
    if len(values) < 2:
        return 0.0
    return t_quantile(0.975, len(values) - 1) * stdev(values) / math.sqrt(len(values))


def fit_exponent(xs: Sequence[float], ys: Sequence[float]) -> float:
    """The exponent of the power law that fits points best, in logarithms.

    >>> round(fit_exponent([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    log_x, log_y = [math.log(x) for x in xs], [math.log(y) for y in ys]
    mean_x, mean_y = fmean(log_x), fmean(log_y)
    over = sum((x - mean_x) * (y - mean_y) for x, y in zip(log_x, log_y, strict=True))
    return over / sum((x - mean_x) ** 2 for x in log_x)
