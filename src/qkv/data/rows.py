"""The endless stream of rows: a pure function of the data, the seed and the layout.

The order's windows are packed one by one, each by itself, and the rows of each are shuffled: that is the stream. A
step takes the next few rows of it, and of these each data-parallel process takes its share. Nothing depends on how
many processes or workers there are, so a cursor (window, row) means the same place to any number of them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from qkv.data.draw import Draw, shuffled
from qkv.data.mixture import Mixture, Weights, shares
from qkv.data.objectives import Objective
from qkv.data.order import Epochs, Order, Picks
from qkv.data.pack import Layout, pack, padded
from qkv.data.ragged import Ints, ragged_index
from qkv.errors import QkvError, UsageError, nearest

LAYOUTS = ("packed", "padded")
PROBE = 4096  # examples looked at to choose a window's size
ROWS_A_WINDOW = 256  # then the last, half-empty row of a window wastes 0.2 %
MOST_EXAMPLES = 32768


class Cursor(NamedTuple):
    """A place in the stream: the next unit (a row; a padded group) of a window, and the steps taken so far."""

    window: int = 0
    unit: int = 0
    step: int = 0


START = Cursor()


@dataclass(frozen=True)
class Plan:
    """One window, laid out. Units are dealt in the order of `units`."""

    picks: Picks
    lengths: Ints  # (n, streams) of the picks
    layout: Layout
    first_row: Ints  # (units + 1,)
    widths: Ints  # (units, streams) the length of their rows
    units: Ints  # (units,) in random order

    def rows(self, units: Ints) -> Ints:
        """The rows of some units."""
        first = self.first_row[units]
        return ragged_index(first, self.first_row[units + 1] - first)

    def entries(self, rows: Ints) -> tuple[Ints, Ints]:
        """The layout's entries in some rows, and beside each which of these rows it lies in, counted from 0."""
        first = np.searchsorted(self.layout.row, rows)
        counts = np.searchsorted(self.layout.row, rows, "right") - first
        return ragged_index(first, counts), np.repeat(np.arange(len(rows)), counts)


@dataclass(frozen=True)
class Step:
    """What one process builds for one step: entries of a layout, with rows counted from 0."""

    picks: Picks
    row: Ints
    segment: Ints
    offset: Ints  # (n, streams)
    lengths: Ints  # (n, streams)
    rows: int
    width: tuple[int, ...]
    epoch: int


class Rows:
    """Rows of one source, or of several by weight.

    `batch_tokens` is the number of places that a step has, source and target rows together, padding included. `layout`
    is "packed" (rows of fixed shape that hold several examples) or "padded" (examples of similar length, one a row).
    `texts`, the most examples that a row may hold, and `window`, the examples that are packed together, are chosen to
    suit the data where they are not given.
    """

    def __init__(
        self,
        data: Objective | Mapping[str, Objective],
        *,
        batch_tokens: int,
        seed: int = 0,
        layout: Literal["packed", "padded"] = "packed",
        weights: Weights = "proportional",
        temperature: float = 1.0,
        window: int | None = None,
        texts: int | None = None,
    ):
        if layout not in LAYOUTS:
            raise UsageError(f"layout = {layout!r} is not known; {nearest(layout, LAYOUTS)}")
        sources = dict(data) if isinstance(data, Mapping) else {"": data}
        if not sources:
            raise UsageError("there are no sources to take rows from")
        check_sources(sources)
        self.names = tuple(sources)
        self.objectives = tuple(sources.values())
        self.capacity = self.objectives[0].capacity
        self.outputs = self.objectives[0].outputs
        self.pad = self.objectives[0].pad
        self.layout = layout
        self.seed = seed
        self.batch_tokens = batch_tokens
        if batch_tokens < sum(self.capacity):
            raise UsageError(f"batch_tokens = {batch_tokens} is less than one row of {sum(self.capacity)} places")
        self.batch_rows = batch_tokens // sum(self.capacity)  # of a packed step
        self.weights = shares(sources, weights, temperature)
        self.order = self._order(sources, window or self._window(sources))
        self.texts = 1 if layout == "padded" else texts or self._texts()

    def _order(self, sources: dict[str, Objective], size: int) -> Order:
        if len(sources) == 1:
            return Epochs(self.objectives[0], self.seed, size)
        return Mixture(sources, self.weights, self.seed, size)

    def _window(self, sources: dict[str, Objective]) -> int:
        """So many examples that they fill enough rows."""
        self.order = self._order(sources, PROBE)
        lengths = self._lengths(self.order.window(0))
        in_a_row = (np.asarray(self.capacity) / np.maximum(lengths.mean(axis=0), 1e-9)).min()
        return int(np.clip(ROWS_A_WINDOW * in_a_row, PROBE, MOST_EXAMPLES))

    def _texts(self) -> int:
        """A quarter more than the fullest row of the first window needs when it may hold any number."""
        layout = pack(self._lengths(self.order.window(0)), self.capacity, min(self.capacity))
        fullest = int(layout.segment.max(initial=1))
        return min(-(-(fullest * 5 // 4 + 1) // 8) * 8, min(self.capacity))

    def _lengths(self, picks: Picks) -> Ints:
        """The places that examples take: (n, streams)."""
        lengths = np.zeros((len(picks), len(self.capacity)), np.int64)
        for entries, objective, draw in self.groups(picks):
            lengths[entries] = objective.lengths(picks.example[entries], draw)
        return lengths

    def groups(self, picks: Picks) -> Iterator[tuple[Ints, Objective, Draw]]:
        """The picks by source and epoch: (which of them, whose, drawn how)."""
        key = picks.source * (int(picks.epoch.max(initial=0)) + 1) + picks.epoch
        for value in np.unique(key):
            entries = np.flatnonzero(key == value)
            source, epoch = int(picks.source[entries[0]]), int(picks.epoch[entries[0]])
            yield entries, self.objectives[source], self.order.courses[source].draw(epoch)

    def plan(self, window: int) -> Plan:
        """Lay out one window, from the lengths of its examples alone."""
        picks = self.order.window(window)
        lengths = self._lengths(picks)
        if self.layout == "packed":
            layout = pack(lengths, self.capacity, self.texts)
            first_row = np.arange(layout.rows + 1)
            widths = np.tile(np.asarray(self.capacity), (layout.rows, 1))
        else:
            layout, first_row, widths = padded(lengths, self.batch_tokens)
        count = len(widths)
        keys = Draw(self.seed, window).keys("units", np.zeros(1, np.int64))
        return Plan(picks, lengths, layout, first_row, widths, shuffled(keys, np.array([count])))

    def steps(
        self, cursor: Cursor = START, rank: int = 0, world: int = 1, epochs: int | None = None
    ) -> Iterator[tuple[Step, Cursor]]:
        """The steps of one process from a place on, each with the place after it.

        Without end, or to the end of `epochs` epochs; the last step may then have rows that hold nothing.
        """
        end = None if epochs is None else self.order.windows(epochs)
        window, unit, step = cursor
        wanted = self.batch_rows if self.layout == "packed" else 1
        parts: list[tuple[Plan, Ints]] = []  # units of the step so far
        have = 0
        while end is None or window < end:
            epoch = self.order.epoch(window)
            plan = self.plan(window)
            while unit < len(plan.units):
                taken = plan.units[unit : unit + wanted - have]
                parts.append((plan, taken))
                unit, have = unit + len(taken), have + len(taken)
                if have == wanted:
                    step += 1
                    yield self._share(parts, rank, world, epoch), Cursor(window, unit, step)
                    parts, have = [], 0
            window, unit = window + 1, 0
        if parts:
            yield self._share(parts, rank, world, self.order.epoch(window - 1)), Cursor(window, 0, step + 1)

    def _share(self, parts: list[tuple[Plan, Ints]], rank: int, world: int, epoch: int) -> Step:
        """This process's part of the rows of a step."""
        rows = [plan.rows(units) for plan, units in parts]
        total = sum(map(len, rows)) if self.layout == "padded" else self.batch_rows
        first, last = rank * total // world, (rank + 1) * total // world
        # All processes have equally many rows, empty ones if need be, and so as many micro-batches: with sharded
        # parameters, each of these is a meeting of all.
        height = -(-total // world)
        picks: list[Picks] = []
        columns: list[list[Ints]] = [[], [], [], []]  # row, segment, offset, lengths
        place = before = 0
        for (plan, _), part in zip(parts, rows, strict=True):
            mine = part[max(first - before, 0) : max(last - before, 0)]
            before += len(part)
            entries, row = plan.entries(mine)
            examples = plan.layout.example[entries]
            picks.append(plan.picks.take(examples))
            found = (place + row, plan.layout.segment[entries], plan.layout.offset[entries], plan.lengths[examples])
            for column, values in zip(columns, found, strict=True):
                column.append(values)
            place += len(mine)
        width = np.max([plan.widths[units].max(axis=0) for plan, units in parts], axis=0)
        row, segment, offset, lengths = map(np.concatenate, columns)
        return Step(Picks.join(picks), row, segment, offset, lengths, height, tuple(width.tolist()), epoch)

    def parts(self, most: int, world: int = 1) -> int:
        """In how many parts a process must take its share of a step, for none to have more than `most` places.

        A row is never split. Padded rows are as wide as they happen to be: the answer is that for the worst width.
        """
        widest = sum(self.capacity)
        widths = np.array([widest]) if self.layout == "packed" else np.arange(1, widest + 1)
        rows = -(-(self.batch_tokens // widths) // world)
        return int((-(-rows // np.maximum(most // widths, 1))).max())

    def padding(self, windows: int = 4) -> float:
        """The share of places without a token in the first few windows."""
        real = places = 0
        for window in range(windows):
            plan = self.plan(window)
            real += int(plan.lengths.sum())
            places += int((np.diff(plan.first_row) * plan.widths.sum(axis=1)).sum())
        return 1 - real / max(places, 1)

    def origin(self, example: int, epoch: int) -> str:
        """Where an example of a batch comes from, in words."""
        source, number = example % len(self.names), example // len(self.names)
        told = self.objectives[source].origin(number, self.order.courses[source].draw(epoch))
        return f"{self.names[source]}: {told}" if self.names[source] else told

    def identity(self) -> dict[str, int]:
        """What must be the same for a cursor to mean the same place."""
        same = {**self.order.identity(), "length": self.capacity[0], "texts": self.texts}
        if len(self.capacity) > 1:
            same["source_length"] = self.capacity[1]
        if self.layout == "padded":
            same["batch_tokens"] = self.batch_tokens
        return same


def check_sources(sources: Mapping[str, Objective]) -> None:
    """Raise where a source has nothing to give, or sources cannot share rows."""
    first_name, first = next(iter(sources.items()))
    for name, objective in sources.items():
        if objective.tally.examples == 0:
            told = f" in {name!r}" if name else ""
            raise QkvError(f"there is nothing to train on{told}: {objective.tally}")
        for what in ("capacity", "outputs"):
            one, other = getattr(first, what), getattr(objective, what)
            if one != other:
                shown = [sorted(value) if isinstance(value, frozenset) else value for value in (one, other)]
                raise UsageError(
                    f"sources of a mixture must have the same {what}: {first_name!r} has {shown[0]} "
                    f"and {name!r} has {shown[1]}"
                )
