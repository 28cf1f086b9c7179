"""The sections of a recipe for records with images: the size of the images, and a model that suits it."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from qkv.data.records import Record
from qkv.images.files import BadImage, open_image
from qkv.tasks.starters.starter import RecipeLine, Starter

SIZES = ((48, 32, 4), (float("inf"), 64, 8))
"""The largest median of the shorter sides of images, the size that a model reads them in, and its patches."""
PATCHES = 64  # of an image, in both sizes
BATCH_IMAGES = 64
MINUTES = 10.0


def choose_image_size(records: Sequence[Record]) -> tuple[int, int]:
    """The size and the patch in pixels that suit the images of some records."""
    sides = []
    for record in records:
        value = record.fields.get("image")
        try:
            sides.append(min(open_image(value).size) if isinstance(value, bytes) else 0)
        except BadImage:
            continue
    middle = median(sides) if sides else 0
    return next((size, patch) for limit, size, patch in SIZES if middle <= limit)


def image_data_lines(starter: Starter, num_images: int) -> list[RecipeLine]:
    """The keys of [data] after the files."""
    length = num_images * PATCHES + 2
    if not starter.is_image_to_text:
        lines: list[RecipeLine] = [("max_length", length, "the patches of an image, and the class token")]
        changes = 'changes of training images: also "flip" if left and right are the same, "rand" and "erase"'
        lines.append(("augment", ["shift"], changes))
    else:
        lines = [("max_length", starter.max_length, "tokens of a text")]
        source = length + (starter.max_length if starter.reads_question else 0)
        lines.append(("max_source_length", source, "the patches of the images, and the question if there is one"))
    return [*lines, ("layout", "padded", "batches of records of equal length")]


def image_model_lines(starter: Starter, size: int, patch: int) -> list[RecipeLine]:
    """The keys of [model]."""
    image = {"size": size, "patch": patch, "stem": "conv"}
    lines: list[RecipeLine] = [
        ("width", 128, "size of the hidden states"),
        ("image", image, 'pixels of an image and of a patch; stem = "linear" is a plain Vision Transformer'),
        ("dropout", 0.1, "more if there is little data"),
    ]
    if starter.is_image_to_text:
        layers = [("encoder", {"layers": 3}, "blocks that read the image"), ("decoder", {"layers": 2}, "and the text")]
        return [lines[0], *layers, *lines[1:]]
    head = {"pool": "mean", "dense": "none", "dropout": 0.0}
    return [lines[0], ("layers", 3, "blocks"), *lines[1:], ("head", head, 'the mean of all patches, or pool = "first"')]


def image_train_lines(starter: Starter, num_images: int, minutes: float) -> list[RecipeLine]:
    """The keys of [train]."""
    length = num_images * PATCHES + 2 + (starter.max_length if starter.is_image_to_text else 0)
    budget: Any = float(minutes or MINUTES)
    return [
        ("minutes", budget, "training time (or steps = …, or epochs = …)"),
        ("batch_tokens", BATCH_IMAGES * length, f"{BATCH_IMAGES} records per step; lower it if memory runs out"),
        ("optimizer", "muon", "often needs fewer steps than adamw for a small model"),
        ("lr", 3e-3, "peak learning rate; try a third and three times as much"),
        ("final", "best", "keep the weights with the best validation result (or last)"),
    ]
