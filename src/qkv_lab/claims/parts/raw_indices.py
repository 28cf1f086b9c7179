"""Raw indices as positions: they are differentiable, but either too large for the tokens or too close to each other."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv import StackConfig
from qkv.blocks import Embedding, Inputs
from qkv.models import Network
from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.decoders import build_decoder
from qkv_lab.experiment import Experiment
from qkv_lab.loop import training_steps
from qkv_lab.table import Point, Table

ACCURACY = "accuracy"
LONGER = "accuracy at other lengths"
TOKENS = "distance of two tokens at one position"
NEIGHBOURS = "distance of one token at neighbouring positions"
GRADIENT = "norm of the gradient for the indices"
ERASED = "difference from a network without positions"
INDEX, FRACTION, EVERY = "index in one dimension", "index / length in one dimension", "index in every dimension"
SINUSOIDAL, ROTARY = "sinusoidal", "rotary"
LEARNED = 0.95


@dataclass(frozen=True)
class RawIndicesSettings:
    """The task, the decoder, and its training."""

    vocab_size: int = 16
    offset: int = 3  # the label is the token this number of positions before
    length: int = 32
    width: int = 32
    batch_size: int = 16
    steps: int = 1200
    curve: tuple[int, ...] = (100, 200, 400, 800, 1200)
    factors: tuple[int, ...] = (1, 2, 4)  # lengths in the test, as multiples of the length in training


class IndexEmbedding(Embedding):
    """An embedding that adds index · factor to the first `num_dims` dimensions of each token."""

    def __init__(self, config: StackConfig, factor: float, num_dims: int) -> None:
        super().__init__(config)
        self.factor, self.num_dims = factor, num_dims

    def position_vectors(self, positions: Tensor) -> Tensor:
        """Positions (B, T) → (B, T, C)."""
        weights = torch.arange(self.token.embedding_dim) < self.num_dims
        return positions[..., None] * self.factor * weights


def run(experiment: Experiment) -> Iterator[Point]:
    """Compare embeddings of tokens and positions; then train decoders to copy the token three positions before."""
    settings = experiment.settings
    yield from compare_vectors(settings)
    for name in (SINUSOIDAL, INDEX, FRACTION, ROTARY):
        network = build_network(settings, name).float()

        def compute_loss(network: Network = network) -> Tensor:
            logits, labels = predict(settings, network, settings.length, settings.batch_size)
            return F.cross_entropy(logits.flatten(0, 1), labels.flatten())

        for step in training_steps(network, compute_loss, settings.steps, lr=3e-3):
            experiment.progress(name, step, settings.steps)
            if step in settings.curve:
                yield Point(ACCURACY, name, step, accuracy(settings, network, settings.length))
        for factor in settings.factors:
            length = factor * settings.length
            yield Point(LONGER, name, length, accuracy(settings, network, length))


def build_network(settings: RawIndicesSettings, name: str) -> Network:
    """A decoder of one layer with the named positions, in float64."""
    position = {SINUSOIDAL: "sinusoidal", ROTARY: "rotary"}.get(name, "none")
    network = build_decoder(1, settings.width, settings.vocab_size, position=position)
    if name in (INDEX, FRACTION, EVERY):
        factor = 1 / settings.length if name == FRACTION else 1.0
        embedding = IndexEmbedding(network.output_stack.config, factor, settings.width if name == EVERY else 1)
        embedding.token = network.output_embedding.token
        network.embedding = embedding
    return network


def predict(settings: RawIndicesSettings, network: Network, length: int, number: int) -> tuple[Tensor, Tensor]:
    """Logits for random sequences, and the labels: the token `offset` positions before."""
    ids = torch.randint(settings.vocab_size, (number, length))
    return network(ids)[:, settings.offset :], ids[:, : -settings.offset]


@torch.no_grad()
def accuracy(settings: RawIndicesSettings, network: Network, length: int) -> float:
    """The fraction of correct predictions on new sequences."""
    logits, labels = predict(settings, network, length, 64)
    return (logits.argmax(dim=-1) == labels).double().mean().item()


def compare_vectors(settings: RawIndicesSettings) -> Iterator[Point]:
    """Vectors after the first norm: how far apart two tokens are, and one token at two positions."""
    for name in (SINUSOIDAL, INDEX, FRACTION):
        network = build_network(settings, name)
        for position in (1, 4, 16, 64, 256):
            here, next_to = (normed_vectors(settings, network, at) for at in (position, position + 1))
            yield Point(TOKENS, name, position, torch.pdist(here).mean().item())
            yield Point(NEIGHBOURS, name, position, (here - next_to).norm(dim=1).mean().item())
    erased = build_network(settings, EVERY)
    first, later = (normed_vectors(settings, erased, at) for at in (0, settings.length))
    yield Point(ERASED, EVERY, settings.length, (first - later).norm().item())
    indices = torch.arange(settings.length, dtype=torch.float64)[None].requires_grad_()
    ids = torch.randint(settings.vocab_size, (1, settings.length))
    build_network(settings, INDEX)(Inputs(ids, positions=indices)).square().sum().backward()
    assert indices.grad is not None
    yield Point(GRADIENT, INDEX, settings.length, indices.grad.norm().item())


@torch.no_grad()
def normed_vectors(settings: RawIndicesSettings, network: Network, position: int) -> Tensor:
    """Each token at one position, after the first norm and with length 1, (V, C)."""
    vectors = network.output_embedding(torch.arange(settings.vocab_size)[:, None], torch.tensor([[position]]))
    return F.normalize(F.layer_norm(vectors[:, 0], vectors.shape[-1:]), dim=1)


def check(table: Table) -> list[Check]:
    """Raw indices are learned later than sinusoids. Their gradient exists; tokens or positions become too similar."""
    (trained, longer), far = table.xs(LONGER)[:2], table.xs(TOKENS)[-1]
    reached = {name: table.mean(LONGER, name, trained) for name in table.series(LONGER)}
    beyond = {name: table.mean(LONGER, name, longer) for name in table.series(LONGER)}
    tokens = {name: table.mean(TOKENS, name, far) for name in table.series(TOKENS)}
    neighbours = {name: table.mean(NEIGHBOURS, name, 1) for name in table.series(NEIGHBOURS)}
    (length,), steps = table.xs(GRADIENT), table.curve(ACCURACY, SINUSOIDAL)
    last, learned = max(map(int, steps)), min((int(x) for x, value in steps.items() if value > LEARNED), default=10**9)
    gradient, erased = table.mean(GRADIENT, INDEX, length), table.mean(ERASED, EVERY, length)
    return [
        Check(
            f"sinusoids learn the task (accuracy above {LEARNED}) in at most a third of the {last} steps, raw indices "
            f"not in all of them (below {LEARNED})",
            3 * learned <= last and max(reached[INDEX], reached[FRACTION]) < LEARNED,
            f"sinusoids by step {learned:.0f}; accuracy at the end: sinusoids {reached[SINUSOIDAL]:.2f}, index "
            f"{reached[INDEX]:.2f}, index / length {reached[FRACTION]:.2f}",
        ),
        Check(
            "the output is differentiable with respect to raw indices: the gradient is not zero",
            0 < gradient < float("inf"),
            f"norm {gradient:.2g}",
        ),
        Check(
            "an index that is added to every dimension has no effect: the norm subtracts it",
            erased < 1e-6,
            f"difference {erased:.0e}",
        ),
        Check(
            f"at position {far}, an index in one dimension leaves little of the token: different tokens are close "
            "(distance below 0.1); with sinusoids they are not (above 0.5)",
            tokens[INDEX] < 0.1 and tokens[SINUSOIDAL] > 0.5,
            f"distance {tokens[INDEX]:.2f} and {tokens[SINUSOIDAL]:.2f}",
        ),
        Check(
            "index / length brings neighbouring positions closer than sinusoids, by a factor of 10 or more",
            neighbours[FRACTION] < neighbours[SINUSOIDAL] / 10,
            f"distance {neighbours[FRACTION]:.4f} and {neighbours[SINUSOIDAL]:.2f}",
        ),
        Check(
            f"sinusoids do not generalise to longer sequences (accuracy below 0.9 at {longer} tokens)",
            beyond[SINUSOIDAL] < 0.9,
            f"accuracy {beyond[SINUSOIDAL]:.2f}; rotary {beyond[ROTARY]:.2f}",
        ),
    ]


def example() -> None:
    """The idea in a few lines."""
    import torch
    from torch.nn.functional import cosine_similarity, layer_norm

    from qkv.blocks.position import sinusoids

    tokens = torch.randn(2, 64)
    for position in (1, 16, 256):
        index = torch.cat([torch.tensor([float(position)]), torch.zeros(63)])  # the index in one dimension
        sinusoid = sinusoids(torch.tensor([[position]]), 64)[0, 0].float()
        for name, vector in (("index", index), ("sinusoid", sinusoid)):
            a, b = layer_norm(tokens + vector, (64,))
            print(f"position {position}, {name}: two tokens have a similarity of {cosine_similarity(a, b, dim=0):.2f}")


CLAIM = Claim(
    name="raw-indices",
    chapter="parts",
    title="Raw indices lack scale or resolution, not derivatives",
    quotes=(
        Quote(
            'A raw index (like just "0", "1", "2") isn’t differentiable and can\'t capture patterns',
            "mechanism",
            "wrong: positions are inputs, and the gradient exists",
        ),
        Quote(
            "Using sinusoidal positional encoding allows the model to generalize to longer sequences",
            "mechanism",
            "not in this experiment",
        ),
    ),
    question="Can a model use raw indices as positions, and what do sinusoids do better?",
    method="A decoder of one layer learns to repeat the token three positions before, on random tokens. The index is "
    "in one dimension of the token's vector, as it is or divided by the training length, or the positions are "
    "sinusoidal or rotary. We test at the training length and at longer ones. For untrained embeddings, scaled to "
    "length 1 after the first norm, we measure how far apart two tokens are at one position, and one token at "
    "neighbouring positions.",
    lesson="Positions are inputs, like token ids: training needs the gradients of the weights, not the gradients of "
    "the indices, and both exist. A raw index grows without limit, so after the norm it leaves little of the token. "
    "Divided by the length, it is small, but neighbours then differ so little that large weights are needed to "
    "separate them. Sinusoids are bounded, and their fast components separate neighbours. For them, a shift by three "
    "is a rotation, which the query and key matrices can represent. A model can learn raw indices with many more "
    "steps: in an outside run they reached 0.92 to 0.98 after 8,000, because the norm makes a non-linear function of "
    "them. Sinusoids do not extrapolate: beyond the training "
    "length, their slow components have values that the model has not seen.",
    limits="One small task with one layer. How much later raw indices are learned depends on the task, the width and "
    "the number of layers.",
    settings={
        "mini": RawIndicesSettings(length=12, batch_size=4, steps=10, curve=(10,)),
        "small": RawIndicesSettings(),
        "full": RawIndicesSettings(steps=8000, curve=(100, 200, 400, 800, 1600, 3200, 8000), factors=(1, 2, 4, 8)),
    },
    run=run,
    check=check,
    charts=(
        Chart(measure=ACCURACY, x="training steps", log_x=True, is_fraction=True),
        Chart(measure=LONGER, x="tokens in the test", log_x=True, is_fraction=True),
        Chart(measure=TOKENS, x="position", log_x=True, log_y=True),
        Chart(measure=NEIGHBOURS, x="position", log_x=True, log_y=True),
    ),
    example=example,
)
