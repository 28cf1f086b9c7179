"""A claim: a sentence of lecture notes, the experiment that tests it, and checks of the results.

A claim is one file in `claims/`, which ends with `CLAIM = Claim(...)`. Its `run` yields points. Its `check` computes
checks from the table of all points. The claim holds if the first check holds, on the means over the seeds and for every
seed alone; further checks qualify it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from qkv_lab.experiment import Experiment
from qkv_lab.table import Point, Table

Size = Literal["mini", "small", "full"]
"""How much an experiment computes: `mini` tests its code in seconds, `small` takes minutes on a CPU, `full` longer."""
SIZES: tuple[Size, ...] = ("mini", "small", "full")
DEFAULT_SEEDS: dict[Size, int] = {"mini": 1, "small": 3, "full": 5}

Chapter = Literal["parts", "families", "training", "running", "uses", "understanding"]
CHAPTERS: dict[Chapter, str] = {
    "parts": "The parts of a Transformer",
    "families": "Families of models, and the recurrent baseline",
    "training": "Training",
    "running": "Running a model",
    "uses": "Uses",
    "understanding": "Understanding",
}
NOTES = {
    "mechanism": "Transformer: attention mechanism, layers, questions",
    "lecture": "Transformers, after lecture 8 of CS224N",
    "review": "Day 70 DL review: Transformer",
    "inside": "Inside a Transformer",
    "video": "Transformer, after Umar Jamil's video",
    "paper": "Vaswani et al. 2017, Attention Is All You Need",
}
"""The lecture notes that are quoted, by a short name, and the paper that they are about."""


class Quote(NamedTuple):
    """A sentence, and where it is from: the short name of lecture notes (`NOTES`), or any other source.

    A remark corrects the sentence.
    """

    text: str
    source: str
    remark: str = ""

    def __str__(self) -> str:
        return f"“{self.text}” ({NOTES.get(self.source, self.source)}{'; ' if self.remark else ''}{self.remark})"


class Check(NamedTuple):
    """A statement about the results, whether it holds, and the figures that show it.

    It has to hold for every seed alone, unless `needs_all_seeds` says that it is about the interval over the seeds.
    """

    statement: str
    holds: bool
    found: str
    needs_all_seeds: bool = False
    by_seed: tuple[bool, ...] = ()  # whether it holds for each seed alone; `ClaimResult.checks` sets it


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A panel of a claim's picture. It shows the series of one measure: as lines, or as bars if x is a name."""

    measure: str  # also the caption of the y axis, so it names the unit
    x: str  # the caption of the x axis
    title: str = ""
    log_x: bool = False
    log_y: bool = False
    integer_x: bool = True  # the numbers on the x axis are integers
    is_fraction: bool = False  # values lie in 0 … 1, such as accuracies; the y axis shows this range


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim with its experiment.

    `run` runs the experiment with one seed. `check` reads the results of all seeds and returns checks, the claim itself
    first. `example` shows the idea in about ten lines of code; its body is printed in docs/lab.
    """

    name: str
    chapter: Chapter
    title: str
    quotes: tuple[Quote, ...]
    question: str
    method: str  # what is measured and how
    lesson: str  # what explains the result
    limits: str  # what the result does not show
    settings: Mapping[Size, Any]  # a frozen dataclass for each size
    run: Callable[[Experiment], Iterable[Point]]
    check: Callable[[Table], list[Check]]
    charts: tuple[Chart, ...]
    example: Callable[[], None]
    seeds: Mapping[Size, int] | None = None  # None: DEFAULT_SEEDS
    is_deterministic: bool = False  # it trains and times nothing; a test asserts that it holds at every size
    timed: tuple[str, ...] = ()  # measures in seconds or bytes, which differ from run to run
    data: str = ""  # a description of the files that --data must name; "": none are needed
    optional_data: str = ""  # a description of files that --data may name, for further measures
    requires: tuple[str, ...] = ()  # packages of an extra that the experiment imports

    def num_seeds(self, size: Size) -> int:
        """The number of seeds of a size."""
        return (self.seeds or DEFAULT_SEEDS)[size]

    def charts_of(self, table: Table) -> list[Chart]:
        """The charts whose measures a table has. Without optional data, some may be missing."""
        return [chart for chart in self.charts if chart.measure in table.measures()]
