"""The tuned lens: a logit lens with a trained affine map for each layer (Belrose et al. 2023).

    lens = train_tuned_lens(network, examples)
    logit_lens(network, trace, translate=lens)

The logit lens reads an early layer with the head of the last one, but layers may represent the same thing differently.
The tuned lens first translates a layer's residual stream to the last layer's: x + Ax + b. A and b start at zero, where
the tuned lens is the logit lens, and are trained to minimise KL(model's prediction ‖ lens's prediction). The network
itself is not changed.

N tokens, C model width, V vocabulary
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.blocks import Tap
from qkv.errors import UsageError
from qkv.inside.forward import Example, batched, make_inputs
from qkv.inside.lens import check_vocabulary_head, lens_logits
from qkv.inside.sites import require_blocks
from qkv.inside.trace import open_tensors, read_weights, report_damage, write_tensors
from qkv.models import Network
from qkv.models.runtime import eval_mode


class TunedLens(nn.Module):
    """An affine map for each site. It is a `translate` argument of `logit_lens`; other sites are not translated."""

    def __init__(self, sites: Sequence[str], width: int) -> None:
        super().__init__()
        self.sites = tuple(sites)
        self.weights = nn.ParameterList(nn.Parameter(torch.zeros(width, width)) for _ in self.sites)
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(width)) for _ in self.sites)

    def forward(self, site: str, x: Tensor) -> Tensor:
        """Translate the residual stream x (…, C) of a site: x + Ax + b."""
        if site not in self.sites:
            return x
        number = self.sites.index(site)
        weight, bias = self.weights[number].to(x.device), self.biases[number].to(x.device)
        return (x + F.linear(x.to(weight.dtype), weight, bias)).to(x.dtype)

    def save(self, path: str | Path) -> None:
        """Write the lens as one safetensors file, atomically."""
        write_tensors(Path(path), {**self.state_dict()}, {"tuned_lens_sites": self.sites})

    @staticmethod
    def load(path: str | Path) -> "TunedLens":
        """Read a lens that `save` wrote."""
        file, description = open_tensors(Path(path))
        if "tuned_lens_sites" not in description:
            raise UsageError(f"{path}: not a tuned lens; give a file that TunedLens.save wrote")
        with report_damage(Path(path)):
            tensors = read_weights(file)
            with torch.device("meta"):  # the file's tensors take the place of these
                lens = TunedLens(description["tuned_lens_sites"], tensors["biases.0"].shape[0])
            lens.load_state_dict(tensors, assign=True)
            return lens


@dataclass(frozen=True)
class LensComparison:
    """The mean KL divergence, in nats, of each site's prediction from the model's own prediction."""

    sites: tuple[str, ...]
    logit_lens: tuple[float, ...]
    tuned_lens: tuple[float, ...]


def train_tuned_lens(
    network: Network,
    examples: Iterable[Example],
    *,
    steps: int = 300,
    max_seconds: float = 60.0,
    batch_size: int = 8,
    max_tokens: int = 512,
    lr: float = 1e-3,
    seed: int = 0,
) -> TunedLens:
    """Train a tuned lens on examples, which are repeated as often as needed.

    Training ends after `steps`, or after `max_seconds`. A step uses at most `max_tokens` random tokens of a batch, to
    bound the memory of the logits.
    """
    check_vocabulary_head(network)
    listed = list(examples)
    if not listed:
        raise UsageError("examples: there are none; give at least one text as token ids")
    device, config = network.device, network.config.stack
    lens = TunedLens(lens_sites(network), config.width).to(device)
    optimizer = torch.optim.Adam(lens.parameters(), lr=lr)
    generator = torch.Generator().manual_seed(seed)
    order = cycle(listed[i] for i in torch.randperm(len(listed), generator=generator).tolist())
    started = time.monotonic()
    with eval_mode(network):
        for step, batch in enumerate(islice(batched(order, batch_size), steps)):
            if time.monotonic() - started >= max_seconds:
                break
            for group in optimizer.param_groups:
                group["lr"] = lr * (1 - step / steps)
            values, final = _record(network, batch, lens.sites, max_tokens, generator)
            with torch.enable_grad():
                loss = torch.stack([_divergence(network, lens, site, values[site], final) for site in lens.sites]).sum()
                gradients = torch.autograd.grad(loss, list(lens.parameters()))
            for parameter, gradient in zip(lens.parameters(), gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()
    return lens.requires_grad_(False).eval()


def measure_lens(
    network: Network, lens: TunedLens, examples: Iterable[Example], *, batch_size: int = 8, max_tokens: int = 4096
) -> LensComparison:
    """Compare the logit lens and the tuned lens on examples that the lens was not trained on."""
    plain, sums, count = TunedLens((), 1), torch.zeros(2, len(lens.sites), dtype=torch.float64), 0
    generator = torch.Generator().manual_seed(0)
    with eval_mode(network):
        for batch in batched(examples, batch_size):
            values, final = _record(network, batch, lens.sites, max_tokens, generator)
            for row, tried in enumerate((plain, lens)):
                for column, site in enumerate(lens.sites):
                    sums[row, column] += len(final) * float(_divergence(network, tried, site, values[site], final))
            count += len(final)
    logit, tuned = (sums / max(count, 1)).tolist()
    return LensComparison(lens.sites, tuple(logit), tuple(tuned))


def lens_sites(network: Network) -> list[str]:
    """Return the sites that a tuned lens translates: the residual stream before the first and between the layers."""
    require_blocks(network.config, "a tuned lens")
    stack = network.output_stack
    after = [f"{stack.name}.{layer}.resid_post" for layer in range(stack.config.layers - 1)]
    return [f"{stack.name}.0.resid_pre", *after]


def _record(
    network: Network, batch: list[Example], sites: Sequence[str], max_tokens: int, generator: torch.Generator
) -> tuple[dict[str, Tensor], Tensor]:
    """Return the residual stream (N, C) of each site, and the model's log-probabilities (N, V), at some tokens."""
    tap, inputs = Tap(record=sites), make_inputs(network, batch)
    hidden, _ = network.hidden(inputs, tap=tap)
    is_token = inputs.is_token
    chosen = is_token.flatten().nonzero()[:, 0].cpu()
    if len(chosen) > max_tokens:
        chosen = chosen[torch.randperm(len(chosen), generator=generator)[:max_tokens]]
    chosen = chosen.to(hidden.device)
    values = {site: tap[site].flatten(0, 1)[chosen] for site in sites}
    return values, network.head.project(hidden.flatten(0, 1)[chosen]).float().log_softmax(-1)


def _divergence(network: Network, lens: TunedLens, site: str, x: Tensor, final: Tensor) -> Tensor:
    """Return the mean KL(model ‖ lens) over tokens."""
    logprobs = lens_logits(network, lens(site, x)).float().log_softmax(-1)
    return F.kl_div(logprobs, final, reduction="batchmean", log_target=True)
