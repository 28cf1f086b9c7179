"""Dropout helps a model that sees its data many times, and slows down a model that sees it once."""

from collections.abc import Iterator
from dataclasses import dataclass

from qkv_lab.claim import Chart, Check, Claim
from qkv_lab.corpus import BYTE_MODEL, write_corpus
from qkv_lab.experiment import Experiment
from qkv_lab.table import Point, Table

LOSS = "validation loss (nats per byte)"
CURVE = "validation loss with little data (nats per byte)"
LITTLE, MORE, STOPPED = "little data", "more data", "little data, best evaluation"


@dataclass(frozen=True)
class DropoutSettings:
    """Rates of dropout, and two amounts of text: one is seen many times, the other once."""

    rates: tuple[float, ...] = (0.0, 0.1, 0.3, 0.5)
    little: int = 3000  # bytes
    more: int = 100_000
    valid_bytes: int = 10_000
    width: int = 64
    steps: int = 320
    evaluations: int = 8


def run(experiment: Experiment) -> Iterator[Point]:
    """The loss at the end of training, and the lowest on the way there."""
    settings = experiment.settings
    for series, size in ((LITTLE, settings.little), (MORE, settings.more)):
        corpus = write_corpus(experiment, size, settings.valid_bytes)
        for rate in settings.rates:
            name = f"{size} bytes, dropout {rate}"
            keys = {
                **BYTE_MODEL,
                **corpus,
                "model.width": settings.width,
                "model.dropout": rate,
                "train.batch_tokens": 256,
                "train.steps": settings.steps,
                "train.eval_every": max(settings.steps // settings.evaluations, 1),
                "train.eval_examples": 1,
            }
            experiment.train(name, keys)
            losses = dict(experiment.curves(name).validation["loss"])
            yield Point(LOSS, series, rate, losses[settings.steps])
            if series == LITTLE:
                yield Point(LOSS, STOPPED, rate, min(losses.values()))
                yield from (Point(CURVE, f"dropout {rate:g}", int(step), loss) for step, loss in losses.items())


def check(table: Table) -> list[Check]:
    """Dropout helps with little data and harms with more data; early stopping does most of its work."""
    little, stopped, more = (table.curve(LOSS, name) for name in (LITTLE, STOPPED, MORE))
    rates = table.xs(LOSS)
    gain, gain_stopped = (curve[0.0] - min(curve[rate] for rate in rates[1:]) for curve in (little, stopped))
    best = min(rates, key=lambda rate: little[rate])
    smallest_harm = min(more[rate] for rate in rates[1:]) - more[0.0]
    return [
        Check(
            "with little data, dropout lowers the loss at the end of training (by at least 0.05 nats)",
            gain >= 0.05,
            f"by {gain:.2f} nats, with a rate of {best:g}",
        ),
        Check(
            "with more data, every rate of dropout raises the loss",
            smallest_harm > 0,
            ", ".join(f"{more[rate]:.2f} with {rate:g}" for rate in rates),
        ),
        Check(
            "with early stopping, the gain with little data is less than half as large",
            gain_stopped < gain / 2,
            f"{gain_stopped:+.2f} nats instead of {gain:+.2f}",
        ),
    ]


def example() -> None:
    """The idea in a few lines."""
    import torch
    from torch.nn import functional as F

    x = torch.ones(10)
    print(F.dropout(x, 0.5))  # half of the values are 0, the others are doubled, so that the mean stays the same
    print(F.dropout(x, 0.5, training=False))

    # 20 examples with random labels and 50 features: there is nothing to learn, and everything to memorise
    torch.manual_seed(0)
    features, labels = torch.randn(20, 50), torch.randn(20)
    for rate in (0.0, 0.5):
        weights = torch.zeros(50, requires_grad=True)
        for _ in range(500):
            error = F.dropout(features, rate) @ weights - labels
            (gradient,) = torch.autograd.grad((error**2).mean(), weights)
            weights.data -= 0.02 * gradient
        print(f"dropout {rate}: memorised {1 - ((features @ weights - labels) ** 2).mean() / labels.var():.0%}")


CLAIM = Claim(
    name="dropout",
    chapter="training",
    title="Dropout helps when the data is seen many times",
    quotes=(),
    question="Does dropout lower the validation loss, with little data and with more?",
    method="A small byte-level language model is trained for the same number of steps on a few kilobytes of Python "
    "code, which it sees many times, and on a text so long that it sees nothing twice. Dropout is applied after the "
    "embedding and after each attention and feed-forward layer.",
    lesson="Dropout sets random activations to zero, so no unit can rely on one other unit, and the model cannot "
    "learn single examples by heart so easily. That is a gain only if it would otherwise memorise them. With fresh "
    "data the training loss is already an honest estimate, and dropout only adds noise to the gradients and takes "
    "away capacity: the same loss takes more steps. This is why large language models, which see most of their data "
    "once, train without dropout, and why the 2017 Transformer, which saw its sentence pairs many times, used 0.1. "
    "Early stopping is the cheaper remedy: it keeps the weights from before the model began to memorise.",
    limits="The model is tiny. With a budget of steps as short as this one, large rates suffer from slow training, "
    "and would gain with more steps. The lecture notes that we quote elsewhere do not mention dropout.",
    settings={
        "mini": DropoutSettings((0.0, 0.5), more=4000, valid_bytes=500, width=32, steps=2, evaluations=1),
        "small": DropoutSettings(),
        "full": DropoutSettings((0.0, 0.1, 0.2, 0.3, 0.4, 0.5), 8000, 1_000_000, 50_000, steps=2000, evaluations=20),
    },
    run=run,
    check=check,
    charts=(
        Chart(measure=LOSS, x="dropout", integer_x=False),
        Chart(measure=CURVE, x="step"),
    ),
    example=example,
)
