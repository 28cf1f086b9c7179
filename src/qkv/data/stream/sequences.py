"""The endless stream of sequences: a pure function of the data, the seed and the layout.

Each pool of examples is packed separately, and its sequences are shuffled. A batch takes the next sequences of the
stream, and each data-parallel rank takes its shard of the batch. The stream does not depend on the number of processes
or workers, so a cursor is valid for any number of them.

S is the number of sides: 1, or 2 for pairs (target, source).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from qkv.data.objectives.base import Objective
from qkv.data.ragged import IntArray, ragged_index
from qkv.data.stream.mixture import MixtureOrder, mixture_fractions
from qkv.data.stream.order import ExampleRefs, SingleDatasetOrder
from qkv.data.stream.pack import PackingLayout, group_by_length, pack
from qkv.data.stream.random_bits import EpochRng, shuffle_groups
from qkv.errors import QkvError, UsageError, suggest_name

LAYOUTS = ("packed", "padded")
PROBE_EXAMPLES = 4096  # the number of examples from which the size of a pool is chosen
SEQUENCES_PER_POOL = 256  # the last sequence of a pool is half empty on average, which wastes 0.2 %
MAX_POOL_EXAMPLES = 32768


class StreamCursor(NamedTuple):
    """A position in the stream: the pool, the next item in it, and the number of steps so far.

    An item is one packed sequence, or one padded batch.
    """

    pool: int = 0
    item: int = 0
    step: int = 0


FIRST_CURSOR = StreamCursor()


@dataclass(frozen=True)
class PoolPlan:
    """The layout of one pool. An item is one packed sequence, or one padded batch of several sequences."""

    refs: ExampleRefs
    lengths: IntArray  # (n, S) the lengths of the examples
    layout: PackingLayout
    item_starts: IntArray  # (items + 1,) the first sequence of each item, then the number of sequences
    sequence_lengths: IntArray  # (items, S) the length of the sequences in each item
    item_order: IntArray  # (items,) the random order in which the items are used

    def sequences_of(self, items: IntArray) -> IntArray:
        """The sequences of some items."""
        first = self.item_starts[items]
        return ragged_index(first, self.item_starts[items + 1] - first)

    def entries(self, sequences: IntArray) -> tuple[IntArray, IntArray]:
        """The layout entries of the given sequences, and for each entry the index of its sequence in `sequences`."""
        first = np.searchsorted(self.layout.sequence, sequences)
        counts = np.searchsorted(self.layout.sequence, sequences, "right") - first
        return ragged_index(first, counts), np.repeat(np.arange(len(sequences)), counts)


@dataclass(frozen=True)
class BatchPlan:
    """The batch of one process for one step: n examples, and where they go."""

    refs: ExampleRefs
    sequence: IntArray  # (n,) index in the batch
    document: IntArray  # (n,) counted from 1 in each sequence
    offset: IntArray  # (n, S)
    lengths: IntArray  # (n, S)
    num_sequences: int
    sequence_lengths: tuple[int, ...]
    epoch: int


class SequenceStream:
    """Sequences from one dataset, or from a weighted mixture of several.

    `batch_tokens` is the number of positions in a batch: source and target together, padding included. `layout` is
    "packed" (sequences of a fixed length with several examples) or "padded" (one example a sequence, batches of
    similar lengths). `weights` are the weights of a mixture. `max_documents` is the maximum number of examples in a
    sequence, and `pool_size` is the number of examples that are packed together; their defaults suit the data.
    """

    def __init__(
        self,
        objectives: Objective | Mapping[str, Objective],
        *,
        batch_tokens: int,
        seed: int = 0,
        layout: Literal["packed", "padded"] = "packed",
        weights: Mapping[str, float] | None = None,
        pool_size: int | None = None,
        max_documents: int | None = None,
    ):
        if layout not in LAYOUTS:
            raise UsageError(f"unknown layout {layout!r}; {suggest_name(layout, LAYOUTS)}")
        datasets = dict(objectives) if isinstance(objectives, Mapping) else {"": objectives}
        if not datasets:
            raise UsageError("the mixture is empty; give at least one dataset")
        check_datasets(datasets)
        self.dataset_names = tuple(datasets)
        self.objectives = tuple(datasets.values())
        self.max_lengths = self.objectives[0].max_lengths
        self.objective = self.objectives[0].name
        self.labels = self.objectives[0].labels
        self.has_token_types = self.objectives[0].has_token_types
        self.payloads = self.objectives[0].payloads
        self.pad_token_id = self.objectives[0].pad_token_id
        self.layout = layout
        self.seed = seed
        self.batch_tokens = batch_tokens
        if batch_tokens < sum(self.max_lengths):
            raise UsageError(
                f"batch_tokens = {batch_tokens} is less than one sequence of {sum(self.max_lengths)} tokens; raise it, "
                "or lower max_length"
            )
        self.sequences_per_batch = batch_tokens // sum(self.max_lengths)  # only used if layout = "packed"
        self.weights = mixture_fractions(datasets, weights)
        self.order = self._make_order(datasets, pool_size or self._choose_pool_size(datasets))
        self.max_documents = 1 if layout == "padded" else max_documents or self._choose_max_documents()

    def _make_order(self, datasets: dict[str, Objective], pool_size: int) -> SingleDatasetOrder | MixtureOrder:
        if len(datasets) == 1:
            return SingleDatasetOrder(self.objectives[0], self.seed, pool_size)
        return MixtureOrder(datasets, self.weights, self.seed, pool_size)

    def _choose_pool_size(self, datasets: dict[str, Objective]) -> int:
        """Enough examples for about `SEQUENCES_PER_POOL` sequences."""
        self.order = self._make_order(datasets, PROBE_EXAMPLES)
        lengths = self._example_lengths(self.order.pool(0))
        per_sequence = (np.asarray(self.max_lengths) / np.maximum(lengths.mean(axis=0), 1e-9)).min()
        return int(np.clip(SEQUENCES_PER_POOL * per_sequence, PROBE_EXAMPLES, MAX_POOL_EXAMPLES))

    def _choose_max_documents(self) -> int:
        """At least 1.25 times the maximum number of examples in a sequence of the first pool, a multiple of 8.

        1 if packing saves less than a hundredth of the sequences, as with the windows of one long text: attention
        without document masks is faster.
        """
        lengths = self._example_lengths(self.order.pool(0))
        layout = pack(lengths, self.max_lengths, min(self.max_lengths))
        if layout.num_sequences > 0.99 * len(lengths):
            return 1
        fullest = int(layout.document.max(initial=1))
        return min(-(-(fullest * 5 // 4 + 1) // 8) * 8, min(self.max_lengths))

    def _example_lengths(self, refs: ExampleRefs) -> IntArray:
        """The lengths of examples: (n, S)."""
        lengths = np.zeros((len(refs), len(self.max_lengths)), np.int64)
        for entries, objective, rng in self.group_by_epoch(refs):
            lengths[entries] = objective.lengths(refs.example[entries], rng)
        return lengths

    def group_by_epoch(self, refs: ExampleRefs) -> Iterator[tuple[IntArray, Objective, EpochRng]]:
        """The references by dataset and epoch: (indices of the references, the objective, its random numbers)."""
        key = refs.dataset * (int(refs.epoch.max(initial=0)) + 1) + refs.epoch
        for value in np.unique(key):
            entries = np.flatnonzero(key == value)
            dataset, epoch = int(refs.dataset[entries[0]]), int(refs.epoch[entries[0]])
            yield entries, self.objectives[dataset], self.order.epoch_orders[dataset].rng(epoch)

    def plan_pool(self, pool: int) -> PoolPlan:
        """Lay out one pool, from the lengths of its examples only."""
        refs = self.order.pool(pool)
        lengths = self._example_lengths(refs)
        if self.layout == "packed":
            layout = pack(lengths, self.max_lengths, self.max_documents)
            item_starts = np.arange(layout.num_sequences + 1)
            sequence_lengths = np.tile(np.asarray(self.max_lengths), (layout.num_sequences, 1))
        else:
            layout, item_starts, sequence_lengths = group_by_length(lengths, self.batch_tokens)
        keys = EpochRng(self.seed, pool).keys("units", np.zeros(1, np.int64))
        item_order = shuffle_groups(keys, np.array([len(sequence_lengths)]))
        return PoolPlan(refs, lengths, layout, item_starts, sequence_lengths, item_order)

    def batch_plans(
        self, cursor: StreamCursor = FIRST_CURSOR, rank: int = 0, world_size: int = 1, epochs: int | None = None
    ) -> Iterator[tuple[BatchPlan, StreamCursor]]:
        """The batches of one process from a cursor on, each with the cursor after it.

        The iterator is endless unless `epochs` limits it; the last batch of the last epoch may have empty sequences.
        """
        end = None if epochs is None else self.order.num_pools(epochs)
        pool, item, step = cursor
        items_per_batch = self.sequences_per_batch if self.layout == "packed" else 1
        parts: list[tuple[PoolPlan, IntArray]] = []  # the items of the batch so far
        num_items = epoch = 0
        while end is None or pool < end:
            epoch = self.order.epoch_of(pool)
            plan = self.plan_pool(pool)
            while item < len(plan.item_order):
                taken = plan.item_order[item : item + items_per_batch - num_items]
                parts.append((plan, taken))
                item, num_items = item + len(taken), num_items + len(taken)
                if num_items == items_per_batch:
                    step += 1
                    yield self._plan_shard(parts, rank, world_size, epoch), StreamCursor(pool, item, step)
                    parts, num_items = [], 0
            pool, item = pool + 1, 0
        if parts:
            yield self._plan_shard(parts, rank, world_size, epoch), StreamCursor(pool, 0, step + 1)

    def _plan_shard(self, parts: list[tuple[PoolPlan, IntArray]], rank: int, world_size: int, epoch: int) -> BatchPlan:
        """This rank's shard of the sequences of a batch."""
        sequences = [plan.sequences_of(items) for plan, items in parts]
        total = sum(map(len, sequences)) if self.layout == "padded" else self.sequences_per_batch
        first, last = rank * total // world_size, (rank + 1) * total // world_size
        refs: list[ExampleRefs] = []
        columns: list[list[IntArray]] = [[], [], [], []]  # sequence, document, offset, lengths
        placed = before = 0
        for (plan, _), part in zip(parts, sequences, strict=True):
            mine = part[max(first - before, 0) : max(last - before, 0)]
            before += len(part)
            entries, sequence = plan.entries(mine)
            examples = plan.layout.example[entries]
            refs.append(plan.refs.take(examples))
            columns[0].append(placed + sequence)
            columns[1].append(plan.layout.document[entries])
            columns[2].append(plan.layout.offset[entries])
            columns[3].append(plan.lengths[examples])
            placed += len(mine)
        sequence_lengths = np.max([plan.sequence_lengths[items].max(axis=0) for plan, items in parts], axis=0)
        # Every rank has the same number of sequences, some empty if necessary, and so the same number of
        # micro-batches: with sharded parameters, each of them is a collective operation.
        num_sequences = -(-total // world_size)
        sequence, document, offset, lengths = map(np.concatenate, columns)
        return BatchPlan(
            refs=ExampleRefs.concatenate(refs),
            sequence=sequence,
            document=document,
            offset=offset,
            lengths=lengths,
            num_sequences=num_sequences,
            sequence_lengths=tuple(sequence_lengths.tolist()),
            epoch=epoch,
        )

    def num_micro_batches(self, max_tokens: int, world_size: int = 1) -> int:
        """The number of micro-batches in which a rank's shard has at most `max_tokens` positions each.

        A sequence is never split. The length of padded sequences varies: this is the number for the worst length.
        """
        longest = sum(self.max_lengths)
        lengths = np.array([longest]) if self.layout == "packed" else np.arange(1, longest + 1)
        sequences = -(-(self.batch_tokens // lengths) // world_size)
        return int((-(-sequences // np.maximum(max_tokens // lengths, 1))).max())

    def padding_fraction(self, num_pools: int = 4) -> float:
        """The fraction of padding in the first pools."""
        num_tokens = num_positions = 0
        for pool in range(num_pools):
            plan = self.plan_pool(pool)
            num_tokens += int(plan.lengths.sum())
            num_positions += int((np.diff(plan.item_starts) * plan.sequence_lengths.sum(axis=1)).sum())
        return 1 - num_tokens / max(num_positions, 1)

    def objective_of(self, example: int) -> Objective:
        """The objective that built an example of a batch."""
        return self.objectives[example % len(self.dataset_names)]

    def origin(self, example: int, epoch: int) -> str:
        """Describe the record of an example of a batch, for messages."""
        number, dataset = divmod(example, len(self.dataset_names))
        origin = self.objectives[dataset].origin(number, self.order.epoch_orders[dataset].rng(epoch))
        name = self.dataset_names[dataset]
        return f"{name}: {origin}" if name else origin

    def resume_state(self) -> dict[str, int]:
        """Values that a checkpoint stores. Resuming is an error if one of them has changed."""
        state = {
            **self.order.resume_state(),
            "max_length": self.max_lengths[0],
            "max_documents": self.max_documents,
        }
        if len(self.max_lengths) > 1:
            state["max_source_length"] = self.max_lengths[1]
        if self.layout == "padded":
            state["batch_tokens"] = self.batch_tokens
        return state


def check_datasets(datasets: Mapping[str, Objective]) -> None:
    """Raise if a dataset has no examples, or the datasets cannot be in one batch."""
    first_name, first = next(iter(datasets.items()))
    for name, objective in datasets.items():
        if objective.counts.examples == 0:
            where = f" in {name!r}" if name else ""
            next_step = (
                'The skipped records are too long: raise max_length, or set too_long = "truncate". Sounds may '
                "have too few frames for their transcripts: lower stride in [model.audio]"
                if objective.counts.skipped
                else "Every record is empty: check that the right file and column are read"
            )
            raise QkvError(f"no training examples are left{where}: {objective.counts}. {next_step}")
        if objective.max_lengths != first.max_lengths:
            raise UsageError(
                f"the datasets of a mixture share batches, so they need the same sequence lengths: {first_name!r} has "
                f"{first.max_lengths} and {name!r} has {objective.max_lengths}. Give all of them the same max_length "
                "and max_source_length"
            )
        descriptions = [describe_arrays(one) for one in (first, objective)]
        if descriptions[0] != descriptions[1]:
            raise UsageError(
                f"the datasets of a mixture share batches, so they need the same fields: {first_name!r} has "
                f"{descriptions[0]} and {name!r} has {descriptions[1]}. Use the same objective for all of them"
            )


def describe_arrays(objective: Objective) -> str:
    """The objective and the arrays that it adds to a batch, such as "classification: classes, token types"."""
    arrays = [f"{label.name} ({label.width})" if label.width else label.name for label in objective.labels]
    arrays += ["token types"] * objective.has_token_types
    arrays += [f"{slot.format.kind} ({'source' if slot.is_source else 'target'})" for slot in objective.payloads]
    return f"{objective.name}: {', '.join(arrays)}"
