"""A toy front end: an image is a grid of coloured squares, and each payload vector is the colour of one square."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from qkv.blocks import HeadConfig, Inputs, Payload, StackConfig
from qkv.blocks.front_ends import FRONT_ENDS, FrontEndConfig, register_front_end
from qkv.blocks.inputs import PayloadItem
from qkv.blocks.position import grid_positions, grid_sinusoids
from qkv.models import Config, Network, build

VOCAB = 30
PLACEHOLDER = 1


@dataclass(frozen=True, kw_only=True)
class SquaresConfig(FrontEndConfig):
    """`merge` neighbours of a row become one vector."""

    kind: ClassVar[str] = "squares"
    features: int = 3
    merge: int = 1

    def length(self, size: tuple[int, int]) -> int:
        return size[0] * (size[1] // self.merge)


class Squares(nn.Module):
    def __init__(self, config: SquaresConfig, width: int) -> None:
        super().__init__()
        self.config, self.width = config, width
        self.project = nn.Linear(config.features, width)

    def forward(self, payload: Payload) -> Tensor:
        values = payload.values.to(self.project.weight.dtype)
        vectors, first = [], 0
        for height, width in payload.sizes.tolist():
            image = values[first : first + height * width].view(height, -1, self.config.merge, values.shape[1])
            places = grid_sinusoids(grid_positions(*image.shape[:2], device=values.device), self.width)
            vectors.append(self.project(image.mean(2)).flatten(0, 1) + places.to(values.dtype))
            first += height * width
        return torch.cat(vectors)


if "squares" not in FRONT_ENDS:
    register_front_end(SquaresConfig, Squares)


def image(height: int = 2, width: int = 2, seed: int = 0, merge: int = 1) -> PayloadItem:
    values = torch.rand(height * width, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return PayloadItem("squares", values, (height, width), SquaresConfig(merge=merge).length((height, width)))


def row(*parts: Any) -> Inputs:
    """One sequence of ids and images; all squares of an image share a position."""
    return Inputs.from_parts([[part] if isinstance(part, int) else part for part in parts], placeholder_id=PLACEHOLDER)


def make_config(family: str, *, merge: int = 1, head: HeadConfig | None = None, **choices: Any) -> Config:
    values = {"vocab_size": VOCAB, "width": 16, "layers": 2, "heads": 4, "ffn_width": 24, "init_std": 0.8}
    stack = StackConfig(**{**values, "position": "rotary", "max_positions": 64, **choices})
    kind = "mlm" if family == "encoder" else "lm"
    return Config(
        encoder=None if family == "decoder" else stack,
        decoder=None if family == "encoder" else stack,
        head=head or HeadConfig(kind=kind, outputs=VOCAB),
        front_ends=(SquaresConfig(merge=merge),),
        decoder_start_token_id=0 if family == "seq2seq" else None,
    )


def make_network(family: str, *, seed: int = 0, **choices: Any) -> Network:
    torch.manual_seed(seed)
    return build(make_config(family, **choices), dtype=torch.float64).eval().requires_grad_(False)
