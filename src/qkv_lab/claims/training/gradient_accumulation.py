"""The gradients of micro-batches add up to the gradient of the batch, if each loss is divided by all labels."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch

from qkv.data import Batch, Loader
from qkv.tasks.prepare.prepare import prepare
from qkv.train.loss.training_module import TrainingModule
from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.experiment import Experiment
from qkv_lab.gradients import count_saved_bytes, gradient_of, loss_of_batch
from qkv_lab.table import Point, Table

DIFFERENCE = "difference from the gradient of the batch (relative)"
MEMORY = "memory for the backward pass of a micro-batch (kB)"
ROUNDING = torch.finfo(torch.float64).eps
SUM, MEANS = "divided by all labels", "mean of means"


@dataclass(frozen=True)
class GradientAccumulationSettings:
    """Random texts of equal or different lengths, and the numbers of micro-batches."""

    num_texts: int = 64
    max_words: int = 40
    num_micro_batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32)


def run(experiment: Experiment) -> Iterator[Point]:
    """The difference of accumulated gradients, and the memory of one micro-batch, by the number of micro-batches."""
    settings = experiment.settings
    for lengths in ("equal lengths", "different lengths"):
        module, batch = prepare_batch(experiment, lengths)
        reference = gradient_of(module, loss_of_batch(module, batch))
        for count in settings.num_micro_batches:
            parts = batch.split(count)
            whole = sum(gradient_of(module, loss_of_batch(module, part, batch.num_token_labels)) for part in parts)
            means = sum(gradient_of(module, loss_of_batch(module, part)) for part in parts) / count
            for name, gradient in ((SUM, whole), (MEANS, means)):
                difference = ((gradient - reference).norm() / reference.norm()).item()
                yield Point(DIFFERENCE, f"{name}, {lengths}", count, max(difference, ROUNDING))
            if lengths == "equal lengths":
                saved = count_saved_bytes(module, partial(loss_of_batch, module, parts[0]))
                yield Point(MEMORY, "memory", count, saved / 1000)


def prepare_batch(experiment: Experiment, lengths: str) -> tuple[TrainingModule, Batch]:
    """A language model with random weights in float64, and one padded batch with all texts."""
    settings = experiment.settings
    numbers = torch.randint(2, settings.max_words + 1, (settings.num_texts,)).tolist()
    if lengths == "equal lengths":
        numbers = [settings.max_words] * settings.num_texts
    texts = [" ".join(f"w{word}" for word in torch.randint(20, (number,)).tolist()) for number in numbers]
    file = experiment.write_texts(f"{lengths}.jsonl", texts)
    keys = {
        "data.train": file,
        "data.valid": file,
        "data.layout": "padded",
        "data.max_length": settings.max_words + 2,
        "tokenizer.kind": "word",
        "objective.kind": "causal_lm",
        "model.width": 32,
        "model.layers": 2,
        "model.dropout": 0.0,
        "model.init_std": 0.2,
        "train.batch_tokens": settings.num_texts * (settings.max_words + 2),
        "train.steps": 1,
    }
    prepared = prepare(experiment.recipe(lengths, keys))
    module = TrainingModule(prepared.build_network().double(), prepared.recipe.objective)
    return module, next(iter(Loader(prepared.train_data)))


def check(table: Table) -> list[Check]:
    """Dividing by all labels is exact; means of means are exact for equal label counts only; memory falls as 1/k."""
    counts = table.xs(DIFFERENCE)
    exact = [
        table.mean(DIFFERENCE, f"{SUM}, {lengths}", count)
        for lengths in ("equal lengths", "different lengths")
        for count in counts
    ]
    equal = max(table.curve(DIFFERENCE, f"{MEANS}, equal lengths").values())
    ragged = {count: table.mean(DIFFERENCE, f"{MEANS}, different lengths", count) for count in counts[1:]}
    growth = table.exponent(MEMORY, "memory")
    return [
        Check(
            "the gradients of the micro-batches add up to the gradient of the batch (relative difference below "
            "1e-12, in float64)",
            max(exact) < 1e-12,
            f"largest difference {max(exact):.0e}",
        ),
        Check(
            "the mean of means is exact if all micro-batches have the same number of labels (below 1e-12), and wrong "
            "by more than 5 % if they do not",
            equal < 1e-12 and ragged[counts[-1]] > 0.05,
            f"{equal:.0e} with equal lengths; with different lengths "
            + ", ".join(f"{value:.1%} with {count}" for count, value in ragged.items()),
        ),
        Check(
            "the memory falls in proportion to the number of micro-batches (exponent −0.9 to −1.1)",
            -1.1 <= growth <= -0.9,
            f"exponent {growth:.2f}",
        ),
    ]


def example() -> None:
    """The idea in a few lines."""
    import torch
    from torch.nn import functional as F

    weight = torch.randn(5, 3, requires_grad=True)
    x, labels = torch.randn(8, 3), torch.tensor([0, 1, 2, 3, 4, -100, -100, -100])  # -100: no label
    logits = x @ weight.T
    (batch,) = torch.autograd.grad(F.cross_entropy(logits, labels), weight, retain_graph=True)
    halves = [(logits[:4], labels[:4]), (logits[4:], labels[4:])]  # with 4 labels and with 1
    by_labels = torch.stack([F.cross_entropy(*half, reduction="sum") for half in halves]).sum() / 5
    by_means = torch.stack([F.cross_entropy(*half) for half in halves]).mean()
    for name, loss in (("sum / labels", by_labels), ("mean of means", by_means)):
        (gradient,) = torch.autograd.grad(loss, weight, retain_graph=True)
        print(f"{name}: {(gradient - batch).norm() / batch.norm():.1e}")


CLAIM = Claim(
    name="gradient-accumulation",
    chapter="training",
    title="Gradient accumulation gives the gradient of the large batch",
    quotes=(
        Quote("Accumulates gradients over mini-batches before updating.", "inside"),
        Quote("Enables larger effective batch sizes with less memory.", "inside"),
    ),
    question="Is the sum of the gradients of micro-batches the gradient of the batch, and how much memory does it "
    "save?",
    method="A language model with random weights reads one padded batch of texts, whole and in k micro-batches. "
    "Gradients are accumulated in two ways: each loss is divided by the number of labels in the whole batch, or the "
    "means of the micro-batches are averaged, as a loop that divides `loss.mean()` by k does. All texts have equal "
    "lengths, or different ones. Everything is in float64. Memory is what the forward pass keeps for the backward "
    "pass.",
    lesson="The loss of a batch is a sum over labels divided by their number. Gradients are linear, so any split of "
    "the sum gives the same gradient, as long as the divisor is the number of labels in the whole batch. A mean of "
    "means divides by the number of labels of each micro-batch. Labels in a micro-batch with few of them then count "
    "more. The divisor must be known before the first backward pass, so qkv counts the labels of all micro-batches "
    "and all ranks first (`train/step.py`). Activations need memory for one micro-batch at a time; weights, gradients "
    "and optimizer state need the same memory as before.",
    limits="The equality needs a loss that is a sum over examples. Batch norm, which a Transformer does not have, "
    "and contrastive losses, which compare the examples of a micro-batch, are exceptions. Dropout draws other random "
    "numbers for another split. qkv sorts a padded batch by length; in shuffled batches, the error of the mean of "
    "means is smaller.",
    settings={
        "mini": GradientAccumulationSettings(num_texts=16, max_words=20, num_micro_batches=(1, 2, 8)),
        "small": GradientAccumulationSettings(),
        "full": GradientAccumulationSettings(num_texts=256, max_words=100, num_micro_batches=(1, 4, 16, 64, 128)),
    },
    run=run,
    check=check,
    charts=(
        Chart(measure=DIFFERENCE, x="number of micro-batches k", log_x=True, log_y=True),
        Chart(measure=MEMORY, x="number of micro-batches k", log_x=True, log_y=True),
    ),
    example=example,
    is_deterministic=True,
)
