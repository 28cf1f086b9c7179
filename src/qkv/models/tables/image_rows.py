"""Rows that ViT and CLIP share: the front end of patches, and the settings of their image processors.

The sizes of patches are in config.json; how an image becomes pixels of this size is in `preprocessor_config.json`. The
values of that file are in their config under `PROCESSOR_KEY` while a folder is read or written.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qkv.blocks import StackConfig
from qkv.images.config import PatchesConfig
from qkv.models.tables.architecture import PROCESSOR_KEY, ComputedField, Json

if TYPE_CHECKING:
    from torch import Tensor

RESAMPLES = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}  # the numbers of Pillow


@dataclass(frozen=True)
class ConvKernel:
    """A row for our linear map of patches (C, P · P · 3), which they have as a convolution (C, 3, P, P)."""

    module: str

    @property
    def modules(self) -> tuple[str, ...]:
        """Their module."""
        return (self.module,)

    def read(self, parts: "list[Tensor]", suffix: str, stack: StackConfig) -> "Tensor":
        """Their kernel as our matrix; a bias is the same."""
        return parts[0] if suffix == "bias" else parts[0].permute(0, 2, 3, 1).flatten(1)

    def write(self, ours: "Tensor", suffix: str, stack: StackConfig) -> "list[Tensor]":
        """Our matrix as their kernel."""
        if suffix == "bias":
            return [ours]
        side = round((ours.shape[1] / 3) ** 0.5)
        return [ours.unflatten(1, (side, side, 3)).permute(0, 3, 1, 2).contiguous()]


@dataclass(frozen=True)
class ReshapedTable:
    """A row for a table of ours, (n, C), which they have as (1, n, C), (1, 1, C) or, if `is_vector`, (C,)."""

    module: str
    is_vector: bool = False

    @property
    def modules(self) -> tuple[str, ...]:
        """Their parameter."""
        return (self.module,)

    def read(self, parts: "list[Tensor]", suffix: str, stack: StackConfig) -> "Tensor":
        """Their tensor as our table."""
        return parts[0].reshape(-1, parts[0].shape[-1])

    def write(self, ours: "Tensor", suffix: str, stack: StackConfig) -> "list[Tensor]":
        """Our table in their shape."""
        return [ours[0] if self.is_vector else ours[None]]


def patches_row(defaults: Mapping[str, Any], *, patch_size: int, bias: bool, norm: bool) -> ComputedField:
    """The row for `front_ends`. `defaults` are the settings of their image processor if its file is missing."""

    def read(theirs: Json) -> tuple[PatchesConfig, ...]:
        size, patch = (
            read_square(theirs, name, default) for name, default in (("image_size", 224), ("patch_size", patch_size))
        )
        settings = read_processor({**defaults, **(theirs.get(PROCESSOR_KEY) or {})}, size)
        return (PatchesConfig(size=size, patch=patch, bias=bias, norm=norm, class_token=True, **settings),)

    def write(value: tuple[Any, ...], config: Any) -> Json:
        patches = next((one for one in value if isinstance(one, PatchesConfig)), None)
        if patches is None:
            return {}
        sizes = {"image_size": patches.size, "patch_size": patches.patch, "num_channels": 3}
        return {
            **sizes,
            PROCESSOR_KEY: {**write_processor(patches), "image_processor_type": defaults["image_processor_type"]},
        }

    return ComputedField(read, write)


def read_square(theirs: Json, name: str, default: int) -> int:
    """The side of a square from a number, or from two equal numbers."""
    value = theirs.get(name, default)
    sides = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else [value]
    if not sides or any(side != sides[0] for side in sides) or type(sides[0]) is not int or sides[0] < 1:
        raise ValueError(f"{name} = {value!r} is not supported; only squares are")
    return sides[0]


def read_processor(processor: Json, size: int) -> Json:
    """Our settings of images of `size` pixels, from the values of `preprocessor_config.json`."""
    scale = processor.get("rescale_factor", 1 / 255)
    if not processor.get("do_resize", True) or not processor.get("do_rescale", True) or abs(scale * 255 - 1) > 1e-6:
        raise ValueError("the image processor must resize images and divide pixels by 255 (do_resize, rescale_factor)")
    given = processor.get("size", size)
    fit = "stretch"
    if isinstance(given, dict) and "shortest_edge" in given:
        given, fit = given["shortest_edge"], "crop"
    elif isinstance(given, int) and processor.get("do_center_crop"):
        fit = "crop"  # the default of CLIP, and an old form of its file: the size of the shorter side
    sides = [read_square({"size": given}, "size", size)]
    if processor.get("do_center_crop"):
        sides.append(read_square(processor, "crop_size", size))
    elif fit == "crop":
        raise ValueError("an image processor with size.shortest_edge must also crop (do_center_crop)")
    if any(side != size for side in sides):
        raise ValueError(f"the image processor makes images of {sides} pixels, but the model reads {size}")
    if processor.get("resample", 2) not in RESAMPLES:
        raise ValueError(f"resample = {processor['resample']!r} is not supported; known: {RESAMPLES}")
    normalizes = processor.get("do_normalize", True)
    mean, std = ((processor.get(name) if normalizes else None) for name in ("image_mean", "image_std"))
    return {
        "fit": fit,
        "resample": RESAMPLES[processor.get("resample", 2)],
        "mean": tuple(map(float, mean or (0.0, 0.0, 0.0))),
        "std": tuple(map(float, std or (1.0, 1.0, 1.0))),
    }


def write_processor(patches: PatchesConfig) -> Json:
    """The values of `preprocessor_config.json` of our settings."""
    if patches.fit == "pad":
        raise ValueError('fit = "pad" has no image processor; train with fit = "stretch" or "crop"')
    square = {"height": patches.size, "width": patches.size}
    is_cropped = patches.fit == "crop"
    return {
        "do_resize": True,
        "size": {"shortest_edge": patches.size} if is_cropped else square,
        "resample": next(number for number, name in RESAMPLES.items() if name == patches.resample),
        "do_center_crop": is_cropped,
        **({"crop_size": square} if is_cropped else {}),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(patches.mean),
        "image_std": list(patches.std),
        "do_convert_rgb": True,
    }
