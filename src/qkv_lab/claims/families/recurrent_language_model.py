"""LSTM and Transformer language models with the same parameters and tokens: loss by step and by position, and time."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch

from qkv.models import Network
from qkv.models.runtime import eval_mode
from qkv.train.watch import StepReport, Watcher
from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.corpus import BYTE_MODEL, read_passages, write_corpus
from qkv_lab.experiment import Experiment
from qkv_lab.recurrent import comparable_decoders
from qkv_lab.table import Point, Table

LOSS = "validation loss (nats per byte)"
POSITION = "loss by position (nats per byte)"
SECONDS = "milliseconds of a training step"
RATE = "validation loss at the end (nats per byte)"
PARAMETERS = "parameters"
BATCH_TOKENS = BYTE_MODEL["train.batch_tokens"]
NAMES = {"LSTM": "LSTM", "attention": "Transformer"}


@dataclass(frozen=True)
class RecurrentLanguageModelSettings:
    """The width of the Transformer, the context in bytes, the corpus, training, timed steps, and learning rates."""

    width: int = 64
    context: int = 128
    train_bytes: int = 1_000_000
    valid_bytes: int = 40_000
    num_passages: int = 256
    steps: int = 400
    num_evaluations: int = 8
    timed_contexts: tuple[int, ...] = (32, 128, 512)
    timed_steps: int = 20
    rates: tuple[float, ...] = (3e-3, 1e-2, 3e-2)


def run(experiment: Experiment) -> Iterator[Point]:
    """Train both models on the same text; score new text by position; time steps with several lengths."""
    settings = experiment.settings
    corpus = write_corpus(experiment, settings.train_bytes, settings.valid_bytes)
    models = comparable_decoders(settings.width)
    for family, name in NAMES.items():
        keys = {**BYTE_MODEL, **corpus, **models[family], "data.max_length": settings.context}
        steps = {"train.steps": settings.steps, "train.eval_every": settings.steps // settings.num_evaluations}
        runs = {}
        for rate in settings.rates:
            title = f"{name}, learning rate {rate:g}"
            runs[title] = experiment.train(title, {**keys, **steps, "train.lr": rate, "train.eval_examples": 1})
            yield Point(RATE, name, rate, runs[title].run_end.metrics["loss"])
        best = min(runs, key=lambda title: runs[title].run_end.metrics["loss"])
        trained = runs[best]
        yield Point(PARAMETERS, name, 0, sum(p.numel() for p in trained.network.parameters()))
        for step, loss in experiment.curves(best).validation["loss"]:
            yield Point(LOSS, name, step, loss)
        passages = read_passages(corpus["data.valid"], trained.tokenizer, settings.num_passages, settings.context)
        losses = loss_by_position(trained.network, torch.tensor(passages))
        start = 1
        while start < settings.context:
            yield Point(POSITION, name, start, losses[start - 1 : 2 * start - 1].mean().item())
            start *= 2
        for length in settings.timed_contexts:
            timed = {"data.max_length": length, "train.batch_tokens": max(BATCH_TOKENS, length)}
            watcher = TimeSteps()
            budget = {"train.steps": settings.timed_steps, "train.log_every": 1, "train.eval_examples": 1}
            experiment.train(f"{name} {length}", {**keys, **timed, **budget}, watcher)
            yield Point(SECONDS, name, length, watcher.milliseconds())


class TimeSteps(Watcher):
    """Collects the time of each training step."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step(self, report: StepReport) -> None:
        """Keep the time since the run started."""
        self.times.append(report.seconds)

    def milliseconds(self) -> float:
        """The time of a step, without the first one: the shortest, which other programs have disturbed least."""
        return 1000 * min(late - early for early, late in pairwise(self.times))


@torch.no_grad()
def loss_by_position(network: Network, ids: torch.Tensor) -> torch.Tensor:
    """The mean loss of the tokens of passages (N, T), by the number of tokens before them: (T − 1)."""
    losses = []
    with eval_mode(network):
        for batch in ids.split(32):
            logits = network(batch[:, :-1]).transpose(1, 2)
            losses.append(torch.nn.functional.cross_entropy(logits, batch[:, 1:], reduction="none"))
    return torch.cat(losses).mean(dim=0)


def check(table: Table) -> list[Check]:
    """The Transformer is expected to learn more from the same tokens, above all from distant ones, and in less time."""
    lstm, transformer = NAMES.values()
    step = table.xs(LOSS)[-1]
    gap, half = table.difference(LOSS, (lstm, step), (transformer, step))
    lengths = table.xs(SECONDS)
    ratios = [table.mean(SECONDS, lstm, x) / table.mean(SECONDS, transformer, x) for x in lengths]
    times = ratios[len(lengths) // 2]  # at the context of the training
    same_time = loss_at(table.curve(LOSS, transformer), float(step) * times)
    positions = table.xs(POSITION)
    gaps = [table.difference(POSITION, (lstm, x), (transformer, x))[0] for x in (positions[0], positions[-1])]
    gained = {name: [table.mean(POSITION, name, x) for x in positions] for name in NAMES.values()}
    return [
        Check(
            "in the time of the whole training of the LSTM, on this CPU, the Transformer reaches a lower loss",
            same_time < table.mean(LOSS, lstm, step),
            f"LSTM {table.mean(LOSS, lstm, step):.3f}, Transformer {same_time:.3f} nats per byte (a step of the LSTM "
            f"takes {times:.2f} times as long)",
        ),
        Check(
            "after the same tokens, the Transformer has the lower loss (by at least 0.02)",
            gap >= 0.02,
            f"LSTM {table.mean(LOSS, lstm, step):.3f}, Transformer {table.mean(LOSS, transformer, step):.3f} nats per "
            f"byte (difference {gap:.3f} ± {half:.3f})",
        ),
        Check(
            "its advantage is larger late in a passage than at its start",
            gaps[1] > gaps[0],
            f"{gaps[0]:+.3f} with {positions[0]} byte before, {gaps[1]:+.3f} with {positions[-1]} and more",
        ),
        Check(
            f"between {positions[-2]} and {positions[-1]} bytes of context, the loss of the Transformer still falls, "
            "and the loss of the LSTM does not (by less than 0.01)",
            gained[transformer][-2] - gained[transformer][-1] >= 0.01 > gained[lstm][-2] - gained[lstm][-1],
            ", ".join(f"{name} {losses[-2]:.3f} → {losses[-1]:.3f}" for name, losses in gained.items()),
        ),
        Check(
            f"with {lengths[-1]} bytes, a training step takes an LSTM at least twice as long",
            ratios[-1] >= 2,
            ", ".join(f"{ratio:.1f} times with {x}" for ratio, x in zip(ratios, lengths, strict=True)),
        ),
    ]


def loss_at(curve: dict[float | str, float], step: float) -> float:
    """The loss of a curve at a step between two evaluations, or at the nearest one."""
    points = [(float(x), loss) for x, loss in curve.items()]
    for (x0, loss0), (x1, loss1) in pairwise(points):
        if x0 <= step <= x1:
            return loss0 + (loss1 - loss0) * (step - x0) / (x1 - x0)
    return points[0][1] if step < points[0][0] else points[-1][1]


def example() -> None:
    """The idea in a few lines."""
    import time

    import torch

    x = torch.randn(4, 256, 64)
    layers = {"LSTM": torch.nn.LSTM(64, 64, batch_first=True), "block": torch.nn.TransformerEncoderLayer(64, 4, 170)}
    for name, layer in layers.items():
        start = time.perf_counter()
        for _ in range(5):
            layer(x)
        parameters = sum(p.numel() for p in layer.parameters())
        print(f"{name}: {parameters:,} parameters, {(time.perf_counter() - start) / 5 * 1000:.1f} ms")


CLAIM = Claim(
    name="recurrent-language-model",
    chapter="families",
    title="LSTM and Transformer language models, with equal parameters and tokens",
    quotes=(
        Quote(
            "Moreover, transformer models require less training time compared to older recurrent neural network "
            "architectures like long short-term memory",
            "review",
        ),
        Quote("Difficulty accessing information from long time ago", "video"),
    ),
    question="Which of the two learns more from the same text, from what distance, and in what time?",
    method="Both are language models of bytes, with equal numbers of parameters, trained on the same passages of the "
    "standard library's source code. Each model has the best of three learning rates. The loss by position shows how "
    "much a longer context helps. For the time, a training step always has the same number of tokens, in passages of "
    "different lengths. The loss at equal time follows from both: the Transformer's curve at the step that it reaches "
    "in the time of the LSTM's training.",
    lesson="An LSTM knows the context only through its state, in which everything has to fit. Attention reads every "
    "earlier token itself, so it gains more from a long context. A training step of an LSTM has to wait for each token "
    "in turn. On a CPU that computes a few numbers at a time anyway, this costs little, and an LSTM of equal size has "
    "fewer operations to compute. It costs much where all tokens could be computed at once, as on a GPU.",
    limits="The models are small and the training is short. Times are of one CPU; a GPU computes more tokens at once, "
    "so that steps that must wait for each other cost more there. An LSTM generates a token in constant time, and a "
    "Transformer's cache grows.",
    settings={
        "mini": RecurrentLanguageModelSettings(16, 16, 3000, 1000, 4, 4, 2, (16, 32), 2, (3e-3,)),
        "small": RecurrentLanguageModelSettings(),
        "full": RecurrentLanguageModelSettings(128, 512, 8_000_000, 200_000, 256, 3000, 15, (32, 128, 512, 2048), 30),
    },
    run=run,
    check=check,
    charts=(
        Chart(measure=LOSS, x="training steps"),
        Chart(measure=RATE, x="learning rate", log_x=True, integer_x=False),
        Chart(measure=POSITION, x="bytes of context before the predicted byte, at least", log_x=True),
        Chart(measure=SECONDS, x="bytes in a passage", log_x=True, log_y=True),
    ),
    example=example,
    timed=(SECONDS,),
)
