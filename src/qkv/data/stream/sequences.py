"""The endless stream of rows: a pure function of the data, the seed and the layout.

The order's windows are packed one by one, each by itself, and the rows of each are shuffled: that is the stream. A
step takes the next few rows of it, and of these each data-parallel process takes its share. Nothing depends on how
many processes or workers there are, so a cursor (window, row) means the same place to any number of them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from qkv.data.objectives import Objective
from qkv.data.ragged import Ints, ragged_index
from qkv.data.stream.mixture import MixtureOrder, MixtureWeights, mixture_fractions
from qkv.data.stream.order import ExampleRefs, PoolOrder, SingleDatasetOrder
from qkv.data.stream.pack import PackingLayout, group_by_length, pack
from qkv.data.stream.random_bits import EpochRng, shuffle_groups
from qkv.errors import QkvError, UsageError, suggest_name

LAYOUTS = ("packed", "padded")
PROBE_EXAMPLES = 4096  # examples looked at to choose a window's size
SEQUENCES_PER_POOL = 256  # then the last, half-empty row of a window wastes 0.2 %
MAX_POOL_EXAMPLES = 32768


class StreamCursor(NamedTuple):
    """A place in the stream: the next unit (a row; a padded group) of a window, and the steps taken so far."""

    pool: int = 0
    unit: int = 0
    step: int = 0


STREAM_START = StreamCursor()


@dataclass(frozen=True)
class PoolPlan:
    """One window, laid out. Units are dealt in the order of `units`."""

    refs: ExampleRefs
    lengths: Ints  # (n, streams) of the picks
    layout: PackingLayout
    first_sequence: Ints  # (units + 1,)
    widths: Ints  # (units, streams) the length of their rows
    units: Ints  # (units,) in random order

    def sequences_of(self, units: Ints) -> Ints:
        """The rows of some units."""
        first = self.first_sequence[units]
        return ragged_index(first, self.first_sequence[units + 1] - first)

    def entries(self, sequences: Ints) -> tuple[Ints, Ints]:
        """The layout's entries in some rows, and beside each which of these rows it lies in, counted from 0."""
        first = np.searchsorted(self.layout.sequence, sequences)
        counts = np.searchsorted(self.layout.sequence, sequences, "right") - first
        return ragged_index(first, counts), np.repeat(np.arange(len(sequences)), counts)


@dataclass(frozen=True)
class BatchPlan:
    """What one process builds for one step: entries of a layout, with rows counted from 0."""

    refs: ExampleRefs
    sequence: Ints
    document: Ints
    offset: Ints  # (n, streams)
    lengths: Ints  # (n, streams)
    num_sequences: int
    sequence_lengths: tuple[int, ...]
    epoch: int


class SequenceStream:
    """Rows of one source, or of several by weight.

    `batch_tokens` is the number of places that a step has, source and target rows together, padding included. `layout`
    is "packed" (rows of fixed shape that hold several examples) or "padded" (examples of similar length, one a row).
    `texts`, the most examples that a row may hold, and `window`, the examples that are packed together, are chosen to
    suit the data where they are not given.
    """

    def __init__(
        self,
        objectives: Objective | Mapping[str, Objective],
        *,
        batch_tokens: int,
        seed: int = 0,
        layout: Literal["packed", "padded"] = "packed",
        weights: MixtureWeights = "proportional",
        temperature: float = 1.0,
        pool_size: int | None = None,
        max_documents: int | None = None,
    ):
        if layout not in LAYOUTS:
            raise UsageError(f"layout = {layout!r} is not known; {suggest_name(layout, LAYOUTS)}")
        sources = dict(objectives) if isinstance(objectives, Mapping) else {"": objectives}
        if not sources:
            raise UsageError("there are no sources to take rows from")
        check_datasets(sources)
        self.dataset_names = tuple(sources)
        self.objectives = tuple(sources.values())
        self.capacity = self.objectives[0].capacity
        self.outputs = self.objectives[0].outputs
        self.pad_token_id = self.objectives[0].pad_token_id
        self.layout = layout
        self.seed = seed
        self.batch_tokens = batch_tokens
        if batch_tokens < sum(self.capacity):
            raise UsageError(f"batch_tokens = {batch_tokens} is less than one row of {sum(self.capacity)} places")
        self.sequences_per_batch = batch_tokens // sum(self.capacity)  # of a packed step
        self.weights = mixture_fractions(sources, weights, temperature)
        self.order = self._make_order(sources, pool_size or self._choose_pool_size(sources))
        self.max_documents = 1 if layout == "padded" else max_documents or self._choose_max_documents()

    def _make_order(self, sources: dict[str, Objective], pool_size: int) -> PoolOrder:
        if len(sources) == 1:
            return SingleDatasetOrder(self.objectives[0], self.seed, pool_size)
        return MixtureOrder(sources, self.weights, self.seed, pool_size)

    def _choose_pool_size(self, sources: dict[str, Objective]) -> int:
        """So many examples that they fill enough rows."""
        self.order = self._make_order(sources, PROBE_EXAMPLES)
        lengths = self._example_lengths(self.order.pool(0))
        in_a_row = (np.asarray(self.capacity) / np.maximum(lengths.mean(axis=0), 1e-9)).min()
        return int(np.clip(SEQUENCES_PER_POOL * in_a_row, PROBE_EXAMPLES, MAX_POOL_EXAMPLES))

    def _choose_max_documents(self) -> int:
        """A quarter more than the fullest row of the first window needs when it may hold any number."""
        layout = pack(self._example_lengths(self.order.pool(0)), self.capacity, min(self.capacity))
        fullest = int(layout.document.max(initial=1))
        return min(-(-(fullest * 5 // 4 + 1) // 8) * 8, min(self.capacity))

    def _example_lengths(self, refs: ExampleRefs) -> Ints:
        """The places that examples take: (n, streams)."""
        lengths = np.zeros((len(refs), len(self.capacity)), np.int64)
        for entries, objective, draw in self.group_by_epoch(refs):
            lengths[entries] = objective.lengths(refs.example[entries], draw)
        return lengths

    def group_by_epoch(self, refs: ExampleRefs) -> Iterator[tuple[Ints, Objective, EpochRng]]:
        """The picks by source and epoch: (which of them, whose, drawn how)."""
        key = refs.dataset * (int(refs.epoch.max(initial=0)) + 1) + refs.epoch
        for value in np.unique(key):
            entries = np.flatnonzero(key == value)
            source, epoch = int(refs.dataset[entries[0]]), int(refs.epoch[entries[0]])
            yield entries, self.objectives[source], self.order.epoch_orders[source].rng(epoch)

    def plan_pool(self, pool: int) -> PoolPlan:
        """Lay out one window, from the lengths of its examples alone."""
        picks = self.order.pool(pool)
        lengths = self._example_lengths(picks)
        if self.layout == "packed":
            layout = pack(lengths, self.capacity, self.max_documents)
            first_row = np.arange(layout.num_sequences + 1)
            widths = np.tile(np.asarray(self.capacity), (layout.num_sequences, 1))
        else:
            layout, first_row, widths = group_by_length(lengths, self.batch_tokens)
        count = len(widths)
        keys = EpochRng(self.seed, pool).keys("units", np.zeros(1, np.int64))
        return PoolPlan(picks, lengths, layout, first_row, widths, shuffle_groups(keys, np.array([count])))

    def batch_plans(
        self, cursor: StreamCursor = STREAM_START, rank: int = 0, world_size: int = 1, epochs: int | None = None
    ) -> Iterator[tuple[BatchPlan, StreamCursor]]:
        """The steps of one process from a place on, each with the place after it.

        Without end, or to the end of `epochs` epochs; the last step may then have rows that hold nothing.
        """
        end = None if epochs is None else self.order.num_pools(epochs)
        window, unit, step = cursor
        wanted = self.sequences_per_batch if self.layout == "packed" else 1
        parts: list[tuple[PoolPlan, Ints]] = []  # units of the step so far
        have = 0
        while end is None or window < end:
            epoch = self.order.epoch_of(window)
            plan = self.plan_pool(window)
            while unit < len(plan.units):
                taken = plan.units[unit : unit + wanted - have]
                parts.append((plan, taken))
                unit, have = unit + len(taken), have + len(taken)
                if have == wanted:
                    step += 1
                    yield self._plan_shard(parts, rank, world_size, epoch), StreamCursor(window, unit, step)
                    parts, have = [], 0
            window, unit = window + 1, 0
        if parts:
            yield (
                self._plan_shard(parts, rank, world_size, self.order.epoch_of(window - 1)),
                StreamCursor(window, 0, step + 1),
            )

    def _plan_shard(self, parts: list[tuple[PoolPlan, Ints]], rank: int, world_size: int, epoch: int) -> BatchPlan:
        """This process's part of the rows of a step."""
        rows = [plan.sequences_of(units) for plan, units in parts]
        total = sum(map(len, rows)) if self.layout == "padded" else self.sequences_per_batch
        first, last = rank * total // world_size, (rank + 1) * total // world_size
        # All processes have equally many rows, empty ones if need be, and so as many micro-batches: with sharded
        # parameters, each of these is a meeting of all.
        height = -(-total // world_size)
        picks: list[ExampleRefs] = []
        columns: list[list[Ints]] = [[], [], [], []]  # row, segment, offset, lengths
        place = before = 0
        for (plan, _), part in zip(parts, rows, strict=True):
            mine = part[max(first - before, 0) : max(last - before, 0)]
            before += len(part)
            entries, row = plan.entries(mine)
            examples = plan.layout.example[entries]
            picks.append(plan.refs.take(examples))
            found = (place + row, plan.layout.document[entries], plan.layout.offset[entries], plan.lengths[examples])
            for column, values in zip(columns, found, strict=True):
                column.append(values)
            place += len(mine)
        width = np.max([plan.widths[units].max(axis=0) for plan, units in parts], axis=0)
        row, segment, offset, lengths = map(np.concatenate, columns)
        return BatchPlan(
            ExampleRefs.concatenate(picks), row, segment, offset, lengths, height, tuple(width.tolist()), epoch
        )

    def num_micro_batches(self, max_tokens: int, world_size: int = 1) -> int:
        """In how many parts a process must take its share of a step, for none to have more than `most` places.

        A row is never split. Padded rows are as wide as they happen to be: the answer is that for the worst width.
        """
        widest = sum(self.capacity)
        widths = np.array([widest]) if self.layout == "packed" else np.arange(1, widest + 1)
        rows = -(-(self.batch_tokens // widths) // world_size)
        return int((-(-rows // np.maximum(max_tokens // widths, 1))).max())

    def padding_fraction(self, num_pools: int = 4) -> float:
        """The share of places without a token in the first few windows."""
        real = places = 0
        for window in range(num_pools):
            plan = self.plan_pool(window)
            real += int(plan.lengths.sum())
            places += int((np.diff(plan.first_sequence) * plan.widths.sum(axis=1)).sum())
        return 1 - real / max(places, 1)

    def origin(self, example: int, epoch: int) -> str:
        """Where an example of a batch comes from, in words."""
        source, number = example % len(self.dataset_names), example // len(self.dataset_names)
        told = self.objectives[source].origin(number, self.order.epoch_orders[source].rng(epoch))
        return f"{self.dataset_names[source]}: {told}" if self.dataset_names[source] else told

    def invariants(self) -> dict[str, int]:
        """What must be the same for a cursor to mean the same place."""
        same = {**self.order.invariants(), "length": self.capacity[0], "texts": self.max_documents}
        if len(self.capacity) > 1:
            same["source_length"] = self.capacity[1]
        if self.layout == "padded":
            same["batch_tokens"] = self.batch_tokens
        return same


def check_datasets(sources: Mapping[str, Objective]) -> None:
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
