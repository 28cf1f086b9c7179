"""Measure a sparse autoencoder on texts: how well it reconstructs, how sparse it is, and what the model loses with it.

The fraction of the loss that is recovered compares three runs of the model: as it is, with the activations at the site
replaced by their reconstruction (spliced in), and with them set to 0:

    recovered = (loss_zero − loss_spliced) / (loss_zero − loss)

The loss is the cross-entropy of the next token. For a model that does not predict the next token (an encoder), it is
the KL divergence from the outputs of the model as it is, so that `loss` is 0.

B batch, T tokens, C model width, F features, V vocabulary
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.blocks import Inputs, Tap
from qkv.blocks.head import POOLED_KINDS
from qkv.errors import UsageError
from qkv.inside.autoencoder.model import SparseAutoencoder
from qkv.inside.forward import Example, batched, inputs_at, make_inputs
from qkv.inside.neurons import check_per_token_site
from qkv.models import Network
from qkv.models.runtime import eval_mode


@dataclass(frozen=True)
class AutoencoderReport:
    """The quality of a sparse autoencoder."""

    explained_variance: float  # 1 − the squared error / the variance of the activations
    l0: float  # the mean number of active features of a token
    dead_fraction: float  # the fraction of the features that are never active on these texts
    loss: float
    loss_spliced: float
    loss_zero: float
    loss_recovered: float
    num_tokens: int


def evaluate_autoencoder(
    network: Network,
    autoencoder: SparseAutoencoder,
    examples: Iterable[Example],
    *,
    site: str = "",
    batch_size: int = 16,
) -> AutoencoderReport:
    """Measure a sparse autoencoder on examples. By default, the site is the site that it was trained on."""
    site = site or autoencoder.config.site
    check_per_token_site(network, site)
    if network.head.config.kind in POOLED_KINDS or network.head.out is None:
        raise UsageError(f"this model has a {network.head.config.kind} head; the loss needs an output for each token")
    moments = Moments(autoencoder.config.width)
    active = torch.zeros(autoencoder.config.features)
    losses, num_labels = torch.zeros(3, dtype=torch.float64), 0
    with eval_mode(network), torch.no_grad():
        for batch in batched(examples, batch_size):
            inputs, tap = make_inputs(network, batch), Tap(record=[site])
            logits = network(inputs, tap=tap)
            x = tap[site][inputs_at(inputs, site).is_token].float()  # (N, C)
            features = autoencoder.encode(x)
            active += (features > 0).sum(0).cpu()
            moments.add(x, autoencoder.decode(features))
            spliced = network(inputs, tap=Tap(change={site: autoencoder}))
            zero = network(inputs, tap=Tap(change={site: torch.zeros_like}))
            for number, changed in enumerate((logits, spliced, zero)):
                total, count = token_loss(network, inputs, logits, changed)
                losses[number] += total
            num_labels += count
    if not moments.num_tokens or not num_labels:
        raise UsageError("there are no tokens to measure; give at least one text of two tokens")
    loss, loss_spliced, loss_zero = (losses / num_labels).tolist()
    return AutoencoderReport(
        explained_variance=moments.explained_variance(),
        l0=float(active.sum()) / moments.num_tokens,
        dead_fraction=float((active == 0).float().mean()),
        loss=loss,
        loss_spliced=loss_spliced,
        loss_zero=loss_zero,
        loss_recovered=(loss_zero - loss_spliced) / (loss_zero - loss) if loss_zero != loss else float("nan"),
        num_tokens=moments.num_tokens,
    )


class Moments:
    """Sums over a stream of activations, for the explained variance."""

    def __init__(self, width: int) -> None:
        self.num_tokens = 0
        self.sum = torch.zeros(width, dtype=torch.float64)
        self.squares = self.errors = 0.0

    def add(self, x: Tensor, reconstructed: Tensor) -> None:
        """Add activations (N, C) and their reconstructions."""
        x, reconstructed = x.double().cpu(), reconstructed.double().cpu()
        self.num_tokens += len(x)
        self.sum += x.sum(0)
        self.squares += float(x.square().sum())
        self.errors += float((x - reconstructed).square().sum())

    def explained_variance(self) -> float:
        """1 − the squared error / the variance."""
        variance = self.squares - float(self.sum.square().sum()) / self.num_tokens
        return 1 - self.errors / variance


def token_loss(network: Network, inputs: Inputs, original: Tensor, changed: Tensor) -> tuple[float, int]:
    """The summed loss of outputs (B, T, V), and the number of tokens that it is the sum of."""
    if not network.generates:
        is_token = inputs.is_token
        original, changed = original[is_token].double(), changed[is_token].double()
        divergence = F.kl_div(changed.log_softmax(-1), original.log_softmax(-1), log_target=True, reduction="sum")
        return float(divergence), int(is_token.sum())
    is_label = inputs.is_token[:, 1:]
    loss = F.cross_entropy(changed[:, :-1][is_label].double(), inputs.ids[:, 1:][is_label], reduction="sum")
    return float(loss), int(is_label.sum())
