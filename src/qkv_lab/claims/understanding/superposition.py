"""A model stores more features than it has dimensions, if the features are sparse."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from qkv.inside.autoencoder.superposition import ToyModel, sample_features, train_toy_model
from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.experiment import Experiment
from qkv_lab.table import Point, Table

STORED = "features stored"
INTERFERENCE = "interference of a stored feature"
ERROR = "reconstruction error (fraction of the variance)"
RELU, LINEAR = "ReLU output", "linear output"
TEST_SAMPLES = 20_000


@dataclass(frozen=True)
class SuperpositionSettings:
    """The number of features and dimensions, how often a feature is present, and the training of each model."""

    num_features: int = 40
    width: int = 10
    probabilities: tuple[float, ...] = (1.0, 0.3, 0.1, 0.03, 0.01)
    importance_ratio: float = 0.9  # of two consecutive features
    steps: int = 1500


def run(experiment: Experiment) -> Iterator[Point]:
    """Train a toy model for each probability, with and without the ReLU, and count the features that it stores."""
    settings = experiment.settings
    importance = settings.importance_ratio ** torch.arange(settings.num_features)
    for name, has_relu in ((RELU, True), (LINEAR, False)):
        for done, probability in enumerate(settings.probabilities):
            experiment.progress(name, done, len(settings.probabilities))
            model = train_toy_model(
                settings.num_features,
                settings.width,
                probability=probability,
                importance=importance,
                has_relu=has_relu,
                steps=settings.steps,
                seed=experiment.seed,
            )
            yield Point(STORED, name, probability, len(model.directions))
            yield Point(INTERFERENCE, name, probability, mean_interference(model))
            yield Point(ERROR, name, probability, reconstruction_error(model, probability, importance))


def mean_interference(model: ToyModel) -> float:
    """The mean of Σ_{j ≠ i} (ŵᵢ · wⱼ)² over stored features i: how much the others are read along its direction."""
    weight, stored = model.weight.detach(), model.directions  # (C, P), (stored, C)
    if not len(stored):
        return 0.0
    own = (stored @ F.normalize(weight, dim=0)).argmax(dim=1)  # the feature of each direction
    squares = (stored @ weight).square()
    return float((squares.sum(1) - squares.gather(1, own[:, None]).squeeze(1)).mean())


@torch.no_grad()
def reconstruction_error(model: ToyModel, probability: float, importance: torch.Tensor) -> float:
    """The squared error on new samples, as a fraction of the variance; both are weighted by importance."""
    x = sample_features(TEST_SAMPLES, len(importance), probability, torch.Generator().manual_seed(1))
    error, variance = (model(x) - x).square().mean(0), x.var(0)
    return float((importance * error).sum() / (importance * variance).sum())


def check(table: Table) -> list[Check]:
    """Of dense features, one is stored per dimension; of sparse ones more than two, if the output has a ReLU."""
    sparse, *_, dense = sorted(float(p) for p in table.xs(STORED))
    width = table.mean(STORED, LINEAR, dense)
    linear = [table.mean(STORED, LINEAR, p) for p in table.xs(STORED)]
    many, few = table.mean(STORED, RELU, sparse), table.mean(STORED, RELU, dense)
    noise = [table.mean(INTERFERENCE, RELU, p) for p in (sparse, dense)]
    errors = [table.mean(ERROR, name, sparse) for name in (RELU, LINEAR)]
    return [
        Check(
            "sparse features: a model stores more than two for each dimension",
            many > 2 * width,
            f"{many:.1f} features in {width:.0f} dimensions at probability {sparse:g}",
        ),
        Check(
            "features that are always present: at most one more is stored than there are dimensions",
            few <= width + 1,
            f"{few:.1f} features in {width:.0f} dimensions",
        ),
        Check(
            "a linear model stores one feature per dimension at every probability (±1)",
            max(linear) - min(linear) <= 1,
            f"{min(linear):.1f}–{max(linear):.1f} features",
        ),
        Check(
            "stored sparse features interfere: at least five times as much as dense ones",
            noise[0] >= 5 * noise[1],
            f"{noise[0]:.2f} against {noise[1]:.2f}",
        ),
        Check(
            "superposition at least halves the reconstruction error of sparse features",
            errors[0] < errors[1] / 2,
            f"{errors[0]:.2f} against {errors[1]:.2f} for the linear model",
        ),
    ]


def example() -> None:
    """The idea in a few lines."""
    import torch

    from qkv.inside.autoencoder.superposition import train_toy_model

    importance = 0.8 ** torch.arange(5)
    for probability in (1.0, 0.05):  # five features in two dimensions
        model = train_toy_model(5, 2, probability=probability, importance=importance, steps=400, seed=1)
        print(f"probability {probability}: {len(model.directions)} features are stored")
        print((model.weight.T @ model.weight).detach().round(decimals=1))


CLAIM = Claim(
    name="superposition",
    chapter="understanding",
    title="Sparse features share dimensions",
    quotes=(
        Quote("In high dimensions, you can store far more features if you allow them to overlap slightly.", "inside"),
        Quote("features are stored as combinations of neurons rather than isolated ones.", "inside"),
    ),
    question="How many features does a model store in a space with fewer dimensions than features, and when?",
    method="A toy model (Elhage et al. 2022) compresses 40 features into 10 dimensions and reconstructs them: "
    "ReLU(WᵀWx + b). Each feature is present with a given probability, and each is 0.9 times as important as the one "
    "before. A feature counts as stored if its column of W is longer than ½. Its interference is the sum of the "
    "squares that all other features add along its direction. A model without the ReLU is the comparison.",
    lesson="Two features that share a direction disturb each other only when both are present. If features are rare, "
    "this happens rarely; and when one of them is present, the ReLU removes its negative effects on the others, and a "
    "negative bias removes its small positive ones. If features are always present, "
    "every overlap costs at every example, and the model keeps the most important features, one for each dimension. "
    "A linear model cannot remove disturbances, so it never uses superposition. High dimensions alone are therefore "
    "not enough: superposition needs sparse features and a nonlinearity.",
    limits="This is a toy model with independent features that we chose. It does not show how many features a "
    "language model has. Sparse autoencoders look for the features of a trained model (docs/inside.md).",
    settings={
        "mini": SuperpositionSettings(8, 2, (1.0, 0.05), steps=100),
        "small": SuperpositionSettings(),
        "full": SuperpositionSettings(probabilities=(1.0, 0.3, 0.1, 0.03, 0.01, 0.003), steps=10_000),
    },
    run=run,
    check=check,
    charts=(
        Chart(measure=STORED, x="probability that a feature is present", log_x=True, integer_x=False),
        Chart(measure=INTERFERENCE, x="probability that a feature is present", log_x=True, integer_x=False),
        Chart(measure=ERROR, x="probability that a feature is present", log_x=True, integer_x=False),
    ),
    example=example,
)
