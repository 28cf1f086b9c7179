"""Mix pairs of training images: mixup (Zhang et al. 2018) and cutmix (Yun et al. 2019).

    mixup     a weighted mean of both images
    cutmix    a rectangle of patches of the other image
    both      one of the two at random

The loss is the mean of the losses of both classes, with the same weights. They depend only on the key of an image.

n images, N patches in each, F numbers of a patch
"""

import numpy as np

from qkv.images.augment import Uniform

KINDS = ("mixup", "cutmix", "both")


def mix_images(
    images: np.ndarray, others: np.ndarray, grid: tuple[int, int], kind: str, keys: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, N, F) in bytes, mixed with others, and the weights (n,) of the first ones."""
    with np.errstate(over="ignore"):
        draw = Uniform(keys)
        chance, weight, top, left = (draw().numpy().astype(np.float64) for _ in range(4))
    rows, columns = grid
    is_cut = np.full(len(images), kind == "cutmix") if kind != "both" else chance < 0.5
    side = np.sqrt(1 - weight)
    height, width = (np.rint(side * count).astype(int) for count in (rows, columns))
    first_row = (top * (rows - height + 1)).astype(int)
    first_column = (left * (columns - width + 1)).astype(int)
    row, column = np.divmod(np.arange(rows * columns), columns)
    inside = (row >= first_row[:, None]) & (row < (first_row + height)[:, None])
    inside &= (column >= first_column[:, None]) & (column < (first_column + width)[:, None])  # (n, N)
    weight = np.where(is_cut, 1 - inside.mean(1), weight)
    own = np.where(is_cut[:, None], ~inside, weight[:, None])[:, :, None]  # the weight of each patch
    mixed = np.rint(own * images + (1 - own) * others).astype(np.uint8)
    return mixed, weight.astype(np.float32)
