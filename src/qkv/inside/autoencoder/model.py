"""The sparse autoencoder: it writes an activation as a sum of a few directions from a large dictionary.

    relu:   f = ReLU(W_enc (x − b) + b_enc)                                   (Bricken et al. 2023)
    topk:   f = the k largest entries of ReLU(W_enc (x − b) + b_enc)          (Gao et al. 2024)
    x̂ = W_decᵀ f + b

The rows of W_dec are directions of length 1, one for each feature. Inputs are divided by a constant first, so that
their entries have a variance of 1, and reconstructions are multiplied by it.

N tokens, C model width, F features, K active features of a token
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.errors import QkvError
from qkv.files import parse_json
from qkv.inside.trace import read_weights, report_damage, save_tensors
from qkv.values import Limits, check

FORMAT = "qkv-autoencoder"


@dataclass(frozen=True, kw_only=True)
class AutoencoderConfig:
    """The sizes of a sparse autoencoder.

    >>> AutoencoderConfig(width=128, features=1024, k=16).kind
    'topk'
    """

    width: Annotated[int, Limits(1)]  # C
    features: Annotated[int, Limits(1)]  # F
    kind: Literal["topk", "relu"] = "topk"
    k: int = 32  # topk: the number of active features of a token
    site: str = ""  # the site whose activations it was trained on

    def __post_init__(self) -> None:
        check(self)
        if self.kind == "topk" and not 1 <= self.k <= self.features:
            raise ValueError(f"k = {self.k} must lie in 1 … features = {self.features}")


class SparseAutoencoder(nn.Module):
    """A dictionary of directions, and a linear encoder that finds which of them an activation contains."""

    scale: Tensor

    def __init__(self, config: AutoencoderConfig, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        directions = torch.randn(config.features, config.width, generator=torch.Generator().manual_seed(seed))
        directions = F.normalize(directions, dim=1)
        self.decoder = nn.Parameter(directions)  # (F, C)
        # With relu, half of the random features are active, and their sum is F / 2C times as long as the input.
        gain = 1.0 if config.kind == "topk" else min(1.0, 2 * config.width / config.features)
        self.encoder = nn.Parameter(gain * directions)  # (F, C)
        self.encoder_bias = nn.Parameter(torch.zeros(config.features))
        self.bias = nn.Parameter(torch.zeros(config.width))
        self.register_buffer("scale", torch.ones(()))  # the root mean square of an entry of the inputs

    def pre_activations(self, x: Tensor) -> Tensor:
        """The inputs of the ReLU for normalised activations, (N, C) → (N, F)."""
        return F.linear(x - self.bias, self.encoder, self.encoder_bias)

    def encode(self, x: Tensor) -> Tensor:
        """Activations (…, C) → features (…, F)."""
        x = x.to(self.decoder.dtype) / self.scale
        pre = self.pre_activations(x)
        if self.config.kind == "relu":
            return pre.relu()
        values, indices = pre.topk(self.config.k, dim=-1, sorted=False)
        return torch.zeros_like(pre).scatter(-1, indices, values.relu())

    def decode(self, features: Tensor) -> Tensor:
        """Features (…, F) → activations (…, C)."""
        return (features @ self.decoder + self.bias) * self.scale

    def forward(self, x: Tensor) -> Tensor:
        """Reconstruct activations (…, C), in their dtype."""
        return self.decode(self.encode(x)).to(x.dtype)

    @torch.no_grad()
    def normalise_directions(self) -> None:
        """Scale each direction to length 1."""
        self.decoder.copy_(F.normalize(self.decoder, dim=1))

    def save(self, path: str | Path) -> None:
        """Write one safetensors file, atomically."""
        save_tensors(Path(path), self.state_dict(), {"format": FORMAT, "config": json.dumps(asdict(self.config))})

    @classmethod
    def load(cls, path: str | Path) -> "SparseAutoencoder":
        """Read a file that `save` has written."""
        with report_damage(Path(path)):
            file: Any = safe_open(path, framework="pt")
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise QkvError(f"{path}: not a sparse autoencoder; give a file that SparseAutoencoder.save has written")
            config, tensors = AutoencoderConfig(**parse_json(metadata["config"])), read_weights(file)
            if tuple(tensors["decoder"].shape) != (config.features, config.width):
                raise ValueError(f"the decoder has shape {tuple(tensors['decoder'].shape)}")
            autoencoder = cls(config)
            autoencoder.load_state_dict(tensors)
            return autoencoder
