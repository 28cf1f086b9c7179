"""What a machine reaches with a model: reading, writing and searching, in batches of growing size.

    prefill    prompts (or sources, or texts for a model that does not write) of growing length, one at a time
    decode     a token for each row of a batch, step after step, greedily: tokens written a second
    search     the same with four hypotheses a row, for an encoder-decoder
    encode     batches of texts through a model that does not write: tokens read a second

All goes through `generate`, so that what is measured is what a user gets: on a GPU, steps as CUDA graphs. A step's time
is the difference between writing a few tokens and writing more, so that reading the prompt and capturing a graph, which
are paid once, cancel out; so many more that they take about as long as these. Times are the best of several. Batches
double for as long as there is time and memory.
"""

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import torch

from qkv.decode import Options, generate
from qkv.measure.cost import Cost, read_cost, step_cost, weight_bytes
from qkv.measure.limits import Bound, Limits, best_time, measure_limits, timed
from qkv.measure.machine import free_memory, machine_name
from qkv.models import Decoder, Encoder, Network, Seq2Seq

Kind = Literal["prefill", "decode", "search", "encode"]
Report = Callable[[str, int, int], None]
"""Called with what is measured now, how much of all is done, and how much there is."""

LENGTHS = (16, 64, 256, 1024, 4096)
"""Of the prompts that are read, as far as the model's positions reach."""
PROMPT = 16
"""How long a prompt or a source is where writing is measured."""
TEXT = 128
"""How long a text is where batches of texts are read."""
FEW, MORE = 4, 64
"""How many tokens are written in the shorter run, and at most how many more in the longer one."""
BEAMS = 4
MOST = {"cpu": 256, "cuda": 1024}
"""The largest batch."""
SHARES = {"limits": 0.15, "prefill": 0.25}
"""Of the time; the rest is for batches."""
TRIES = 12
"""No length and no batch takes more than one part in so many of the time for all of them, while there are others."""

DOUBTFUL = (
    "above 100 %: a limit was measured too low or a time too short, as when other work disturbs the machine; "
    "measure again, with more --seconds"
)


@dataclass(frozen=True)
class Point:
    """One thing measured, beside its limit."""

    kind: Kind
    batch: int
    beams: int
    length: int  # tokens of each prompt, source or text
    seconds: float  # of one pass: a step, or reading a batch
    tokens: int  # that a pass reads or writes
    bytes: int  # that it must read
    flops: int
    limit: float  # tokens a second
    bound: Bound  # what sets the limit

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds

    @property
    def share(self) -> float:
        """How much of the limit is reached."""
        return self.rate / self.limit

    @property
    def doubtful(self) -> bool:
        """Whether more than the limit seems to be reached."""
        return round(100 * self.share) > 100

    @property
    def intensity(self) -> float:
        """FLOPs for each byte."""
        return self.flops / self.bytes

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "tokens_per_second": self.rate, "share": self.share}


@dataclass
class Bench:
    """All that was measured of one model on one machine."""

    model: str
    family: str
    parameters: int
    weight_bytes: int
    machine: str
    device: str
    threads: int
    dtype: str
    int8: bool
    torch: str
    limits: Limits
    points: list[Point] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def of(self, *kinds: Kind) -> list[Point]:
        return [point for point in self.points if point.kind in kinds]

    def to_dict(self) -> dict[str, Any]:
        values = asdict(self)
        values["limits"] = {**asdict(self.limits), "bandwidth": self.limits.bandwidth}
        values["points"] = [point.to_dict() for point in self.points]
        return values


def measure(
    name: str,
    network: Network,
    parameters: int,
    *,
    int8: bool = False,
    seconds: float = 20.0,
    report: Report | None = None,
) -> Bench:
    """Measure a network in about so many seconds; a large one takes longer, as everything is tried at least once."""
    one = next(network.parameters())
    device, dtype, weights = one.device, one.dtype, weight_bytes(network)
    tell = report or (lambda what, done, total: None)
    tell("limits of the machine", 0, 100)
    limits = measure_limits(device, dtype, int8=int8, weights=weights, seconds=seconds * SHARES["limits"])
    bench = Bench(
        model=name,
        family=network.config.family,
        parameters=parameters,
        weight_bytes=weights,
        machine=machine_name(device),
        device=str(device),
        threads=torch.get_num_threads(),
        dtype=str(dtype).removeprefix("torch."),
        int8=int8,
        torch=torch.__version__,
        limits=limits,
    )
    if int8 and device.type == "cuda":
        bench.notes.append("int8 weights on a GPU pay in compiled steps of one text, which are not measured here")
    subject = Subject(without_end(network), bench, tell)
    subject.read(seconds * SHARES["prefill"])
    left = seconds * (1 - sum(SHARES.values()))
    if not subject.writes:
        subject.sweep("encode", left)
    elif isinstance(network, Seq2Seq):
        subject.sweep("decode", left / 2)
        subject.sweep("search", left / 2)
    else:
        subject.sweep("decode", left)
    if any(point.doubtful for point in bench.points):
        bench.notes.append(DOUBTFUL)
    return bench


def without_end(network: Network) -> Network:
    """The same network, weights and all, that never ends a text by itself and has something to begin one with."""
    twin = copy.copy(network)
    start = 0 if network.config.start is None else network.config.start
    twin.config = replace(network.config, end=(), start=start)
    return twin


class Subject:
    """A network being measured, and the bench that it fills."""

    def __init__(self, network: Network, bench: Bench, tell: Report) -> None:
        self.network, self.bench, self.tell = network, bench, tell
        self.device = next(network.parameters()).device
        self.source = network.config.encoder or network.config.stack
        self.reach = self.source.max_positions if self.source.limited else LENGTHS[-1]
        target = network.config.stack
        self.room = target.max_positions if target.limited else LENGTHS[-1]  # for what is read and written
        self.writes = isinstance(network, Seq2Seq) or network.config.head.kind == "lm"
        self.shortest = 0.0  # seconds that the newest batch took, with nothing tried more often than it must be

    # ── Reading ──────────────────────────────────────────────────────────────────────────────────────────────────

    def read(self, seconds: float) -> None:
        """One text at a time, of growing length."""
        most = self.reach - (self.writes and isinstance(self.network, Decoder))  # a decoder writes a token after it
        lengths = [length for length in LENGTHS if length <= most] or [max(1, most)]
        stop, last = time.perf_counter() + seconds, 0.0
        for number, length in enumerate(lengths):
            if number and time.perf_counter() + 4 * 3 * last > stop:  # four times the length, warmed up and tried twice
                self.bench.notes.append(f"prefill: {length:,} tokens and more would have taken longer than was given")
                return
            self.tell(f"reading {length:,} tokens", int(100 * SHARES["limits"]) + number, 100)
            last = best_time(self._reading(1, length), self.device, seconds / TRIES)
            self._add("prefill", 1, 1, length, last, length, read_cost(self.network, 1, length, head=self.writes))

    def _reading(self, rows: int, length: int) -> Callable[[], object]:
        network = self.network
        ids = drawn(rows, length, self.source.vocab)
        if self.writes:
            return lambda: generate(network, ids, Options(max_tokens=1))
        assert isinstance(network, Encoder | Decoder)
        tensor = torch.tensor(ids, device=self.device)
        return lambda: encode(network, tensor)

    # ── Batches ──────────────────────────────────────────────────────────────────────────────────────────────────

    def sweep(self, kind: Kind, seconds: float) -> None:
        """Batches of 1, 2, 4, … for as long as there is time and memory."""
        begin = time.perf_counter()
        sizes = list(doubling(MOST.get(self.device.type, MOST["cpu"])))
        for number, batch in enumerate(sizes):
            left = begin + seconds - time.perf_counter()
            if number and 2 * self.shortest > left:
                self.bench.notes.append(f"{kind}: batches of {batch} and more would have taken longer than was given")
                return
            if not self._fits(batch, kind):
                self.bench.notes.append(f"{kind}: a batch of {batch} does not fit into memory")
                return
            self.tell(f"{kind}, batch {batch}", min(99, int(100 - 100 * max(left, 0.0) / seconds)), 100)
            share = seconds / TRIES
            try:
                if kind == "encode":
                    self._encode(batch, share)
                else:
                    self._write(batch, BEAMS if kind == "search" else 1, share)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                self.bench.notes.append(f"{kind}: a batch of {batch} does not fit into memory")
                return

    def _encode(self, batch: int, seconds: float) -> None:
        length = min(TEXT, self.reach)
        taken = best_time(self._reading(batch, length), self.device, seconds)
        self.shortest = 3 * taken
        self._add("encode", batch, 1, length, taken, batch * length, read_cost(self.network, batch, length, head=False))

    def _write(self, batch: int, beams: int, seconds: float) -> None:
        beams = min(beams, self.network.config.stack.vocab)
        seq2seq = isinstance(self.network, Seq2Seq)
        prompt = min(PROMPT, self.reach if seq2seq else max(1, self.room // 4))
        held = 1 if seq2seq else prompt  # what stands in a row's cache before anything is written
        few = min(FEW, max(1, (self.room - held) // 2))
        ids = drawn(batch, prompt, self.source.vocab)

        def writing(new: int) -> float:
            options = Options(max_tokens=new, beam=beams)
            return timed(lambda: generate(self.network, ids, options), self.device)

        writing(few)  # warms up
        short = [writing(few)]
        # So long that a few rounds fit into the time, but so much longer that it can be told from noise: the steps that
        # are counted take at least as long as the shorter run, whose time is taken off.
        most = max(1, min(MORE, self.room - held - few))
        more = min(most, max(FEW, int(seconds / 4 / (short[0] / few))))
        long = [writing(few + more), writing(few + more)]
        while more < most and min(long) < 2 * min(short):
            more = min(most, 2 * more)
            short.append(writing(few))
            long = [writing(few + more), writing(few + more)]
        stop = time.perf_counter() + seconds
        while len(long) < 4 or time.perf_counter() < stop:
            long.append(writing(few + more))
            short.append(writing(few))
        self.shortest = 4 * min(short) + 4 * min(long)
        step = (min(long) - min(short)) / more
        if step <= 0:  # nothing but noise lies between the two: an upper bound is what the longer one took
            step = min(long) / (few + more)
        slots = held + few + more // 2
        cost = step_cost(self.network, batch, slots, beams=beams, source=prompt if seq2seq else 0)
        self._add("search" if beams > 1 else "decode", batch, beams, prompt, step, batch, cost)

    def _fits(self, batch: int, kind: Kind) -> bool:
        """Whether the cache of a batch fits beside all else, with as much again for what a step needs."""
        free = free_memory(self.device)
        if free is None or not self.writes:
            return True
        beams, source = (BEAMS if kind == "search" else 1), (PROMPT if isinstance(self.network, Seq2Seq) else 0)
        slots = PROMPT + FEW + MORE
        cache = (
            step_cost(self.network, batch * beams, slots, source=source).bytes - step_cost(self.network, 0, slots).bytes
        )
        logits = 4 * batch * beams * self.network.config.stack.vocab
        return 2 * (cache + 2 * logits) < free

    def _add(self, kind: Kind, batch: int, beams: int, length: int, seconds: float, tokens: int, cost: Cost) -> None:
        least, bound = self.bench.limits.least(cost)
        self.bench.points.append(
            Point(kind, batch, beams, length, seconds, tokens, cost.bytes, cost.flops, tokens / least, bound)
        )


@torch.inference_mode()
def encode(network: Encoder | Decoder, ids: torch.Tensor) -> torch.Tensor:
    """The vectors of a batch of texts."""
    return network.hidden(ids)[0]


def doubling(most: int) -> Iterator[int]:
    """
    >>> list(doubling(8))
    [1, 2, 4, 8]
    """
    batch = 1
    while batch <= most:
        yield batch
        batch *= 2


def drawn(rows: int, length: int, vocab: int) -> list[list[int]]:
    """Random texts, the same each time."""
    generator = torch.Generator().manual_seed(length)
    ids: list[list[int]] = torch.randint(0, vocab, (rows, length), generator=generator).tolist()
    return ids


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory ran out: torch has a type of error for it on a GPU, and only a message on a CPU."""
    return (
        isinstance(error, torch.OutOfMemoryError)
        or "allocate memory" in str(error)
        or "not enough memory" in str(error)
    )
