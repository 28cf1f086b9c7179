"""The loader: batches for training, prefetched, and resumable at any example.

    loader = Loader(SequenceStream(objective, batch_tokens=32768), num_workers=2)
    for batch in loader:
        …
        state = loader.state_dict()

The state is a few integers. After `load_state_dict` a loader continues with the examples that would have followed,
whatever its number of workers and processes.
"""

from collections.abc import Iterator
from itertools import islice

from qkv.data.load.batch import Batch
from qkv.data.load.workers import WorkerPool, WorkerResult
from qkv.data.stream.collate import collate
from qkv.data.stream.sequences import STREAM_START, SequenceStream, StreamCursor
from qkv.errors import QkvError, UsageError

DATA_INVARIANTS = ("data", "examples", "pool_size", "mixture")  # the invariants that other data changes


class Loader:
    """Batches of one process (`rank` of `world_size`), built by worker processes, or on demand with `num_workers=0`.

    The state is that after the last batch that was yielded, whatever has been prefetched beyond it. With `epochs` the
    loader ends after that number of epochs; without, it never ends.
    """

    def __init__(
        self,
        stream: SequenceStream,
        *,
        rank: int = 0,
        world_size: int = 1,
        num_workers: int = 0,
        prefetch: int = 4,
        epochs: int | None = None,
        timeout: float = 120.0,
    ):
        if not 0 <= rank < world_size:
            raise UsageError(f"rank = {rank} is not below world_size = {world_size}")
        if num_workers < 0 or prefetch < 1:
            raise UsageError(f"num_workers = {num_workers} must be >= 0, and prefetch = {prefetch} must be >= 1")
        if epochs is not None and epochs < 0:
            raise UsageError(f"epochs = {epochs} must be >= 0, or None for no end")
        self.stream = stream
        self.rank, self.world_size = rank, world_size
        self.num_workers, self.prefetch, self.timeout = num_workers, prefetch, timeout
        self.epochs = epochs
        self.cursor = STREAM_START
        self.workers: WorkerPool | None = None

    def __iter__(self) -> Iterator[Batch]:
        self.close()
        if self.num_workers:
            slot_bytes = max_batch_bytes(self.stream, self.world_size)
            self.workers = WorkerPool(self._worker_batches, self.num_workers, self.prefetch, self.timeout, slot_bytes)
        try:
            for header, arrays in self.workers or self._worker_batches(0, 1):
                self.cursor = StreamCursor(*header["cursor"])
                yield Batch.from_arrays(arrays, self.stream.max_documents, header["epoch"])
        finally:
            self.close()

    def _worker_batches(self, worker: int, num_workers: int) -> Iterator[WorkerResult]:
        """Every `num_workers`-th batch. Each worker plans all batches, which is cheap, and builds its own."""
        plans = self.stream.batch_plans(self.cursor, self.rank, self.world_size, self.epochs)
        for plan, cursor in islice(plans, worker, None, num_workers):
            yield {"cursor": cursor, "epoch": plan.epoch}, collate(self.stream, plan)

    def state_dict(self) -> dict[str, int]:
        """The loader's position, a few integers, to be saved with a checkpoint.

        >>> loader.state_dict()                                                             # doctest: +SKIP
        {'pool': 3, 'unit': 17, 'step': 40, 'epoch': 1, 'seed': 0, 'pool_size': 4096, …}
        """
        epoch = self.stream.order.epoch_of(self.cursor.pool)
        return {**self.cursor._asdict(), "epoch": epoch, **self.stream.invariants()}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from a state. Raises if it belongs to other data, another seed or other sequences."""
        invariants = self.stream.invariants()
        wrong = [name for name, value in invariants.items() if state.get(name) != value]
        if wrong:
            changes = []
            if "data" in wrong:
                counts = f"{state.get('examples', 'unknown')} examples then, {invariants['examples']} now"
                changes.append(f"the data is not what it was when the run began; did a file change? ({counts})")
                wrong = [name for name in wrong if name not in DATA_INVARIANTS]
            changes += [f"{name} was {state.get(name, 'missing')} and is {invariants[name]}" for name in wrong]
            raise QkvError(
                f"cannot restore the position in the data: {', '.join(changes)}. Undo the change, or start a new run"
            )
        if any(int(state[name]) < 0 for name in StreamCursor._fields):
            raise QkvError("cannot restore the position in the data: its numbers are damaged")
        self.close()
        self.cursor = StreamCursor(*(int(state[name]) for name in StreamCursor._fields))

    def rewind(self) -> None:
        """Go back to the first batch."""
        self.close()
        self.cursor = STREAM_START

    def origins(self, batch: Batch) -> list[str]:
        """Where the examples of a batch come from, for messages."""
        examples = zip(batch.example_ids.tolist(), batch.example_epochs.tolist(), strict=True)
        return [self.stream.origin(example, epoch) for example, epoch in examples]

    def close(self) -> None:
        """End the worker processes."""
        if self.workers is not None:
            self.workers.close()
            self.workers = None


def max_batch_bytes(stream: SequenceStream, world_size: int) -> int:
    """An upper bound on the bytes of a batch: five int32 arrays over all positions, seven over all examples."""
    sequence = sum(stream.capacity)
    positions = max(stream.batch_tokens, sequence) // world_size + sequence
    if stream.layout == "packed":
        examples = stream.max_documents * (stream.sequences_per_batch // world_size + 1)
    else:
        examples = positions
    return 4 * 5 * positions + 8 * 7 * examples + 2**16
