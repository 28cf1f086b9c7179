"""Throughput of a model on this machine: prefill, decoding and beam search, at growing batch sizes.

    prefill    prompts (or sources, or texts for a model that does not generate) of growing length, one at a time
    decode     greedy decoding: generated tokens per second
    search     the same with four beams, for an encoder-decoder
    encode     batches of texts through a model that does not generate: tokens per second

All calls go through `generate`, so that the figures are those of a user: on a GPU, with CUDA graphs. The time of a step
is the difference between generating a few tokens and generating more, so that the prompt and the capture of graphs,
which are paid once, cancel out. Times are the best of several. Batch sizes double for as long as there is time and
memory.
"""

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import torch

from qkv.decode import GenerationOptions, generate
from qkv.measure.cost import Cost, prefill_cost, step_cost, weight_bytes
from qkv.measure.limits import Bound, MachineLimits, best_time, measure_limits, time_call
from qkv.measure.machine import free_memory, machine_name
from qkv.models import Decoder, Encoder, Network, Seq2Seq

BenchKind = Literal["prefill", "decode", "search", "encode"]
BenchProgress = Callable[[str, int, int], None]
"""Called with what is being measured, how much is done, and how much there is."""

PREFILL_LENGTHS = (16, 64, 256, 1024, 4096)
"""Prompt lengths of prefill, up to the model's positions."""
DECODE_PROMPT_LENGTH = 16
"""Prompt or source length of decoding."""
ENCODE_LENGTH = 128
"""Text length of encoding."""
SHORT_RUN_TOKENS, MAX_EXTRA_TOKENS = 4, 64
"""Tokens of the shorter run, and the most that the longer run generates in addition."""
SEARCH_BEAMS = 4
MAX_BATCH_SIZE = {"cpu": 256, "cuda": 1024}
"""The largest batch size, by device."""
TIME_FRACTIONS = {"limits": 0.15, "prefill": 0.25}
"""Fractions of the time; the rest is for batches."""
CASES_PER_BUDGET = 12
"""Each length and each batch size gets at most the time divided by this number."""

ABOVE_LIMIT_NOTE = (
    "above 100 %: a limit was measured too low or a time too short, as when other work disturbs the machine; "
    "measure again, with more --seconds"
)


@dataclass(frozen=True)
class BenchPoint:
    """One measurement and its limit."""

    kind: BenchKind
    batch: int
    beams: int
    length: int  # tokens of each prompt, source or text
    seconds: float  # of one forward pass
    tokens: int  # that a pass reads or generates
    bytes: int  # that a pass must read
    flops: int
    limit: float  # tokens per second
    bound: Bound  # what the limit comes from

    @property
    def tokens_per_second(self) -> float:
        """Measured throughput."""
        return self.tokens / self.seconds

    @property
    def fraction_of_limit(self) -> float:
        """The fraction of the limit that is reached."""
        return self.tokens_per_second / self.limit

    @property
    def exceeds_limit(self) -> bool:
        """Whether the throughput exceeds the limit, which hints at a disturbed measurement."""
        return round(100 * self.fraction_of_limit) > 100

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.bytes

    def to_dict(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "tokens_per_second": self.tokens_per_second,
            "fraction_of_limit": self.fraction_of_limit,
        }


@dataclass
class BenchResult:
    """All measurements of one model on one machine."""

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
    limits: MachineLimits
    points: list[BenchPoint] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def points_of(self, *kinds: BenchKind) -> list[BenchPoint]:
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
    report: BenchProgress | None = None,
) -> BenchResult:
    """Measure a network in about `seconds`; a large one takes longer, because everything runs at least once."""
    one = next(network.parameters())
    device, dtype, weights = one.device, one.dtype, weight_bytes(network)
    tell = report or (lambda what, done, total: None)
    tell("limits of the machine", 0, 100)
    limits = measure_limits(device, dtype, int8=int8, weight_bytes=weights, seconds=seconds * TIME_FRACTIONS["limits"])
    bench = BenchResult(
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
    subject = BenchRun(without_eos(network), bench, tell)
    subject.measure_prefill(seconds * TIME_FRACTIONS["prefill"])
    left = seconds * (1 - sum(TIME_FRACTIONS.values()))
    if not subject.generates:
        subject.measure_batches("encode", left)
    elif isinstance(network, Seq2Seq):
        subject.measure_batches("decode", left / 2)
        subject.measure_batches("search", left / 2)
    else:
        subject.measure_batches("decode", left)
    if any(point.exceeds_limit for point in bench.points):
        bench.notes.append(ABOVE_LIMIT_NOTE)
    return bench


def without_eos(network: Network) -> Network:
    """The same network without end-of-sequence tokens, and with a start token, so that texts have a given length."""
    twin = copy.copy(network)
    start = 0 if network.config.decoder_start_token_id is None else network.config.decoder_start_token_id
    twin.config = replace(network.config, eos_token_ids=(), decoder_start_token_id=start)
    return twin


class BenchRun:
    """Measures a network and fills a `BenchResult`."""

    def __init__(self, network: Network, bench: BenchResult, report: BenchProgress) -> None:
        self.network, self.bench, self.report = network, bench, report
        self.device = next(network.parameters()).device
        self.source = network.config.encoder or network.config.stack
        self.max_source_length = self.source.max_positions if self.source.has_max_positions else PREFILL_LENGTHS[-1]
        target = network.config.stack
        self.max_target_length = (
            target.max_positions if target.has_max_positions else PREFILL_LENGTHS[-1]
        )  # prompt and generated tokens
        self.generates = isinstance(network, Seq2Seq) or network.config.head.kind == "lm"
        self.min_batch_seconds = 0.0  # the least time that the newest batch size takes

    # ── Reading ──────────────────────────────────────────────────────────────────────────────────────────────────

    def measure_prefill(self, seconds: float) -> None:
        """Prefill of one text at a time, of growing length."""
        most = self.max_source_length - (
            self.generates and isinstance(self.network, Decoder)
        )  # a decoder generates a token after it
        lengths = [length for length in PREFILL_LENGTHS if length <= most] or [max(1, most)]
        stop, last = time.perf_counter() + seconds, 0.0
        for number, length in enumerate(lengths):
            if number and time.perf_counter() + 4 * 3 * last > stop:  # four times the length, one warm-up and two runs
                self.bench.notes.append(f"prefill: {length:,} tokens and more were left out, because the time was over")
                return
            self.report(f"reading {length:,} tokens", int(100 * TIME_FRACTIONS["limits"]) + number, 100)
            last = best_time(self._prefill_call(1, length), self.device, seconds / CASES_PER_BUDGET)
            self._add("prefill", 1, 1, length, last, length, prefill_cost(self.network, 1, length, head=self.generates))

    def _prefill_call(self, batch_size: int, length: int) -> Callable[[], object]:
        network = self.network
        ids = random_prompts(batch_size, length, self.source.vocab_size)
        if self.generates:
            return lambda: generate(network, ids, GenerationOptions(max_tokens=1))
        assert isinstance(network, Encoder | Decoder)
        tensor = torch.tensor(ids, device=self.device)
        return lambda: encode(network, tensor)

    # ── Batches ──────────────────────────────────────────────────────────────────────────────────────────────────

    def measure_batches(self, kind: BenchKind, seconds: float) -> None:
        """Batch sizes 1, 2, 4, … for as long as there is time and memory."""
        begin = time.perf_counter()
        sizes = list(doubling(MAX_BATCH_SIZE.get(self.device.type, MAX_BATCH_SIZE["cpu"])))
        for number, batch in enumerate(sizes):
            left = begin + seconds - time.perf_counter()
            if number and 2 * self.min_batch_seconds > left:
                self.bench.notes.append(f"{kind}: batches of {batch} and more were left out, because the time was over")
                return
            if not self._fits_memory(batch, kind):
                self.bench.notes.append(f"{kind}: a batch of {batch} does not fit into memory")
                return
            self.report(f"{kind}, batch {batch}", min(99, int(100 - 100 * max(left, 0.0) / seconds)), 100)
            share = seconds / CASES_PER_BUDGET
            try:
                if kind == "encode":
                    self._measure_encode(batch, share)
                else:
                    self._measure_decode(batch, SEARCH_BEAMS if kind == "search" else 1, share)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                self.bench.notes.append(f"{kind}: a batch of {batch} does not fit into memory")
                return

    def _measure_encode(self, batch: int, seconds: float) -> None:
        length = min(ENCODE_LENGTH, self.max_source_length)
        taken = best_time(self._prefill_call(batch, length), self.device, seconds)
        self.min_batch_seconds = 3 * taken
        self._add(
            "encode", batch, 1, length, taken, batch * length, prefill_cost(self.network, batch, length, head=False)
        )

    def _measure_decode(self, batch: int, beams: int, seconds: float) -> None:
        beams = min(beams, self.network.config.stack.vocab_size)
        seq2seq = isinstance(self.network, Seq2Seq)
        prompt = min(DECODE_PROMPT_LENGTH, self.max_source_length if seq2seq else max(1, self.max_target_length // 4))
        held = 1 if seq2seq else prompt  # cached tokens before the first generated one
        few = min(SHORT_RUN_TOKENS, max(1, (self.max_target_length - held) // 2))
        ids = random_prompts(batch, prompt, self.source.vocab_size)

        def writing(new: int) -> float:
            options = GenerationOptions(max_tokens=new, beam=beams)
            return time_call(lambda: generate(self.network, ids, options), self.device)

        writing(few)  # warms up
        short = [writing(few)]
        # The longer run fits into the time a few times, but its extra steps take at least as long as the shorter run,
        # lest the difference be noise.
        most = max(1, min(MAX_EXTRA_TOKENS, self.max_target_length - held - few))
        more = min(most, max(SHORT_RUN_TOKENS, int(seconds / 4 / (short[0] / few))))
        long = [writing(few + more), writing(few + more)]
        while more < most and min(long) < 2 * min(short):
            more = min(most, 2 * more)
            short.append(writing(few))
            long = [writing(few + more), writing(few + more)]
        stop = time.perf_counter() + seconds
        while len(long) < 4 or time.perf_counter() < stop:
            long.append(writing(few + more))
            short.append(writing(few))
        self.min_batch_seconds = 4 * min(short) + 4 * min(long)
        step = (min(long) - min(short)) / more
        if step <= 0:  # the difference is noise: use the longer run as an upper bound
            step = min(long) / (few + more)
        slots = held + few + more // 2
        cost = step_cost(self.network, batch, slots, num_beams=beams, source_length=prompt if seq2seq else 0)
        self._add("search" if beams > 1 else "decode", batch, beams, prompt, step, batch, cost)

    def _fits_memory(self, batch: int, kind: BenchKind) -> bool:
        """Whether the cache of a batch fits into memory, with the same amount again for a step."""
        free = free_memory(self.device)
        if free is None or not self.generates:
            return True
        beams, source = (
            (SEARCH_BEAMS if kind == "search" else 1),
            (DECODE_PROMPT_LENGTH if isinstance(self.network, Seq2Seq) else 0),
        )
        slots = DECODE_PROMPT_LENGTH + SHORT_RUN_TOKENS + MAX_EXTRA_TOKENS
        cache = (
            step_cost(self.network, batch * beams, slots, source_length=source).bytes
            - step_cost(self.network, 0, slots).bytes
        )
        logits = 4 * batch * beams * self.network.config.stack.vocab_size
        return 2 * (cache + 2 * logits) < free

    def _add(
        self, kind: BenchKind, batch: int, beams: int, length: int, seconds: float, tokens: int, cost: Cost
    ) -> None:
        least, bound = self.bench.limits.min_seconds(cost)
        self.bench.points.append(
            BenchPoint(kind, batch, beams, length, seconds, tokens, cost.bytes, cost.flops, tokens / least, bound)
        )


@torch.inference_mode()
def encode(network: Encoder | Decoder, ids: torch.Tensor) -> torch.Tensor:
    """The hidden states of a batch of texts."""
    return network.hidden(ids)[0]


def doubling(max_size: int) -> Iterator[int]:
    """
    >>> list(doubling(8))
    [1, 2, 4, 8]
    """
    batch = 1
    while batch <= max_size:
        yield batch
        batch *= 2


def random_prompts(batch_size: int, length: int, vocab_size: int) -> list[list[int]]:
    """Random prompts, the same each time."""
    generator = torch.Generator().manual_seed(length)
    ids: list[list[int]] = torch.randint(0, vocab_size, (batch_size, length), generator=generator).tolist()
    return ids


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory ran out: torch has an exception type for it on a GPU, and only a message on a CPU."""
    return (
        isinstance(error, torch.OutOfMemoryError)
        or "allocate memory" in str(error)
        or "not enough memory" in str(error)
    )
