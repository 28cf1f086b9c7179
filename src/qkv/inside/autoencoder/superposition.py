"""A toy model of superposition (Elhage et al. 2022): more features than dimensions, in a model so small that all of its
features are known.

    x̂ = ReLU(WᵀWx + b)          x: P sparse features, W: (C, P) with C < P

The model learns to store the features as directions of a space with fewer dimensions, the columns of W. A sparse
autoencoder that is trained on h = Wx should find these directions again. Without the ReLU, the model is linear and
stores only the C most important features.

N samples, P true features, C dimensions
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ToyModel(nn.Module):
    """Stores P sparse features in C dimensions."""

    def __init__(self, num_features: int, width: int, *, has_relu: bool = True, seed: int = 0) -> None:
        super().__init__()
        self.has_relu = has_relu
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(width, num_features, generator=generator) / width**0.5)
        self.bias = nn.Parameter(torch.zeros(num_features))

    def hidden(self, x: Tensor) -> Tensor:
        """Features (N, P) → their superposition (N, C)."""
        return x @ self.weight.T

    def forward(self, x: Tensor) -> Tensor:
        """Reconstruct features (N, P)."""
        out = self.hidden(x) @ self.weight + self.bias
        return out.relu() if self.has_relu else out

    @property
    def directions(self) -> Tensor:
        """The direction of each feature that the model stores, (stored features, C), scaled to length 1.

        The model may leave features out; their columns are short.
        """
        columns = self.weight.detach().T
        return F.normalize(columns[columns.norm(dim=1) > 0.5], dim=1)


def sample_features(num_samples: int, num_features: int, probability: float, generator: torch.Generator) -> Tensor:
    """Sparse features: each is 0, or, with the given probability, uniform in 0 … 1. (N, P)."""
    values = torch.rand(num_samples, num_features, generator=generator)
    return values * (torch.rand(num_samples, num_features, generator=generator) < probability)


def train_toy_model(
    num_features: int,
    width: int,
    *,
    probability: float = 0.02,
    importance: Tensor | float = 1.0,
    has_relu: bool = True,
    steps: int = 1500,
    batch_size: int = 512,
    seed: int = 0,
) -> ToyModel:
    """Train a toy model to reconstruct its features. `importance` (P,) weights their squared errors."""
    model = ToyModel(num_features, width, has_relu=has_relu, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        x = sample_features(batch_size, num_features, probability, generator)
        loss = (importance * (model(x) - x).square()).sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def mean_max_cosine(true_directions: Tensor, found_directions: Tensor) -> float:
    """For each true direction the cosine with the most similar direction that was found; the mean of these."""
    cosines = F.normalize(true_directions, dim=1) @ F.normalize(found_directions, dim=1).T
    return float(cosines.max(1).values.mean())
