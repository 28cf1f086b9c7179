"""The gradient of an output for an earlier input shrinks with every step of recurrence, and not with attention."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from qkv import Tokenizer, build
from qkv.blocks import make_layout
from qkv.data.builtin import Stdlib
from qkv.models import Network
from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.corpus import BYTE_MODEL, write_corpus
from qkv_lab.experiment import Experiment
from qkv_lab.recurrent import comparable_decoders
from qkv_lab.table import Point, Table

INITIAL = "gradient at initialisation, relative to distance 1"
TRAINED = "gradient after training, relative to distance 1"
LARGE = "RNN, large weights"
LARGE_FACTOR = 8


@dataclass(frozen=True)
class VanishingGradientsSettings:
    """Models, their width, distances, the windows of text that are averaged, and training."""

    models: tuple[str, ...] = ("RNN", "GRU", "LSTM", "attention")
    width: int = 32
    max_distance: int = 256  # at initialisation
    trained_distance: int = 128
    num_windows: int = 16
    steps: int = 150
    train_bytes: int = 300_000


def run(experiment: Experiment) -> Iterator[Point]:
    """Train a language model of each kind; measure gradients with new weights and with trained ones."""
    settings = experiment.settings
    corpus = write_corpus(experiment, settings.train_bytes, 2000)
    for name, model in comparable_decoders(settings.width).items():
        if name not in settings.models:
            continue
        window = settings.trained_distance + 1
        lengths = {"data.max_length": window, "train.batch_tokens": 8 * window, "train.steps": settings.steps}
        trained = experiment.train(name, {**BYTE_MODEL, **corpus, **model, **lengths, "train.eval_examples": 1})
        ids = cut_windows(trained.tokenizer, settings.num_windows, settings.max_distance + 2)
        untrained = build(trained.config)
        yield from gradients(INITIAL, name, untrained, ids)
        yield from gradients(TRAINED, name, trained.network, ids[:, -settings.trained_distance - 2 :])
        if name == "RNN":
            with torch.no_grad():
                untrained.get_parameter("decoder.layers.0.rnn.weight_hh_l0").mul_(LARGE_FACTOR)
            yield from gradients(INITIAL, LARGE, untrained, ids)


def cut_windows(tokenizer: Tokenizer, num_windows: int, length: int) -> torch.Tensor:
    """Windows of validation text, one from each file that is long enough: (num_windows, length)."""
    windows = []
    for example in Stdlib().examples("valid"):
        ids = tokenizer.encode(example["text"][: 4 * length], add_special_tokens=False)
        if len(ids) >= length:
            windows.append(ids[-length:])
        if len(windows) == num_windows:
            break
    return torch.tensor(windows)


def gradients(measure: str, series: str, network: Network, ids: torch.Tensor) -> Iterator[Point]:
    """The norm of the gradient of the last token's loss for the embedding of earlier tokens, by distance.

    The root of the mean square over all windows, in float64, divided by its value at distance 1.
    """
    network = network.double().eval()
    layout = make_layout(ids[:, :-1])
    x = network.output_embedding(ids[:, :-1], layout.positions).detach().requires_grad_()
    logits = network.head(network.output_stack(x, layout)[:, -1:], layout)[:, 0]
    loss = torch.nn.functional.cross_entropy(logits, ids[:, -1], reduction="sum")
    (gradient,) = torch.autograd.grad(loss, x)
    norms = gradient.square().sum(dim=2).mean(dim=0).sqrt()  # (T,)
    distance = 1
    while distance < len(norms):
        yield Point(measure, series, distance, (norms[-1 - distance] / norms[-2]).item())
        distance *= 2


def factor_per_step(table: Table, measure: str, series: str) -> float:
    """The factor of the gradient for each further step, between a quarter of the longest distance and the longest."""
    far = table.xs(measure)[-1]
    assert isinstance(far, int)
    near = far // 4
    ratio = table.mean(measure, series, far) / table.mean(measure, series, near)
    return math.exp(math.log(ratio) / (far - near))


def check(table: Table) -> list[Check]:
    """Recurrent gradients fall by a constant factor per step, slower with gates; attention has no such factor."""
    factors = {name: factor_per_step(table, INITIAL, name) for name in table.series(INITIAL)}
    large = factors.pop(LARGE)
    recurrent = [factors[name] for name in ("RNN", "GRU", "LSTM") if name in factors]
    trained = {name: table.curve(TRAINED, name) for name in table.series(TRAINED)}
    longest = table.xs(TRAINED)[-1]
    ends = {name: curve[longest] for name, curve in trained.items()}
    attention = ends.get("attention", 1.0)
    return [
        Check(
            "at initialisation, each step multiplies the gradient of recurrent models by less than 0.95, and the "
            "gradient of attention by 0.99–1.01",
            max(recurrent) < 0.95 and 0.99 <= factors.get("attention", 1.0) <= 1.01,
            ", ".join(f"{name} {factor:.3f}" for name, factor in factors.items()),
        ),
        Check(
            "gates help: the factor is larger for a GRU than for an RNN, and larger for an LSTM than for a GRU",
            recurrent == sorted(recurrent),
            ", ".join(f"{factor:.3f}" for factor in recurrent),
        ),
        Check(
            f"with recurrent weights that are {LARGE_FACTOR} times larger, the gradient of an RNN explodes (above 1)",
            large > 1,
            f"{large:.3f} per step",
        ),
        Check(
            f"after training on text, the gradient that reaches a token {longest} positions back is at least ten "
            "times larger with attention than in every recurrent model",
            all(attention >= 10 * value for name, value in ends.items() if name != "attention"),
            ", ".join(f"{name} {value:.1e}" for name, value in ends.items()),
        ),
    ]


def example() -> None:
    """The idea in a few lines."""
    import torch

    torch.manual_seed(0)
    x = torch.randn(1, 65, 64, requires_grad=True)
    layers = {"RNN": torch.nn.RNN(64, 64, batch_first=True), "LSTM": torch.nn.LSTM(64, 64, batch_first=True)}
    outputs = {name: layer(x)[0] for name, layer in layers.items()}
    outputs["attention"] = torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
    for name, out in outputs.items():
        (gradient,) = torch.autograd.grad(out[0, -1].sum(), x)
        print(name, [f"{gradient[0, 64 - d].norm() / gradient[0, 63].norm():.0e}" for d in (1, 4, 16, 64)])


CLAIM = Claim(
    name="vanishing-gradients",
    chapter="families",
    title="Gradients vanish along recurrent steps, and not along attention",
    quotes=(
        Quote("Vanishing or exploding gradients due to chain rule", "video"),
        Quote("Long distance dependencies are difficult to learn because of RNN gradient problems.", "lecture"),
        Quote("Gives long range dependencies", "mechanism"),
    ),
    question="How much of the gradient of an output reaches an input that was read d tokens before?",
    method="Language models of bytes with equal numbers of weights read the source code of Python's standard library. "
    "We take the gradient of the loss of one token for the embedding of an earlier one, with new weights and after a "
    "short training.",
    lesson="By the chain rule, the gradient over d steps is a product of d Jacobians of one step. It shrinks or grows "
    "exponentially, unless these Jacobians are close to the identity. The cell of an LSTM multiplies its content by a "
    "forget gate instead of a matrix, so its factor is the gate, which is below 1 but can be learned. Attention has a "
    "direct path between any two tokens, so distance does not multiply anything: the gradient is spread over all "
    "tokens by the attention weights. A small gradient also means that the earlier token has little influence.",
    limits="The factor depends on the initialisation: orthogonal recurrent weights, or forget gates that start near 1, "
    "keep gradients for longer. After training, text itself sets how much of the distant past is useful.",
    settings={
        "mini": VanishingGradientsSettings(("RNN", "LSTM"), 8, 32, 8, num_windows=2, steps=2, train_bytes=3000),
        "small": VanishingGradientsSettings(),
        "full": VanishingGradientsSettings(width=64, num_windows=32, steps=1500, train_bytes=3_000_000),
    },
    run=run,
    check=check,
    charts=(
        Chart(measure=INITIAL, x="distance in tokens", log_x=True, log_y=True),
        Chart(measure=TRAINED, x="distance in tokens", log_x=True, log_y=True),
    ),
    example=example,
)
