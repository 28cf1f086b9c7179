"""Train a sparse autoencoder.

autoencoder = fit_autoencoder(network, examples, "decoder.2.resid_post", features=1024, k=16)

    loss = mean ‖x − x̂‖² / C  +  l1 · mean Σ f  (relu)  +  aux_loss_coefficient · mean ‖e − ê‖² / C

The last term revives dead features (Gao et al. 2024): those that were not active for a while reconstruct the error
e = x − x̂. Directions have length 1. Otherwise the L1 penalty could be evaded by small features and long directions.

N tokens, C model width, F features, K active features of a token
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.errors import UsageError
from qkv.inside.autoencoder.activations import shuffle_activations, stream_activations
from qkv.inside.autoencoder.model import AutoencoderConfig, SparseAutoencoder
from qkv.inside.forward import Example
from qkv.models import Network
from qkv.values import Limits, check


@dataclass(frozen=True, kw_only=True)
class AutoencoderOptions:
    """How a sparse autoencoder is trained."""

    steps: Annotated[int, Limits(1)] = 2000
    lr: float = 1e-3
    l1: float = 0.01  # relu: the weight of the sum of the features
    warmup: float = 0.05  # the fraction of the steps in which the learning rate and l1 rise from 0
    decay_fraction: float = 0.2  # the fraction of the steps, at the end, in which the learning rate falls to 0
    aux_loss_coefficient: float = 1 / 32  # the weight of the loss that revives dead features
    dead_after: int = 100  # a feature that was not active in this number of steps is dead
    seed: int = 0

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class AutoencoderProgress:
    """The numbers of one training step."""

    step: int
    loss: float
    explained_variance: float
    l0: float  # the mean number of active features of a token
    dead_fraction: float


OnAutoencoderStep = Callable[[AutoencoderProgress], None]


def train_autoencoder(
    batches: Iterable[Tensor],
    config: AutoencoderConfig,
    options: AutoencoderOptions | None = None,
    *,
    on_step: OnAutoencoderStep | None = None,
    report_every: int = 100,
) -> SparseAutoencoder:
    """Train a sparse autoencoder on batches of activations (N, C), one batch per step.

    `on_step` is called every `report_every` steps, and after the last one. If the batches end before the steps, the
    training ends with them.
    """
    options = options or AutoencoderOptions()
    remaining = iter(batches)
    first = next(remaining, None)
    if first is None:
        raise UsageError("there are no activations to train on; give at least one batch")
    if first.dim() != 2 or first.shape[1] != config.width:
        raise UsageError(f"activations have shape {tuple(first.shape)}, but the autoencoder needs (N, {config.width})")
    autoencoder = SparseAutoencoder(config, seed=options.seed).to(first.device)
    initialise_from(autoencoder, first)
    optimizer = torch.optim.Adam(autoencoder.parameters(), lr=options.lr, fused=True)
    last_active = torch.zeros(config.features, dtype=torch.long, device=first.device)
    for step, batch in enumerate(islice(chain([first], remaining), options.steps)):
        rise = min(1.0, (step + 1) / max(1.0, options.warmup * options.steps))
        fall = min(1.0, (options.steps - step) / max(1.0, options.decay_fraction * options.steps))
        for group in optimizer.param_groups:
            group["lr"] = options.lr * min(rise, fall)
        x = batch / autoencoder.scale
        is_dead = step - last_active > options.dead_after
        loss, reconstructed, active = training_loss(autoencoder, x, is_dead, options, rise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        autoencoder.normalise_directions()
        last_active[active] = step
        if on_step is not None and (step % report_every == 0 or step == options.steps - 1):
            on_step(measure_step(step, loss, x, reconstructed, autoencoder, is_dead))
    return autoencoder.eval()


@torch.no_grad()
def initialise_from(autoencoder: SparseAutoencoder, x: Tensor) -> None:
    """Set the bias to the mean of some activations, and the scale to their standard deviation."""
    mean = x.mean(0)
    scale = (x - mean).square().mean().sqrt().clamp(min=1e-12)
    autoencoder.scale.copy_(scale)
    autoencoder.bias.copy_(mean / scale)


def training_loss(
    autoencoder: SparseAutoencoder, x: Tensor, is_dead: Tensor, options: AutoencoderOptions, l1_factor: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss of normalised activations (N, C), their reconstruction, and the numbers of the active features."""
    pre = autoencoder.pre_activations(x)  # (N, F)
    if autoencoder.config.kind == "topk":
        values, indices = pre.topk(autoencoder.config.k, dim=-1, sorted=False)
        values = values.relu()
        # A sum of K rows is much cheaper than a product with F rows, most of whose weights are 0.
        reconstructed = F.embedding_bag(indices, autoencoder.decoder, per_sample_weights=values, mode="sum")
        reconstructed = reconstructed + autoencoder.bias
        penalty = x.new_zeros(())
        active = indices[values > 0].unique()
    else:
        features = pre.relu()
        reconstructed = features @ autoencoder.decoder + autoencoder.bias
        penalty = options.l1 * l1_factor * features.sum(-1).mean()
        active = (features.detach() > 0).any(0).nonzero().flatten()
    error = x - reconstructed
    loss = error.square().mean() + penalty
    if options.aux_loss_coefficient and bool(is_dead.any()):
        loss = loss + options.aux_loss_coefficient * auxiliary_loss(autoencoder, pre, is_dead, error.detach())
    return loss, reconstructed.detach(), active


def auxiliary_loss(autoencoder: SparseAutoencoder, pre: Tensor, is_dead: Tensor, error: Tensor) -> Tensor:
    """How badly the dead features reconstruct the error of the others."""
    dead = is_dead.nonzero().flatten()
    count = min(len(dead), max(1, autoencoder.config.width // 2))
    values, chosen = pre[:, dead].topk(count, dim=-1, sorted=False)
    rows = autoencoder.decoder[dead]
    reconstructed = F.embedding_bag(chosen, rows, per_sample_weights=values.relu(), mode="sum")
    return (error - reconstructed).square().mean()


@torch.no_grad()
def measure_step(
    step: int, loss: Tensor, x: Tensor, reconstructed: Tensor, autoencoder: SparseAutoencoder, is_dead: Tensor
) -> AutoencoderProgress:
    """The numbers of a step."""
    variance = (x - x.mean(0)).square().sum()
    explained = 1 - float((x - reconstructed).square().sum() / variance)
    l0 = float((autoencoder.encode(x * autoencoder.scale) > 0).float().sum(-1).mean())
    return AutoencoderProgress(step, float(loss.detach()), explained, l0, float(is_dead.float().mean()))


def fit_autoencoder(
    network: Network,
    examples: Sequence[Example],
    site: str,
    *,
    features: int = 1024,
    kind: Literal["topk", "relu"] = "topk",
    k: int = 32,
    options: AutoencoderOptions | None = None,
    batch_size: int = 16,
    batch_tokens: int = 1024,
    buffer_tokens: int = 65_536,
    on_step: OnAutoencoderStep | None = None,
) -> SparseAutoencoder:
    """Train a sparse autoencoder on the activations of a site, on the network's device.

    The network reads `batch_size` examples at a time, and starts again after the last one. Each step trains on
    `batch_tokens` tokens, taken at random from a buffer of `buffer_tokens`. `k` is the number of active features of a
    token (topk only); with relu, `options.l1` sets the sparsity.
    """
    chunks = stream_activations(network, examples, site, batch_size=batch_size)
    first = next(chunks)
    config = AutoencoderConfig(width=first.shape[1], features=features, kind=kind, k=k, site=site)
    batches = shuffle_activations(
        chain([first], chunks),
        buffer_tokens=buffer_tokens,
        batch_tokens=batch_tokens,
        seed=0 if options is None else options.seed,
    )
    device = network.device
    return train_autoencoder((batch.to(device) for batch in batches), config, options, on_step=on_step)
