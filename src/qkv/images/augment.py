"""Random changes of a batch of images. The changes of an image depend only on its key, not on the rest of the batch.

    flip     mirrored from left to right, with probability 1/2
    shift    moved by up to an eighth of its side
    rand     two random changes of shape or colour, as in RandAugment
    erase    a random rectangle becomes grey, with probability 1/4

B images, S pixels of a side, n random numbers of an image
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from qkv.errors import UsageError, suggest_name

GREY = 0.5
MAX_SHIFT = 1 / 8  # as a fraction of the side of an image
NUM_CHANGES = 2  # of `rand`
GOLDEN_GAMMA, UINT64_MAX = 0x9E3779B97F4A7C15, 2**64 - 1


class Uniform:
    """Independent random numbers between 0 and 1 for each image of a batch, from the keys of the images."""

    def __init__(self, keys: np.ndarray) -> None:
        self.keys, self.count = keys.astype(np.uint64), 0

    def __call__(self) -> Tensor:
        """The next number of each image, (B,)."""
        self.count += 1
        x = self.keys + np.uint64(self.count * GOLDEN_GAMMA & UINT64_MAX)  # SplitMix64
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
        return torch.from_numpy((x >> np.uint64(11)) * 2.0**-53).float()

    def signed(self) -> Tensor:
        """The next number of each image, between −1 and 1."""
        return 2 * self() - 1


def augment(pixels: np.ndarray, names: Sequence[str], keys: np.ndarray) -> np.ndarray:
    """Images (B, S, S, 3) in bytes → changed images. `keys` (B,) are random 64-bit numbers."""
    check_names(names)
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255  # (B, 3, S, S)
    with np.errstate(over="ignore"):
        draw = Uniform(keys)
        for name in names:
            images = AUGMENTATIONS[name](images, draw)
    return (images.clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).contiguous().numpy()


def check_names(names: Sequence[str]) -> None:
    """Raise an error for an unknown name."""
    for name in names:
        if name not in AUGMENTATIONS:
            raise UsageError(f"data.augment: {name!r} is unknown; {suggest_name(name, AUGMENTATIONS)}")


def flip(images: Tensor, draw: Uniform) -> Tensor:
    """Mirror half of the images."""
    return torch.where(per_image(draw() < 0.5), images.flip(3), images)


def shift(images: Tensor, draw: Uniform) -> Tensor:
    """Move images by whole pixels. The edges are repeated."""
    size = images.shape[3]
    reach = max(1, int(MAX_SHIFT * size))
    rows, columns = ((draw() * (2 * reach + 1)).floor().long() - reach for _ in range(2))
    place = torch.arange(size)
    y = (place + rows[:, None]).clamp(0, size - 1)  # (B, S)
    x = (place + columns[:, None]).clamp(0, size - 1)
    numbers = torch.arange(len(images))[:, None, None]
    return images.permute(0, 2, 3, 1)[numbers, y[:, :, None], x[:, None, :]].permute(0, 3, 1, 2)


def erase(images: Tensor, draw: Uniform) -> Tensor:
    """In a quarter of the images, make a random rectangle grey. Its sides are a fifth to a half of the image's side."""
    size = images.shape[3]
    chosen = draw() < 0.25
    inside = []
    for _ in range(2):
        length = (0.2 + 0.3 * draw()) * size
        start = draw() * (size - length)
        place = torch.arange(size)
        inside.append((place >= start[:, None]) & (place < (start + length)[:, None]))  # (B, S)
    mask = inside[0][:, None, :, None] & inside[1][:, None, None, :] & per_image(chosen)
    return images.masked_fill(mask, GREY)


def rand(images: Tensor, draw: Uniform) -> Tensor:
    """Two random changes for each image, of the shape (rotate, shear, move) or of the colours."""
    names = (*SHAPES, *COLOURS)
    strengths = {name: torch.zeros(len(images)) for name in names}
    for _ in range(NUM_CHANGES):
        chosen, strength = (draw() * len(names)).floor().long(), draw.signed()
        for number, name in enumerate(names):
            strengths[name] = torch.where(chosen == number, strength, strengths[name])
    images = change_shape(images, strengths)
    for name, change in COLOURS.items():
        is_changed = per_image(strengths[name] != 0)
        images = torch.where(is_changed, change(images, per_image(strengths[name])).clamp(0, 1), images)
    return images


SHAPES = ("rotate", "shear_x", "shear_y", "move_x", "move_y")


def change_shape(images: Tensor, strengths: dict[str, Tensor]) -> Tensor:
    """Rotate by up to 30°, shear by up to 0.3, and move by up to a quarter of the side; new pixels are grey."""
    angle = strengths["rotate"] * torch.pi / 6
    cos, sin = angle.cos(), angle.sin()
    rotation = torch.stack([cos, -sin, sin, cos], 1).view(-1, 2, 2)
    ones = torch.ones_like(angle)
    shear = torch.stack([ones, 0.3 * strengths["shear_x"], 0.3 * strengths["shear_y"], ones], 1).view(-1, 2, 2)
    moved = 0.5 * torch.stack([strengths["move_x"], strengths["move_y"]], 1)[:, :, None]  # a side is 2 long
    grid = affine_grid(torch.cat([rotation @ shear, moved], 2), list(images.shape), align_corners=False)
    changed = grid_sample(images - GREY, grid, align_corners=False) + GREY
    is_changed = torch.stack([strengths[name] for name in SHAPES]).ne(0).any(0)
    return torch.where(per_image(is_changed), changed, images)


def per_image(values: Tensor) -> Tensor:
    """(B,) → (B, 1, 1, 1)."""
    return values[:, None, None, None]


def blend(other: Tensor, images: Tensor, strength: Tensor) -> Tensor:
    """Scale the difference of images from other images by a factor between 0.1 and 1.9."""
    return other + (1 + 0.9 * strength) * (images - other)


def contrast(images: Tensor, strength: Tensor) -> Tensor:
    """More or less contrast."""
    return blend(images.mean((1, 2, 3), keepdim=True), images, strength)


def saturation(images: Tensor, strength: Tensor) -> Tensor:
    """More or less colour."""
    return blend(images.mean(1, keepdim=True), images, strength)


def sharpness(images: Tensor, strength: Tensor) -> Tensor:
    """Sharper or blurred."""
    return blend(torch.nn.functional.avg_pool2d(images, 3, 1, 1, count_include_pad=False), images, strength)


def posterize(images: Tensor, strength: Tensor) -> Tensor:
    """Fewer levels of each colour: down to 16."""
    step = 2 ** (4 * strength.abs()) / 255
    return (images / step).floor() * step


COLOURS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "brightness": lambda images, strength: images * (1 + 0.9 * strength),
    "contrast": contrast,
    "saturation": saturation,
    "sharpness": sharpness,
    "posterize": posterize,
    "solarize": lambda images, strength: torch.where(images > 1 - strength.abs(), 1 - images, images),
    "invert": lambda images, strength: 1 - images,
}
AUGMENTATIONS: dict[str, Callable[[Tensor, Uniform], Tensor]] = {
    "flip": flip,
    "shift": shift,
    "rand": rand,
    "erase": erase,
}
