"""Throughput of a model on this machine: prefill, decoding and beam search, at growing batch sizes.

    prefill    one prompt (or source, or text for a model that does not generate) at a time, of growing length
    decode     greedy decoding: generated tokens per second
    engine     continuous batching, as in `qkv serve`: generated tokens per second while all slots are in use
    search     beam search with four beams, for an encoder-decoder: generated tokens per second
    encode     batches of texts through a model that does not generate: tokens per second

Generation is measured by calling `generate`, as a user does; only the engine is measured directly. On a GPU this
includes CUDA graphs. The time of a decoding step is the difference between a short and a long generation, divided by
the number of extra tokens: the costs of the prompt and of capturing graphs occur in both and cancel out. Each time is
the minimum of several runs. Batch sizes double until time or memory runs out.
"""

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import torch

from qkv.decode import GenerationOptions, WeightPrecision, generate
from qkv.models import Network
from qkv.models.runtime import free_memory
from qkv_bench.cost import Cost, prefill_cost, step_cost, weight_bytes
from qkv_bench.engine import time_engine_step
from qkv_bench.limits import Bound, MachineLimits, best_time, measure_limits, time_call
from qkv_bench.machine import machine_name

BenchKind = Literal["prefill", "decode", "engine", "search", "encode"]
Precision = Literal["float32", "bfloat16", "int8", "int4"]
BenchProgress = Callable[[str, int, int], None]
"""Called with the name of the current measurement, the work done so far, and the total work."""

PREFILL_LENGTHS = (16, 64, 256, 1024, 4096)
"""Prompt lengths in tokens for prefill; those above the model's number of positions are left out."""
SINGLE_PREFILL_LENGTH = 512
"""Length in tokens of the prompt that is measured at each precision of the weights."""
DECODE_PROMPT_LENGTH = 16
"""Length in tokens of the prompts or sources for decoding."""
ENCODE_LENGTH = 128
"""Length in tokens of the texts for encoding."""
SHORT_RUN_TOKENS = 4
"""New tokens of the short generation."""
MAX_EXTRA_TOKENS = 64
"""The maximum number of tokens that the long generation has in addition to the short one."""
SEARCH_BEAMS = 4
MAX_BATCH_SIZE = {"cpu": 256, "cuda": 1024}
"""The largest batch size, by device type."""
TIME_FRACTIONS = {"limits": 0.15, "prefill": 0.25}
"""The fraction of the total time for each phase; the batch measurements get the remainder."""
DECODE_FRACTION = 0.7
"""The fraction of the time of the batch measurements for `generate`, for a decoder; the engine gets the remainder."""
ENGINE_BATCH_SIZES = (8, 32, 128)
MIN_ENGINE_TOKENS = 4
"""The engine is measured only if a model has room for this number of tokens after the prompt."""
TIME_SLOTS = 12
"""The time of a phase is divided into this number of slots: one for each prompt length or batch size."""

ABOVE_LIMIT_NOTE = (
    "above 100 %: a limit was measured too low or a time too short, probably because other programs were running; "
    "measure again with more --seconds"
)


@dataclass(frozen=True)
class BenchPoint:
    """One measurement and the limit of its throughput."""

    kind: BenchKind
    batch: int
    beams: int
    length: int  # tokens of each prompt, source or text
    seconds: float  # time of one forward pass
    tokens: int  # tokens that one pass reads or generates
    bytes: int  # bytes that one pass must read
    flops: int  # FLOPs that one pass must compute
    max_tokens_per_second: float  # the roofline limit
    bound: Bound  # which of the machine's limits it follows from

    @property
    def tokens_per_second(self) -> float:
        """The measured throughput."""
        return self.tokens / self.seconds

    @property
    def fraction_of_limit(self) -> float:
        """The measured throughput as a fraction of the limit."""
        return self.tokens_per_second / self.max_tokens_per_second

    @property
    def exceeds_limit(self) -> bool:
        """Whether the throughput exceeds the limit: this means that a measurement was disturbed."""
        return round(100 * self.fraction_of_limit) > 100

    @property
    def intensity(self) -> float:
        """The arithmetic intensity, in FLOPs per byte."""
        return self.flops / self.bytes

    def to_dict(self) -> dict[str, Any]:
        """The measurement for JSON."""
        return {
            **asdict(self),
            "tokens_per_second": self.tokens_per_second,
            "fraction_of_limit": self.fraction_of_limit,
        }


@dataclass(frozen=True)
class PrecisionBench:
    """The measurements of one sequence at one precision of the weights."""

    precision: Precision
    weight_bytes: int
    decode: BenchPoint
    prefill: BenchPoint

    def to_dict(self) -> dict[str, Any]:
        """The measurements for JSON."""
        points = {"decode": self.decode.to_dict(), "prefill": self.prefill.to_dict()}
        return {"precision": self.precision, "weight_bytes": self.weight_bytes, **points}


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
    precision: WeightPrecision | None  # of quantized weights
    torch: str
    limits: MachineLimits
    points: list[BenchPoint] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    precisions: list[PrecisionBench] = field(default_factory=list)
    load_seconds: float | None = None  # time to load the model; None if it was not measured

    def points_of_kind(self, *kinds: BenchKind) -> list[BenchPoint]:
        """The measurements of the given kinds."""
        return [point for point in self.points if point.kind in kinds]

    @property
    def first_token_seconds(self) -> float | None:
        """The time from a short prompt to its first new token; None if the model does not generate."""
        prefills = self.points_of_kind("prefill") if self.points_of_kind("decode") else []
        return prefills[0].seconds if prefills else None

    def to_dict(self) -> dict[str, Any]:
        """All measurements for JSON."""
        values = asdict(self)
        values["limits"] = {**asdict(self.limits), "bandwidth": self.limits.bandwidth}
        values["points"] = [point.to_dict() for point in self.points]
        values["precisions"] = [precision.to_dict() for precision in self.precisions]
        values["first_token_seconds"] = self.first_token_seconds
        return values


def run_bench(
    name: str,
    network: Network,
    parameters: int,
    *,
    precision: WeightPrecision | None = None,
    seconds: float = 20.0,
    report: BenchProgress | None = None,
) -> BenchResult:
    """Measure a network in about `seconds`. A large network takes longer: everything runs at least once."""
    report = report or (lambda what, done, total: None)
    report("limits of the machine", 0, 100)
    bench = start_bench(name, network, parameters, precision, seconds * TIME_FRACTIONS["limits"])
    bencher = Bencher(without_eos(network), bench, report)
    bencher.measure_prefill(seconds * TIME_FRACTIONS["prefill"])
    left = seconds * (1 - sum(TIME_FRACTIONS.values()))
    if not bencher.generates:
        bencher.measure_batches("encode", left)
    elif network.has_source:
        bencher.measure_batches("decode", left / 2)
        bencher.measure_batches("search", left / 2)
    else:
        bencher.measure_batches("decode", left * DECODE_FRACTION)
        if not network.config.keeps_state:
            bencher.measure_batches("engine", left * (1 - DECODE_FRACTION), ENGINE_BATCH_SIZES)
    if any(point.exceeds_limit for point in bench.points):
        bench.notes.append(ABOVE_LIMIT_NOTE)
    return bench


def measure_one_sequence(network: Network, *, precision: WeightPrecision | None, seconds: float) -> BenchResult:
    """Measure only the prefill of one prompt and the decoding of one sequence, in about `seconds`."""
    bench = start_bench("", network, 0, precision, seconds / 4)
    bencher = Bencher(without_eos(network), bench, lambda what, done, total: None)
    bencher.measure_one_prefill(SINGLE_PREFILL_LENGTH, seconds / 4)
    bencher.measure_decode(1, 1, seconds / 4)
    return bench


def start_bench(
    name: str, network: Network, parameters: int, precision: WeightPrecision | None, seconds: float
) -> BenchResult:
    """Measure the limits of the machine in about `seconds`, and return a result without points."""
    parameter = next(network.parameters())
    device, dtype, weights = parameter.device, parameter.dtype, weight_bytes(network)
    limits = measure_limits(device, dtype, precision=precision, weight_bytes=weights, seconds=seconds)
    return BenchResult(
        model=name,
        family=network.config.family,
        parameters=parameters,
        weight_bytes=weights,
        machine=machine_name(device),
        device=str(device),
        threads=torch.get_num_threads(),
        dtype=str(dtype).removeprefix("torch."),
        precision=precision,
        torch=torch.__version__,
        limits=limits,
    )


def without_eos(network: Network) -> Network:
    """A copy of the network that always has a decoder start token, and no EOS token that could end a text early."""
    endless = copy.copy(network)
    start = 0 if network.config.decoder_start_token_id is None else network.config.decoder_start_token_id
    endless.config = replace(network.config, eos_token_ids=(), decoder_start_token_id=start)
    return endless


class Bencher:
    """Measures a network and fills a `BenchResult`."""

    def __init__(self, network: Network, bench: BenchResult, report: BenchProgress) -> None:
        self.network, self.bench, self.report = network, bench, report
        self.device = network.device
        self.source = network.config.encoder or network.config.stack
        self.max_source_length = self.source.max_positions if self.source.has_max_positions else PREFILL_LENGTHS[-1]
        target = network.config.stack
        # Of a decoder, the prompt is part of the target.
        self.max_target_length = target.max_positions if target.has_max_positions else PREFILL_LENGTHS[-1]
        self.generates = network.generates
        self.last_batch_seconds = (
            0.0  # estimated time to measure the last batch size: the next one takes about twice it
        )

    @property
    def max_prefill_length(self) -> int:
        """The largest number of tokens in a prompt or text."""
        # `generate` needs one free position for the new token of a decoder.
        needed = 1 if self.generates and not self.network.has_source else 0
        return max(1, self.max_source_length - needed)

    # ── Prefill ──────────────────────────────────────────────────────────────────────────────────────────────────

    def measure_prefill(self, seconds: float) -> None:
        """Measure the prefill of one text at a time, for growing lengths."""
        max_length = self.max_prefill_length
        lengths = [length for length in PREFILL_LENGTHS if length <= max_length] or [max_length]
        stop, last = time.perf_counter() + seconds, 0.0
        for number, length in enumerate(lengths):
            # This length is 4 times the last one, and `best_time` runs it at least 3 times.
            if number and time.perf_counter() + 4 * 3 * last > stop:
                self.bench.notes.append(f"prefill: {length:,} tokens and more were left out, because time ran out")
                return
            self.report(f"prefill of {length:,} tokens", int(100 * TIME_FRACTIONS["limits"]) + number, 100)
            last = self.measure_one_prefill(length, seconds / TIME_SLOTS)

    def measure_one_prefill(self, length: int, seconds: float) -> float:
        """Measure the prefill of one text of at most `length` tokens. Returns its time in seconds."""
        length = min(length, self.max_prefill_length)
        taken = best_time(self._prefill_call(1, length), self.device, seconds)
        self._add("prefill", 1, 1, length, taken, length, prefill_cost(self.network, 1, length, head=self.generates))
        return taken

    def _prefill_call(self, batch_size: int, length: int) -> Callable[[], object]:
        """A function that prefills random prompts."""
        network = self.network
        ids = random_prompts(batch_size, length, self.source.vocab_size)
        if self.generates:
            return lambda: generate(network, ids, GenerationOptions(max_tokens=1))
        tensor = torch.tensor(ids, device=self.device)
        return lambda: encode(network, tensor)

    # ── Batches ──────────────────────────────────────────────────────────────────────────────────────────────────

    def measure_batches(self, kind: BenchKind, seconds: float, sizes: Sequence[int] = ()) -> None:
        """Measure batch sizes, by default 1, 2, 4, …, until time or memory runs out."""
        begin = time.perf_counter()
        sizes = sizes or list(doubling(MAX_BATCH_SIZE.get(self.device.type, MAX_BATCH_SIZE["cpu"])))
        for number, batch in enumerate(sizes):
            left = begin + seconds - time.perf_counter()
            if number and 2 * self.last_batch_seconds > left:
                self.bench.notes.append(f"{kind}: batches of {batch} and more were left out, because time ran out")
                return
            if not self._fits_memory(batch, kind):
                self.bench.notes.append(f"{kind}: a batch of {batch} does not fit into memory")
                return
            self.report(f"{kind}, batch {batch}", min(99, int(100 - 100 * max(left, 0.0) / seconds)), 100)
            try:
                if kind == "encode":
                    self._measure_encode(batch, seconds / TIME_SLOTS)
                elif kind == "engine":
                    self._measure_engine(batch)
                else:
                    self.measure_decode(batch, SEARCH_BEAMS if kind == "search" else 1, seconds / TIME_SLOTS)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                self.bench.notes.append(f"{kind}: a batch of {batch} does not fit into memory")
                return

    def _measure_encode(self, batch: int, seconds: float) -> None:
        length = min(ENCODE_LENGTH, self.max_source_length)
        taken = best_time(self._prefill_call(batch, length), self.device, seconds)
        self.last_batch_seconds = 3 * taken
        self._add(
            "encode", batch, 1, length, taken, batch * length, prefill_cost(self.network, batch, length, head=False)
        )

    def _measure_engine(self, batch: int) -> None:
        prompt = min(DECODE_PROMPT_LENGTH, max(1, self.max_target_length // 4))
        tokens = min(MAX_EXTRA_TOKENS, self.max_target_length - prompt)
        if tokens < MIN_ENGINE_TOKENS:
            self.last_batch_seconds = 0.0
            return
        prompts = random_prompts(batch, prompt, self.source.vocab_size)
        begin = time.perf_counter()
        step = time_engine_step(self.network, prompts, tokens)
        self.last_batch_seconds = 2 * (time.perf_counter() - begin)  # the next size has four times the slots
        cost = step_cost(self.network, batch, prompt + tokens // 2)
        self._add("engine", batch, 1, prompt, step, batch, cost)

    def measure_decode(self, batch: int, beams: int, seconds: float) -> None:
        """Measure the decoding steps of a batch, greedily or with beams."""
        beams = min(beams, self.network.config.stack.vocab_size)
        seq2seq = self.network.has_source
        prompt = min(DECODE_PROMPT_LENGTH, self.max_source_length if seq2seq else max(1, self.max_target_length // 4))
        cached = 1 if seq2seq else prompt  # tokens in the decoder's cache before the first generated token
        few = min(SHORT_RUN_TOKENS, max(1, (self.max_target_length - cached) // 2))
        ids = random_prompts(batch, prompt, self.source.vocab_size)

        def time_generation(num_tokens: int) -> float:
            options = GenerationOptions(max_tokens=num_tokens, beam=beams)
            return time_call(lambda: generate(self.network, ids, options), self.device)

        time_generation(few)  # warm-up
        short = [time_generation(few)]
        # The extra tokens should be few enough to repeat the long generation in the time, but they should take at least
        # as long as the short generation: otherwise the difference is noise.
        max_extra = max(1, min(MAX_EXTRA_TOKENS, self.max_target_length - cached - few))
        extra = min(max_extra, max(SHORT_RUN_TOKENS, int(seconds / 4 / (short[0] / few))))
        long = [time_generation(few + extra), time_generation(few + extra)]
        while extra < max_extra and min(long) < 2 * min(short):
            extra = min(max_extra, 2 * extra)
            short.append(time_generation(few))
            long = [time_generation(few + extra), time_generation(few + extra)]
        stop = time.perf_counter() + seconds
        while len(long) < 4 or time.perf_counter() < stop:
            long.append(time_generation(few + extra))
            short.append(time_generation(few))
        self.last_batch_seconds = 4 * min(short) + 4 * min(long)
        step = (min(long) - min(short)) / extra
        if step <= 0:  # the difference is noise: the long generation gives an upper bound
            step = min(long) / (few + extra)
        context = cached + few + extra // 2  # the mean over the extra tokens
        cost = step_cost(self.network, batch, context, num_beams=beams, source_length=prompt if seq2seq else 0)
        self._add("search" if beams > 1 else "decode", batch, beams, prompt, step, batch, cost)

    def _fits_memory(self, batch: int, kind: BenchKind) -> bool:
        """Whether a batch fits into free memory: its KV cache and logits, and the same amount as working memory."""
        free = free_memory(self.device)
        if free is None or not self.generates:
            return True
        sequences = batch * (SEARCH_BEAMS if kind == "search" else 1)
        source = DECODE_PROMPT_LENGTH if self.network.has_source else 0
        context = DECODE_PROMPT_LENGTH + SHORT_RUN_TOKENS + MAX_EXTRA_TOKENS
        weights = step_cost(self.network, 0, context).bytes
        cache = step_cost(self.network, sequences, context, source_length=source).bytes - weights
        logits = 4 * sequences * self.network.config.stack.vocab_size
        return 2 * (cache + 2 * logits) < free

    def _add(
        self, kind: BenchKind, batch: int, beams: int, length: int, seconds: float, tokens: int, cost: Cost
    ) -> None:
        min_seconds, bound = self.bench.limits.min_seconds(cost)
        self.bench.points.append(
            BenchPoint(kind, batch, beams, length, seconds, tokens, cost.bytes, cost.flops, tokens / min_seconds, bound)
        )


@torch.inference_mode()
def encode(network: Network, ids: torch.Tensor) -> torch.Tensor:
    """The hidden states of a batch of texts."""
    return network.hidden(ids)[0]


def doubling(max_size: int) -> Iterator[int]:
    """The powers of two up to `max_size`.

    >>> list(doubling(8))
    [1, 2, 4, 8]
    """
    batch = 1
    while batch <= max_size:
        yield batch
        batch *= 2


def random_prompts(batch_size: int, length: int, vocab_size: int) -> list[list[int]]:
    """Random prompts; the same arguments give the same prompts."""
    generator = torch.Generator().manual_seed(length)
    ids: list[list[int]] = torch.randint(0, vocab_size, (batch_size, length), generator=generator).tolist()
    return ids


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory ran out. On a GPU torch raises a special exception; on a CPU only the message tells."""
    return (
        isinstance(error, torch.OutOfMemoryError)
        or "allocate memory" in str(error)
        or "not enough memory" in str(error)
    )
