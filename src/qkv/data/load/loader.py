"""The loader: an iterator over training batches that prefetches them and can resume after any batch.

    loader = Loader(SequenceStream(objective, batch_tokens=32768), num_workers=2)
    for batch in loader:
        …
        state = loader.state_dict()

The state is a few integers. After `load_state_dict`, the loader continues with the batch that would have come next.
The number of workers and of processes may differ.
"""

from collections.abc import Iterator
from itertools import islice

import numpy as np

from qkv.data.load.batch import Batch
from qkv.data.load.workers import WorkerPool, WorkerResult
from qkv.data.payloads import PayloadSlot
from qkv.data.stream.collate import collate
from qkv.data.stream.sequences import FIRST_CURSOR, SequenceStream, StreamCursor
from qkv.errors import QkvError, UsageError

DATA_DEPENDENT = ("data", "examples", "pool_size", "mixture")
"""The values that change when the training data changes. They are reported as one change."""


class Loader:
    """The batches of one process (`rank` of `world_size`). Worker processes build them, unless `num_workers=0`.

    `state_dict` is the position after the last batch that was yielded; prefetched batches do not count. `epochs` is the
    number of epochs after which the loader ends; None means that it never ends. `pin_memory` puts batches into
    page-locked memory, which can be copied to a GPU asynchronously.
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
        pin_memory: bool = False,
    ):
        if not 0 <= rank < world_size:
            raise UsageError(
                f"rank = {rank} does not exist: with world_size = {world_size} it must be 0 to {world_size - 1}"
            )
        if num_workers < 0 or prefetch < 1:
            raise UsageError(f"num_workers = {num_workers} must be >= 0, and prefetch = {prefetch} must be >= 1")
        if epochs is not None and epochs < 0:
            raise UsageError(f"epochs = {epochs} must be >= 0, or None for no end")
        self.stream = stream
        self.rank, self.world_size = rank, world_size
        self.num_workers, self.prefetch, self.timeout = num_workers, prefetch, timeout
        self.epochs, self.pin_memory = epochs, pin_memory
        self.cursor = FIRST_CURSOR
        self.workers: WorkerPool | None = None

    def __iter__(self) -> Iterator[Batch]:
        self.close()
        if self.num_workers:
            slot_bytes = max_batch_bytes(self.stream, self.world_size)
            self.workers = WorkerPool(self._worker_batches, self.num_workers, self.prefetch, self.timeout, slot_bytes)
        try:
            for header, arrays in self.workers or self._worker_batches(0, 1):
                self.cursor = StreamCursor(*header["cursor"])
                yield Batch.from_arrays(arrays, self.stream, header["epoch"], pin_memory=self.pin_memory)
        finally:
            self.close()

    def _worker_batches(self, worker: int, num_workers: int) -> Iterator[WorkerResult]:
        """Yield every `num_workers`-th batch. Each worker plans all batches, and builds only its own."""
        plans = self.stream.batch_plans(self.cursor, self.rank, self.world_size, self.epochs)
        for plan, cursor in islice(plans, worker, None, num_workers):
            yield {"cursor": cursor, "epoch": plan.epoch}, collate(self.stream, plan)

    def state_dict(self) -> dict[str, int]:
        """The position of the loader in the data: a few integers to save with a checkpoint."""
        epoch = self.stream.order.epoch_of(self.cursor.pool)
        return {**self.cursor._asdict(), "epoch": epoch, **self.stream.resume_state()}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from a state. Raises if the data, the seed or the sequence lengths have changed."""
        current = self.stream.resume_state()
        wrong = [name for name, value in current.items() if state.get(name) != value]
        if wrong:
            changes = []
            if "data" in wrong:
                before, now = state.get("examples", "an unknown number of"), current["examples"]
                counts = f"it had {before} examples and has {now}"
                changes.append(f"the training data has changed since the run began ({counts})")
                wrong = [name for name in wrong if name not in DATA_DEPENDENT]
            changes += [f"{name} was {state.get(name, 'missing')} and is {current[name]}" for name in wrong]
            raise QkvError(
                f"cannot resume at the checkpoint's position in the data: {', '.join(changes)}. Undo the change, or "
                "start a new run"
            )
        cursor = StreamCursor(*(int(state[name]) for name in StreamCursor._fields))
        if min(cursor) < 0:
            numbers = ", ".join(f"{name} = {value}" for name, value in cursor._asdict().items())
            raise QkvError(
                f"the checkpoint is damaged: its position in the data ({numbers}) has a negative number. Resume from "
                "an older checkpoint"
            )
        self.close()
        self.cursor = cursor

    def origins(self, batch: Batch) -> list[str]:
        """Describe the file and line, or record, of each example of a batch, for messages."""
        examples = zip(batch.example_ids.tolist(), batch.example_epochs.tolist(), strict=True)
        return [self.stream.origin(example, epoch) for example, epoch in examples]

    def close(self) -> None:
        """End the worker processes."""
        if self.workers is not None:
            self.workers.close()
            self.workers = None


def max_batch_bytes(stream: SequenceStream, world_size: int) -> int:
    """An upper bound on the bytes of a batch.

    A batch has int32 or float32 arrays over all positions (ids, document ids, positions, token types, labels), labels
    of documents, and three int64 arrays over all examples.
    """
    widths = {"token": 4, "document": 6}  # numbers of 4 bytes for each position, and for each example
    for label in stream.labels:
        widths[label.per] += max(label.width, 1)
    sequence = sum(stream.max_lengths)
    positions = max(stream.batch_tokens, sequence) // world_size + sequence
    if stream.layout == "packed":
        examples = stream.max_documents * (stream.sequences_per_batch // world_size + 1)
    else:
        examples = positions
    payloads = sum(max_payload_bytes(slot, positions) for slot in stream.payloads)
    return 4 * (widths["token"] * positions + widths["document"] * examples) + payloads + 2**16


def max_payload_bytes(slot: PayloadSlot, positions: int) -> int:
    """An upper bound on the bytes of payloads with one vector for each placeholder. Others may be sent in a pipe."""
    vector = slot.format.width * np.dtype(slot.format.dtype).itemsize
    return positions * (vector + 4 * 8)
