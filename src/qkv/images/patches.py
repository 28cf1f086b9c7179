"""The front end for images: patches of pixels → vectors, by a linear map or by convolutions, plus positions.

k images, N patches in each, F numbers of a patch, P pixels of its side, S pixels of the image's side, C model width
"""

import torch
from torch import Tensor, nn

from qkv.blocks.inputs import Payload
from qkv.blocks.position import grid_positions, grid_sinusoids
from qkv.images.config import PatchesConfig, conv_channels


class Patches(nn.Module):
    """(pixels − mean) / std → linear map or convolutions → (class token before them) → + positions → (norm)."""

    def __init__(self, config: PatchesConfig, width: int) -> None:
        super().__init__()
        self.config, self.width = config, width
        self.project: nn.Module
        if config.stem == "linear":
            self.project = nn.Linear(config.features, width, bias=config.bias)
        else:
            self.project = nn.Sequential(*conv_layers(config.patch, width, config.bias))
        rows, columns = config.grid
        self.class_token = nn.Embedding(1, width) if config.class_token else None
        length = config.length((rows, columns))
        self.position = nn.Embedding(length, width) if config.positions == "learned" else None
        self.norm = nn.LayerNorm(width) if config.norm else None

    def forward(self, payload: Payload) -> Tensor:
        """Payload values (k · N, F) → vectors (k · N, C), or (k · (N + 1), C) with a class token."""
        rows, columns = self.config.grid
        pixels = self.normalize(payload.values).view(-1, rows * columns, self.config.features)  # (k, N, F)
        if self.config.stem == "conv":
            pixels = join_patches(pixels, rows, self.config.patch)  # (k, 3, S, S)
        x: Tensor = self.project(pixels)
        if self.config.stem == "conv":
            x = x.flatten(2).transpose(1, 2)  # (k, N, C)
        if self.class_token is not None:
            x = torch.cat([self.class_token.weight.to(x.dtype).expand(len(x), 1, -1), x], 1)
        if self.position is not None:
            x = x + self.position.weight
        elif self.config.positions == "sinusoidal":
            cells = grid_positions(rows, columns, device=x.device)
            x = x + grid_sinusoids(cells, self.width).to(x.dtype)
        return (x if self.norm is None else self.norm(x)).flatten(0, 1)

    def normalize(self, values: Tensor) -> Tensor:
        """Bytes of patches (…, F), with red, green and blue of each pixel in the last dimension → numbers around 0."""
        dtype = next(self.parameters()).dtype
        mean, std = (
            torch.tensor(one, dtype=dtype, device=values.device).repeat(self.config.patch**2)
            for one in (self.config.mean, self.config.std)
        )
        return (values.to(dtype) / 255 - mean) / std


def conv_layers(patch: int, width: int, bias: bool) -> list[nn.Module]:
    """Convolutions, each of which halves the size of the image. All except the last have half of the channels, at least
    64.
    """
    layers: list[nn.Module] = []
    for channels, out in conv_channels(patch, width):
        layers += [nn.Conv2d(channels, out, 3, padding=1, bias=bias), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
    return layers


def join_patches(patches: Tensor, rows: int, patch: int) -> Tensor:
    """Patches (k, N, P · P · 3) → images (k, 3, S, S)."""
    grid = patches.unflatten(2, (patch, patch, 3)).unflatten(1, (rows, -1))  # (k, rows, columns, P, P, 3)
    images: Tensor = grid.permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)
    return images
