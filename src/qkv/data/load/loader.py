"""The loader: batches for training, prefetched, resumable to the example.

    loader = Loader(Rows(objective, batch_tokens=32768), workers=2)
    for batch in loader:
        …
        state = loader.state()

The state is a few integers. A loader that is given it with `load` goes on with the examples that would have followed,
whatever its number of workers and processes.
"""

from collections.abc import Iterator
from itertools import islice

from qkv.data.load.batch import Batch
from qkv.data.load.workers import WorkerPool, WorkerResult
from qkv.data.stream.collate import collate
from qkv.data.stream.sequences import STREAM_START, SequenceStream, StreamCursor
from qkv.errors import QkvError, UsageError

DATA_INVARIANTS = ("data", "examples", "window_size", "mixture")  # what other data changes of the rows' identity


class Loader:
    """Batches of one process (`rank` of `world`), built by `workers` processes, or as they are asked for with 0.

    `state` describes the place after the batch that was given out last, whatever was prefetched beyond it. With
    `epochs`, the loader ends after so many; without, never.
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
            raise UsageError(f"rank = {rank} is not below world = {world_size}")
        if num_workers < 0 or prefetch < 1:
            raise UsageError(f"workers = {num_workers} must be 0 or more, and prefetch = {prefetch} at least 1")
        if epochs is not None and epochs < 0:
            raise UsageError(f"epochs = {epochs}: 0 or more, or None for no end")
        self.stream = stream
        self.rank, self.world_size = rank, world_size
        self.num_workers, self.prefetch, self.timeout = num_workers, prefetch, timeout
        self.epochs = epochs
        self.cursor = STREAM_START
        self.workers: WorkerPool | None = None

    def __iter__(self) -> Iterator[Batch]:
        self.close()
        if self.num_workers:
            slot = max_batch_bytes(self.stream, self.world_size)
            self.workers = WorkerPool(self._worker_batches, self.num_workers, self.prefetch, self.timeout, slot)
        try:
            for header, arrays in self.workers or self._worker_batches(0, 1):
                self.cursor = StreamCursor(*header["cursor"])
                yield Batch.from_arrays(arrays, self.stream.max_documents, header["epoch"])
        finally:
            self.close()

    def _worker_batches(self, worker: int, workers: int) -> Iterator[WorkerResult]:
        """Every `workers`-th batch from here on. Each worker plans all steps, which is cheap, and builds its own."""
        steps = self.stream.batch_plans(self.cursor, self.rank, self.world_size, self.epochs)
        for step, after in islice(steps, worker, None, workers):
            yield {"cursor": after, "epoch": step.epoch}, collate(self.stream, step)

    def state_dict(self) -> dict[str, int]:
        """Where the loader is: a few integers, to be kept with a checkpoint.

        >>> loader.state()                                                             # doctest: +SKIP
        {'window': 3, 'unit': 17, 'step': 40, 'epoch': 1, 'seed': 0, 'window_size': 4096, …}
        """
        return {
            **self.cursor._asdict(),
            "epoch": self.stream.order.epoch_of(self.cursor.pool),
            **self.stream.invariants(),
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from a state. Refused where it belongs to other data, another seed or other rows."""
        identity = self.stream.invariants()
        wrong = [name for name, value in identity.items() if state.get(name) != value]
        if wrong:
            listed = [name for name in wrong if "data" not in wrong or name not in DATA_INVARIANTS]
            told = [f"{name} was {state.get(name, 'not there')} and is {identity[name]}" for name in listed]
            if "data" in wrong:
                then, now = state.get("examples", "unknown"), identity["examples"]
                counts = f"examples then: {then}, now: {now}"
                told.insert(0, f"the data is not what it was when the run began, say because a file changed ({counts})")
            raise QkvError(
                f"the place in the data cannot be found again: {', '.join(told)}. "
                "Restore what changed, or start a new run"
            )
        if any(int(state[name]) < 0 for name in StreamCursor._fields):
            raise QkvError("the place in the data cannot be found again: its numbers are damaged")
        self.close()
        self.cursor = StreamCursor(*(int(state[name]) for name in StreamCursor._fields))

    def rewind(self) -> None:
        """Back to the beginning."""
        self.close()
        self.cursor = STREAM_START

    def origins(self, batch: Batch) -> list[str]:
        """Where the examples of a batch come from, in words, for messages about it."""
        pairs = zip(batch.example_ids.tolist(), batch.example_epochs.tolist(), strict=True)
        return [self.stream.origin(example, epoch) for example, epoch in pairs]

    def close(self) -> None:
        """End the worker processes."""
        if self.workers is not None:
            self.workers.close()
            self.workers = None


def max_batch_bytes(stream: SequenceStream, world_size: int) -> int:
    """The bytes that a batch takes at most: five arrays over all places (int32), and seven over all examples."""
    places = max(stream.batch_tokens, sum(stream.capacity)) // world_size + sum(stream.capacity)
    examples = (
        stream.max_documents * (stream.sequences_per_batch // world_size + 1) if stream.layout == "packed" else places
    )
    return 4 * 5 * places + 8 * 7 * examples + 2**16
