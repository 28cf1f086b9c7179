"""Half precision saves memory, but loses small gradients, small updates and long sums."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import torch
from torch import Tensor, nn

from qkv.data import Batch, Loader
from qkv.tasks.prepare.prepare import prepare
from qkv.train.loss.training_module import TrainingModule
from qkv.train.optim.optimizers import make_optimizer, set_lr
from qkv.train.parallel.world import World
from qkv.train.recipe.schema import TrainSection
from qkv.train.step import Stepper
from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.corpus import BYTE_MODEL, write_corpus
from qkv_lab.experiment import Experiment
from qkv_lab.gradients import count_saved_bytes, gradient_of, loss_of_batch, validation_loss
from qkv_lab.table import Point, Table

MEMORY = "memory for the backward pass (kB per token)"
GRADIENTS = "gradients that become 0 (fraction)"
UPDATES = "updates that do not change the weight (fraction)"
FALL = "fall of the validation loss in further training (nats)"
SUM = "sum of n weights of 1/n, added one by one"
LOSS_SCALE = 2.0**16
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class PrecisionSettings:
    """A small language model, and the ranges of the experiments."""

    steps: int = 150
    further_steps: int = 100
    train_bytes: int = 300_000
    valid_bytes: int = 20_000
    batch_tokens: tuple[int, ...] = (2**10, 2**14, 2**18, 2**22)  # of which one micro-batch is computed
    learning_rates: tuple[float, ...] = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
    further_rates: tuple[float, ...] = (1e-5, 1e-4, 1e-3)
    sums: tuple[int, ...] = (16, 64, 256, 1024, 4096, 16384)


def run(experiment: Experiment) -> Iterator[Point]:
    """Memory, lost gradients, lost updates, further training with rounded weights, and sums, in each format."""
    settings = experiment.settings
    keys = {
        **BYTE_MODEL,
        **write_corpus(experiment, settings.train_bytes, settings.valid_bytes),
        "train.steps": settings.steps,
        "train.schedule": "constant",
        "train.weight_decay": 0.0,
    }
    network = experiment.train("base", keys).network.train()
    prepared = prepare(experiment.recipe("base", keys))
    module = TrainingModule(network, prepared.recipe.objective)
    batches = list(islice(Loader(prepared.train_data), settings.steps + settings.further_steps))
    yield from measure_memory(module, batches[0])
    yield from measure_gradients(module, batches[0], settings.batch_tokens)
    yield from measure_updates(module, batches[:20], prepared.recipe.train, settings.learning_rates)
    for lr in settings.further_rates:
        section = replace(prepared.recipe.train, lr=lr, precision="float32")
        for name, its_section, weight_dtype in (
            ("float32", section, torch.float32),
            ("bfloat16, float32 weights", replace(section, precision="bfloat16"), torch.float32),
            ("bfloat16 weights", section, torch.bfloat16),
        ):
            further = train_further(module, batches[settings.steps :], its_section, weight_dtype)
            yield Point(FALL, name, lr, validation_loss(module, prepared) - validation_loss(further, prepared))
    for count in settings.sums:
        for name, dtype in DTYPES.items():
            yield Point(SUM, name, count, add_one_by_one(1 / count, count, dtype))


def loss_under_autocast(module: TrainingModule, batch: Batch, precision: str, num_labels: int = 0) -> Tensor:
    """The loss of a batch, with matrix products in a format."""
    with torch.autocast("cpu", DTYPES[precision], enabled=precision != "float32"):
        return loss_of_batch(module, batch, num_labels)


def measure_memory(module: TrainingModule, batch: Batch) -> Iterator[Point]:
    """The memory that one batch needs for its backward pass."""
    for precision in ("float32", "bfloat16"):
        saved = count_saved_bytes(module, partial(loss_under_autocast, module, batch, precision))
        yield Point(MEMORY, "memory", precision, saved / batch.num_tokens / 1000)


def measure_gradients(module: TrainingModule, batch: Batch, batch_tokens: tuple[int, ...]) -> Iterator[Point]:
    """The fraction of gradients that are 0 in a format and not in float32, for a micro-batch of a large batch."""
    reference = gradient_of(module, loss_of_batch(module, batch))
    for num_labels in batch_tokens:
        for name, precision, scale in (
            ("float16", "float16", 1.0),
            ("float16, loss scaling", "float16", LOSS_SCALE),
            ("bfloat16", "bfloat16", 1.0),
        ):
            gradient = gradient_of(module, loss_under_autocast(module, batch, precision, num_labels) * scale)
            is_lost = (reference != 0) & ((gradient == 0) | ~gradient.isfinite())
            yield Point(GRADIENTS, name, num_labels, is_lost.double().mean().item())


def measure_updates(
    module: TrainingModule, batches: Sequence[Batch], section: TrainSection, learning_rates: tuple[float, ...]
) -> Iterator[Point]:
    """The fraction of AdamW's updates that vanish when the new weight is rounded to a format."""
    module = deepcopy(module)
    optimizer = make_optimizer(module.network.named_parameters(), section)
    before = nn.utils.parameters_to_vector(module.parameters()).detach()
    for batch in batches:
        gradient_of(module, loss_of_batch(module, batch))
        set_lr(optimizer, 1.0 if batch is batches[-1] else 0.0)  # all but the last only fill the moments
        optimizer.step()
    update = nn.utils.parameters_to_vector(module.parameters()).detach() - before  # for a learning rate of 1
    for lr in learning_rates:
        for name, dtype in DTYPES.items():
            start = before.to(dtype)
            is_lost = (start.float() + lr * update).to(dtype) == start
            yield Point(UPDATES, name, lr, is_lost.double().mean().item())


def train_further(
    module: TrainingModule, batches: Sequence[Batch], section: TrainSection, weight_dtype: torch.dtype
) -> TrainingModule:
    """A copy that took a step for each batch. After each step, its weights are rounded to a format."""
    module = deepcopy(module)
    stepper = Stepper(module, make_optimizer(module.network.named_parameters(), section), section, World())
    for step, batch in enumerate(batches):
        stepper(batch, step, section.lr)
        for parameter in module.parameters():
            parameter.data = parameter.data.to(weight_dtype).float()
    return module


def add_one_by_one(term: float, count: int, dtype: torch.dtype) -> float:
    """The sum of `count` equal terms, rounded to a format after each addition."""
    total, one = torch.zeros((), dtype=dtype), torch.tensor(term, dtype=dtype)
    for _ in range(count):
        total += one
    return total.item()


def check(table: Table) -> list[Check]:
    """Memory falls; float16 needs loss scaling; small updates and long sums need float32."""
    memory = table.mean(MEMORY, "memory", "bfloat16") / table.mean(MEMORY, "memory", "float32")
    largest, lr, count = table.xs(GRADIENTS)[-1], 1e-4, table.xs(SUM)[-1]
    gradients = {name: table.mean(GRADIENTS, name, largest) for name in table.series(GRADIENTS)}
    updates = {name: table.mean(UPDATES, name, lr) for name in table.series(UPDATES)}
    sums = {name: table.mean(SUM, name, count) for name in table.series(SUM)}
    falls = {name: list(table.curve(FALL, name).values()) for name in table.series(FALL)}
    master, rounded = ([a / b for a, b in zip(falls[name], falls["float32"], strict=True)] for name in list(falls)[1:])
    return [
        Check(
            "bfloat16 autocast needs at most 3/4 of the memory for the backward pass",
            memory <= 0.75,
            f"{memory:.0%} of float32",
        ),
        Check(
            f"in a batch of {largest:,} tokens, float16 loses more than 10 % of the gradients; with loss scaling, and "
            "in bfloat16, less than 1 %",
            gradients["float16"] > 0.1 and max(gradients["float16, loss scaling"], gradients["bfloat16"]) < 0.01,
            format_fractions(gradients),
        ),
        Check(
            f"at a learning rate of {lr:g}, bfloat16 weights lose more than half of the updates, and float32 "
            "weights less than 1 %",
            updates["bfloat16"] > 0.5 and updates["float32"] < 0.01,
            format_fractions(updates),
        ),
        Check(
            "trained further, the loss falls as in float32 if only matrix products are in bfloat16 (90–110 %), and, at "
            "the smallest learning rate, by less than half if the weights are",
            0.9 < min(master) <= max(master) < 1.1 and rounded[0] < 0.5,
            f"{min(master):.0%} to {max(master):.0%} of the fall in float32; with bfloat16 weights "
            + ", ".join(f"{fraction:.0%} at {lr:g}" for fraction, lr in zip(rounded, table.xs(FALL), strict=True)),
        ),
        Check(
            f"the sum of {count:,} weights of 1/{count:,} is below 0.5 in both half formats, and 1 in float32",
            max(sums["bfloat16"], sums["float16"]) < 0.5 and abs(sums["float32"] - 1) < 0.001,
            "; ".join(f"{name} {total:.3f}" for name, total in sums.items()),
        ),
    ]


def format_fractions(fractions: dict[str, float]) -> str:
    """Fractions as percentages, with their names."""
    return "; ".join(f"{name} {fraction:.1%}" for name, fraction in fractions.items())


def example() -> None:
    """The idea in a few lines."""
    import torch

    print("a small gradient:", torch.tensor(1e-8).half(), torch.tensor(1e-8).bfloat16())
    print("with loss scaling:", torch.tensor(1e-8 * 2**16).half() / 2**16)
    weight = torch.tensor(0.5)
    print("weight - 0.001:", weight.bfloat16() - 0.001, weight - 0.001)
    total = torch.tensor(0.0, dtype=torch.bfloat16)
    for _ in range(1000):
        total += 1
    print("1000 times + 1:", total)


CLAIM = Claim(
    name="precision",
    chapter="training",
    title="Half precision saves memory, and loses small numbers",
    quotes=(
        Quote("Uses FP16 for some operations to cut memory and speed up training.", "inside", "today mostly bfloat16"),
        Quote("AMP (PyTorch/TensorFlow) automates precision choice.", "inside"),
    ),
    question="How much memory does mixed precision save, and what do float16 and bfloat16 lose?",
    method="A small byte-level language model is trained on Python's standard library. With it we count: the bytes "
    "that the forward pass keeps for the backward pass; the gradients of one micro-batch that become 0, by the number "
    "of tokens in the whole batch, over which the loss is averaged; the updates of AdamW that rounding cancels, by "
    "learning rate. Then we train it further at constant learning rates: in float32, with matrix products in "
    "bfloat16, and with weights that are rounded to bfloat16 after each step.",
    lesson="float16 has 10 bits of fraction, and its smallest number is 6e-8. bfloat16 has the range of float32, and "
    "7 bits. So float16 underflows: the mean over a large batch makes gradients small. Loss scaling multiplies the "
    "loss, and divides the gradients afterwards in float32. bfloat16 needs no scaling; most models are now trained "
    "with it, not with FP16. But 7 bits round an update away if it is smaller than 1/512 of its weight, and a sum "
    "stops growing at 256 times its terms. Mixed precision therefore keeps weights, optimizer state and sums in "
    "float32. So does qkv: autocast changes matrix products only; norms, softmax and loss compute in float32, rotary "
    'tables in float64; `train.precision = "float16"` scales the loss.',
    limits="We count and do not time, because CPUs gain little from half precision. Matrix kernels add in float32 "
    "inside, so long sums fail only where code itself adds in half precision. Stochastic rounding is another way to "
    "train bfloat16 weights.",
    settings={
        "mini": PrecisionSettings(
            steps=3,
            further_steps=2,
            train_bytes=20_000,
            valid_bytes=2000,
            batch_tokens=(2**22,),
            further_rates=(1e-4,),
            sums=(16, 1024),
        ),
        "small": PrecisionSettings(),
        "full": PrecisionSettings(steps=1500, further_steps=1000, train_bytes=3_000_000, valid_bytes=100_000),
    },
    run=run,
    check=check,
    charts=(
        Chart(measure=MEMORY, x="precision"),
        Chart(measure=GRADIENTS, x="tokens in the batch", log_x=True),
        Chart(measure=UPDATES, x="learning rate", log_x=True, integer_x=False),
        Chart(measure=FALL, x="learning rate", log_x=True, integer_x=False),
        Chart(measure=SUM, x="number of terms n", log_x=True),
    ),
    example=example,
)
