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

from qkv.data.batch import Batch
from qkv.data.fill import fill
from qkv.data.rows import START, Cursor, Rows
from qkv.data.workers import Result, Workers
from qkv.errors import QkvError, UsageError

OF_DATA = ("data", "examples", "window_size", "mixture")  # what other data changes of the rows' identity


class Loader:
    """Batches of one process (`rank` of `world`), built by `workers` processes, or as they are asked for with 0.

    `state` describes the place after the batch that was given out last, whatever was prefetched beyond it. With
    `epochs`, the loader ends after so many; without, never.
    """

    def __init__(
        self,
        rows: Rows,
        *,
        rank: int = 0,
        world: int = 1,
        workers: int = 0,
        prefetch: int = 4,
        epochs: int | None = None,
        timeout: float = 120.0,
    ):
        if not 0 <= rank < world:
            raise UsageError(f"rank = {rank} is not below world = {world}")
        if workers < 0 or prefetch < 1:
            raise UsageError(f"workers = {workers} must be 0 or more, and prefetch = {prefetch} at least 1")
        if epochs is not None and epochs < 0:
            raise UsageError(f"epochs = {epochs}: 0 or more, or None for no end")
        self.rows = rows
        self.rank, self.world = rank, world
        self.worker_count, self.prefetch, self.timeout = workers, prefetch, timeout
        self.epochs = epochs
        self.cursor = START
        self.workers: Workers | None = None

    def __iter__(self) -> Iterator[Batch]:
        self.close()
        if self.worker_count:
            slot = most_bytes(self.rows, self.world)
            self.workers = Workers(self._work, self.worker_count, self.prefetch, self.timeout, slot)
        try:
            for header, arrays in self.workers or self._work(0, 1):
                self.cursor = Cursor(*header["cursor"])
                yield Batch.of(arrays, self.rows.texts, header["epoch"])
        finally:
            self.close()

    def _work(self, worker: int, workers: int) -> Iterator[Result]:
        """Every `workers`-th batch from here on. Each worker plans all steps, which is cheap, and builds its own."""
        steps = self.rows.steps(self.cursor, self.rank, self.world, self.epochs)
        for step, after in islice(steps, worker, None, workers):
            yield {"cursor": after, "epoch": step.epoch}, fill(self.rows, step)

    def state(self) -> dict[str, int]:
        """Where the loader is: a few integers, to be kept with a checkpoint.

        >>> loader.state()                                                             # doctest: +SKIP
        {'window': 3, 'unit': 17, 'step': 40, 'epoch': 1, 'seed': 0, 'window_size': 4096, …}
        """
        return {**self.cursor._asdict(), "epoch": self.rows.order.epoch(self.cursor.window), **self.rows.identity()}

    def load(self, state: dict[str, int]) -> None:
        """Go on from a state. Refused where it belongs to other data, another seed or other rows."""
        identity = self.rows.identity()
        wrong = [name for name, value in identity.items() if state.get(name) != value]
        if wrong:
            listed = [name for name in wrong if "data" not in wrong or name not in OF_DATA]
            told = [f"{name} was {state.get(name, 'not there')} and is {identity[name]}" for name in listed]
            if "data" in wrong:
                then, now = state.get("examples", "unknown"), identity["examples"]
                counts = f"examples then: {then}, now: {now}"
                told.insert(0, f"the data is not what it was when the run began, say because a file changed ({counts})")
            raise QkvError(
                f"the place in the data cannot be found again: {', '.join(told)}. "
                "Restore what changed, or start a new run"
            )
        if any(int(state[name]) < 0 for name in Cursor._fields):
            raise QkvError("the place in the data cannot be found again: its numbers are damaged")
        self.close()
        self.cursor = Cursor(*(int(state[name]) for name in Cursor._fields))

    def rewind(self) -> None:
        """Back to the beginning."""
        self.close()
        self.cursor = START

    def origins(self, batch: Batch) -> list[str]:
        """Where the examples of a batch come from, in words, for messages about it."""
        pairs = zip(batch.example.tolist(), batch.example_epoch.tolist(), strict=True)
        return [self.rows.origin(example, epoch) for example, epoch in pairs]

    def close(self) -> None:
        """End the worker processes."""
        if self.workers is not None:
            self.workers.close()
            self.workers = None


def most_bytes(rows: Rows, world: int) -> int:
    """The bytes that a batch takes at most: five arrays over all places (int32), and seven over all examples."""
    places = max(rows.batch_tokens, sum(rows.capacity)) // world + sum(rows.capacity)
    examples = rows.texts * (rows.batch_rows // world + 1) if rows.layout == "packed" else places
    return 4 * 5 * places + 8 * 7 * examples + 2**16
