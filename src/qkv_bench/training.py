"""Training steps on random tokens: tokens per second, the share of the machine's product rate, and a profile.

The step is the one of `qkv train`: its precision, micro-batches, kernels and optimizer, with the defaults of a recipe.
The FLOPs of a step are counted while it runs, and compared with the rate of large matrix products in the same dtype.
"""

import itertools
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.bar import Bar
from rich.console import Console
from rich.text import Text
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from qkv.data import InMemoryExamples, Loader, SequenceStream
from qkv.data.load.batch import Batch
from qkv.data.objectives import Objective
from qkv.data.objectives.causal_lm import CausalLMObjective
from qkv.data.objectives.classification import ClassificationObjective
from qkv.data.objectives.contrastive import ContrastiveObjective
from qkv.data.objectives.masked_lm import MaskedLMObjective
from qkv.data.objectives.seq2seq import Seq2SeqObjective
from qkv.data.objectives.tagging import TaggingObjective
from qkv.errors import UsageError
from qkv.models import Config, Network
from qkv.render.console import escape_controls
from qkv.render.formatting import format_count, plain_table
from qkv.text import Tokenizer
from qkv.train.allocator import keep_freed_memory
from qkv.train.loss.training_module import TrainingModule
from qkv.train.optim.optimizers import make_optimizer
from qkv.train.parallel.world import World
from qkv.train.precision import choose_precision
from qkv.train.recipe.schema import ObjectiveSection, TrainSection
from qkv.train.setup import num_micro_batches, prepare_module
from qkv.train.step import Stepper
from qkv_bench.limits import measure_flops, synchronise
from qkv_bench.machine import machine_name
from qkv_bench.throughput import BenchProgress

ROLES = ("pad", "unk", "bos", "eos", "mask", "sep", "cls")
NUM_IDS = len(ROLES) + 2
"""The ids of a tokenizer of two characters. A model with fewer ids is not measured."""
MAX_LENGTH = 512
"""Tokens of a sequence; a model with fewer positions gets shorter ones."""
NUM_EXAMPLES = 256
LIMIT_FRACTION = 0.2
"""The fraction of the time in which the rate of products is measured."""
GROUPS = {
    "matrix products": ("mm", "addmm", "bmm", "baddbmm", "mkldnn", "linear", "matmul", "gemm", "cutlass", "cublas"),
    "attention kernel": ("scaled_dot_product", "flash"),
    "softmax and loss": ("softmax", "nll_loss", "cross_entropy", "exp", "logsumexp"),
    "norms": ("norm", "rsqrt"),
    "dropout's random numbers": ("random", "bernoulli", "dropout"),
    "optimizer": ("adam", "_foreach", "sgd"),
    "embedding": ("embedding", "index"),
    "copies and casts": ("copy", "_to_copy", "clone", "cat", "fill", "zero", "empty", "contiguous", "memcpy", "memset"),
}
"""Groups of the profile and parts of the names of their operators. The first group that fits is taken."""
REST = "elementwise and the rest"


@dataclass(frozen=True)
class TrainingBench:
    """The measured training steps of one model."""

    model: str
    parameters: int
    machine: str
    device: str
    threads: int
    torch: str
    objective: str
    precision: str  # of the products, as `qkv train` chooses it
    batch_tokens: int
    micro_batches: int
    step_seconds: float  # the median
    fastest_seconds: float
    slowest_seconds: float
    steps: int  # measured steps
    tokens_per_second: float
    flops_per_step: int  # counted: matrix products and attention
    max_flops_per_second: float  # of large matrix products in the same dtype
    profile: dict[str, float]  # fractions of a step's time by group of operators
    notes: tuple[str, ...]

    @property
    def fraction_of_limit(self) -> float:
        """The FLOP/s of a step as a fraction of the machine's product rate."""
        return self.flops_per_step / self.step_seconds / self.max_flops_per_second

    def to_dict(self) -> dict[str, Any]:
        """The measurement for JSON."""
        return {**asdict(self), "fraction_of_limit": self.fraction_of_limit}


def run_training_bench(
    model: str, network: Network, seconds: float, report: BenchProgress | None = None
) -> TrainingBench:
    """Measure training steps of a network for about `seconds`. The weights of the network change."""
    report = report or (lambda what, done, total: None)
    device = next(network.parameters()).device
    network = network.float().requires_grad_(True)
    keep_freed_memory()
    section, world = TrainSection(steps=10**6), World(device=device)
    data = SequenceStream(make_objective(network.config), batch_tokens=section.batch_tokens)
    module = TrainingModule(network, ObjectiveSection())
    report("precision", 0, 4)
    precision, note = choose_precision(section, world, module.train(), data)
    section = TrainSection(steps=10**6, precision=precision)  # type: ignore[arg-type]
    prepare_module(module, section, world, compiled=False)
    optimizer = make_optimizer(network.named_parameters(), section, fused=True)
    parts = num_micro_batches(section, data, world, network.config)
    stepper = Stepper(module, optimizer, section, world, num_micro_batches=parts)
    batches, numbers = iter(Loader(data)), itertools.count()

    def step() -> tuple[float, int]:
        """Take a step; return its seconds and its tokens."""
        batch: Batch = next(batches)
        start = time.perf_counter()
        stepper(batch, next(numbers), 1e-6)
        synchronise(device)
        return time.perf_counter() - start, batch.num_tokens

    report("product rate", 1, 4)
    limit = measure_flops(device, getattr(torch, precision), precision=None, seconds=LIMIT_FRACTION * seconds)
    report("training steps", 2, 4)
    taken = list(timed(step, (1 - LIMIT_FRACTION) * seconds))
    report("profile", 3, 4)
    with FlopCounterMode(display=False) as counter:
        step()
    times = [one for one, _ in taken]
    return TrainingBench(
        model=model,
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        machine=machine_name(device),
        device=device.type,
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        objective=data.objective,
        precision=precision,
        batch_tokens=section.batch_tokens,
        micro_batches=parts,
        step_seconds=median(times),
        fastest_seconds=min(times),
        slowest_seconds=max(times),
        steps=len(times),
        tokens_per_second=median(tokens / one for one, tokens in taken),
        flops_per_step=counter.get_total_flops(),
        max_flops_per_second=limit,
        profile=profile_step(step, device),
        notes=(note,) if note else (),
    )


def timed(step: Any, seconds: float) -> Iterator[tuple[float, int]]:
    """Take two steps to warm up, and then at least three, until the time is spent."""
    step(), step()
    stop = time.perf_counter() + seconds
    for number in itertools.count():
        if number >= 3 and time.perf_counter() > stop:
            return
        yield step()


class OperatorTimes(TorchDispatchMode):
    """Sums the seconds of all operators by their group."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device
        self.seconds: dict[str, float] = defaultdict(float)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run and time one operator."""
        start = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        synchronise(self.device)
        self.seconds[find_group(func.__name__)] += time.perf_counter() - start
        return result


def profile_step(step: Any, device: torch.device) -> dict[str, float]:
    """The fractions of the time of all operators of a step, by group, the largest first."""
    with OperatorTimes(device) as times:
        step()
    whole = sum(times.seconds.values())
    ranked = sorted(times.seconds.items(), key=lambda item: -item[1])
    return {name: seconds / whole for name, seconds in ranked}


def find_group(operator: str) -> str:
    """The group of an operator of a profile.

    >>> find_group("addmm.default"), find_group("_fused_adamw_.default"), find_group("mul.Tensor")
    ('matrix products', 'optimizer', 'elementwise and the rest')
    """
    return next((group for group, parts in GROUPS.items() if any(part in operator for part in parts)), REST)


def make_objective(config: Config) -> Objective:
    """The objective that a model of this family and head is usually trained with, on random tokens."""
    stacks = list(config.stacks.values())
    vocab, length = (
        min(stack.vocab_size for stack in stacks),
        min(MAX_LENGTH, *(stack.max_positions for stack in stacks)),
    )
    if vocab <= NUM_IDS or config.front_ends:
        raise UsageError("--train measures models that read text; this model reads something else")
    tokenizer = Tokenizer.train("char", iter(["ab"]), NUM_IDS, special_tokens=ROLES, template="bert", min_frequency=1)
    draw, kind = np.random.default_rng(0), config.head.kind

    def examples(*fields: str, **labels: Any) -> InMemoryExamples:
        count = length - 3 if len(fields) == 1 else length // 2 - 2
        made = [
            {name: draw.integers(NUM_IDS, vocab, count).astype(np.int32) for name in fields}
            | {name: make(count) for name, make in labels.items()}
            for _ in range(NUM_EXAMPLES)
        ]
        return InMemoryExamples(made, (*fields, *labels))

    def classes(count: int) -> Any:
        return draw.integers(0, config.head.outputs, count)

    if kind == "lm" and config.encoder is not None:
        return Seq2SeqObjective(
            examples("source", "target"), tokenizer, max_length=length // 2, max_source_length=length // 2
        )
    if kind == "lm":
        return CausalLMObjective(examples("ids"), tokenizer, max_length=length)
    if kind == "mlm":
        return MaskedLMObjective(examples("ids"), tokenizer, max_length=length)
    if kind == "tag":
        return TaggingObjective(examples("ids", tags=classes), tokenizer, max_length=length)
    if kind == "classify" and config.head.outputs > 1 and not config.head.multi_label:
        return ClassificationObjective(examples("first", label=lambda _: classes(1)), tokenizer, max_length=length)
    if kind == "embed":
        return ContrastiveObjective(examples("first", "second"), tokenizer, max_length=length // 2)
    raise UsageError(
        f"--train measures models with a head of the kind lm, mlm, classify, tag or embed; this one has {kind}"
    )


def print_training_bench(result: TrainingBench, console: Console) -> None:
    """Print what `qkv bench --train` measured."""
    size = f"{format_count(result.parameters)} parameters"
    console.print(Text.assemble((escape_controls(result.model), "bold"), f"   {result.objective}, {size}"))
    threads = f", {result.threads} thread{'s' if result.threads > 1 else ''}" if result.device == "cpu" else ""
    console.print(Text(f"{result.machine} ({result.device}{threads}), {result.precision}, torch {result.torch}"))
    console.print(
        Text(
            f"{result.tokens_per_second:,.0f} tokens/s: {1e3 * result.step_seconds:,.0f} ms a step "
            f"({1e3 * result.fastest_seconds:,.0f} to {1e3 * result.slowest_seconds:,.0f} over {result.steps} steps) "
            f"of {result.batch_tokens:,} tokens; micro-batches: {result.micro_batches}"
        )
    )
    rate = format_count(result.flops_per_step / result.step_seconds, "FLOP/s")
    limit = format_count(result.max_flops_per_second, "FLOP/s")
    share = f"{100 * result.fraction_of_limit:.0f} %"
    console.print(Text(f"{rate}: {share} of the {limit} of large matrix products in {result.precision}"))
    console.print()
    table = plain_table("where the time goes", "share", "")
    table.columns[2].width = 16
    for name, fraction in result.profile.items():
        table.add_row(name, f"{100 * fraction:.0f} %", Bar(1.0, 0.0, fraction, width=16, color="cyan"))
    console.print(table)
    for note in result.notes:
        console.print(Text(escape_controls(note), "yellow"))
