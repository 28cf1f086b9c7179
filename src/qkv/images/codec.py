"""Pictures as codes: each patch of pixels is replaced by the nearest of a codebook's patches, found by k-means.

N patches, K codes, F numbers of a patch, S pixels of a picture's side
"""

import numpy as np
import torch
from torch import Tensor, nn

from qkv.images.config import ImageCodesConfig

ITERATIONS = 12
CHUNK = 2**14  # patches whose distances to all codes are in memory


class ImageCodes(nn.Module):
    """The back end for pictures: codes → pixels; and for training, pixels → codes."""

    def __init__(self, config: ImageCodesConfig) -> None:
        super().__init__()
        self.config = config
        self.codebook = nn.Embedding(config.num_codes, 3 * config.patch**2)  # between 0 and 1

    def forward(self, codes: Tensor) -> Tensor:
        """Codes (n,) of a picture → pixels (S, S, 3) between 0 and 1; missing codes are grey."""
        config, count = self.config, self.config.num_patches
        patches = torch.full((count, 3 * config.patch**2), 0.5, device=codes.device)
        patches[: len(codes)] = self.codebook(codes[:count]).float()
        rows = config.size // config.patch
        grid = patches.view(rows, rows, config.patch, config.patch, 3).permute(0, 2, 1, 3, 4)
        return grid.reshape(config.size, config.size, 3).clamp(0, 1)

    def encode(self, patches: Tensor) -> Tensor:
        """Patches (N, F) in bytes → their codes (N,)."""
        return nearest(patches.to(self.codebook.weight.device).float() / 255, self.codebook.weight.float())


def nearest(patches: Tensor, codebook: Tensor) -> Tensor:
    """The index of the nearest row of the codebook for each patch: (N, F), (K, F) → (N,)."""
    norms = codebook.square().sum(1)
    found = [(norms - 2 * part @ codebook.T).argmin(1) for part in patches.split(CHUNK)]
    return torch.cat(found) if found else torch.zeros(0, dtype=torch.long)


def fit_codebook(patches: np.ndarray, num_codes: int, seed: int = 0) -> Tensor:
    """The codebook (K, F) of patches (N, F) in bytes: k-means over the different patches, weighted by their number.

    The most frequent patches are codes from the start. A code that no patch uses moves to the patch that is drawn
    worst, so every code is used if there are that many different patches.
    """
    different, counts = np.unique(patches, axis=0, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    points = torch.from_numpy(different[order]).float() / 255  # (U, F)
    weights = torch.from_numpy(counts[order]).float().sqrt()  # rare patches matter, too
    if len(points) <= num_codes:
        return torch.cat([points, torch.full((num_codes - len(points), points.shape[1]), 0.5)])
    generator = torch.Generator().manual_seed(seed)
    first = torch.arange(num_codes // 2)
    others = num_codes // 2 + torch.randperm(len(points) - len(first), generator=generator)[: num_codes - len(first)]
    codebook = points[torch.cat([first, others])]
    for _ in range(ITERATIONS):
        codes = nearest(points, codebook)
        sums = torch.zeros_like(codebook).index_add_(0, codes, points * weights[:, None])
        totals = torch.zeros(num_codes).index_add_(0, codes, weights)
        codebook = torch.where(totals[:, None] > 0, sums / totals.clamp(min=1e-9)[:, None], codebook)
        unused = (totals == 0).nonzero()[:, 0]
        if len(unused):
            errors = (points - codebook[codes]).square().sum(1) * weights
            codebook[unused] = points[errors.topk(len(unused)).indices]
    return codebook


def used_fraction(codes: Tensor, num_codes: int) -> float:
    """The fraction of the codes that occur.

    >>> used_fraction(torch.tensor([0, 2, 2]), 4)
    0.5
    """
    return float((torch.bincount(codes.flatten(), minlength=num_codes) > 0).float().mean())
