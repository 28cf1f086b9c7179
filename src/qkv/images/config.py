"""The config of the front end for images: the size of an image, its patches, and how pixels become numbers."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from qkv.blocks.back_ends import BackEndConfig, BackEndKind
from qkv.blocks.front_ends import FrontEndConfig, FrontEndKind
from qkv.lazy import lazy_function
from qkv.values import Limits

Channel = Annotated[float, Limits(-10, 10)]


@dataclass(frozen=True, kw_only=True)
class PatchesConfig(FrontEndConfig):
    """An image of size × size pixels becomes (size / patch)² vectors, one for each patch of patch × patch pixels.

    With `stem = "conv"`, log2(patch) convolutions, each with a maximum over 3 × 3 pixels and a stride of 2, compute
    the vectors (Compact Convolutional Transformers). They also see the pixels around a patch.
    """

    kind: ClassVar[str] = "patches"
    max_value: ClassVar[float] = 255.0
    features: Annotated[int, Limits(0)] = 0  # follows from the other fields
    size: Annotated[int, Limits(1, 4096)] = 32  # the height and the width in pixels
    patch: Annotated[int, Limits(1, 256)] = 4
    stem: Literal["linear", "conv"] = "linear"
    positions: Literal["learned", "sinusoidal", "none"] = "learned"  # added to the vectors
    # How an image gets its size: the whole image is stretched, its middle is cut out, or its sides are padded.
    fit: Literal["stretch", "crop", "pad"] = "stretch"
    resample: Literal["nearest", "bilinear", "bicubic", "lanczos"] = "bilinear"
    mean: tuple[Channel, Channel, Channel] = (0.5, 0.5, 0.5)  # of red, green and blue, between 0 and 1
    std: tuple[Channel, Channel, Channel] = (0.5, 0.5, 0.5)
    bias: bool = True  # whether the linear map has a bias
    norm: bool = False  # a layer norm over all vectors, as in CLIP
    class_token: bool = False  # a learned vector before the patches, as in ViT and CLIP

    def __post_init__(self) -> None:
        if self.size % self.patch:
            raise ValueError(f"size = {self.size} is not a multiple of patch = {self.patch}; change one of them")
        if self.features not in (0, 3 * self.patch**2):
            raise ValueError(f"features = {self.features}, but patches have 3 · {self.patch}² numbers; leave it out")
        if self.stem == "conv" and (self.patch < 2 or self.patch & (self.patch - 1)):
            raise ValueError(f'stem = "conv" halves the image, so patch must be 2, 4, 8, …, not {self.patch}')
        if self.class_token and self.positions == "sinusoidal":
            raise ValueError(
                'class_token has no place in the grid of positions = "sinusoidal"; use "learned" or "none"'
            )
        if not all(self.std):
            raise ValueError("std must not be 0, because pixels are divided by it")
        object.__setattr__(self, "features", 3 * self.patch**2)
        super().__post_init__()

    @property
    def example_size(self) -> tuple[int, int]:
        """All images have this size in patches."""
        return self.grid

    def flops(self, size: tuple[int, int], width: int) -> int:
        """The FLOPs of the linear map of all patches, or of the convolutions."""
        patches = size[0] * size[1]
        if self.stem == "linear":
            return 2 * patches * self.features * width
        total, side = 0, self.patch  # of a patch in pixels, before each convolution
        for channels, out in conv_channels(self.patch, width):
            total += 2 * patches * side**2 * 9 * channels * out
            side //= 2
        return total

    @property
    def grid(self) -> tuple[int, int]:
        """The rows and columns of patches of an image."""
        return self.size // self.patch, self.size // self.patch

    def length(self, size: tuple[int, int]) -> int:
        """The number of patches, and the class token."""
        return size[0] * size[1] + self.class_token


def conv_channels(patch: int, width: int) -> list[tuple[int, int]]:
    """The channels before and after each convolution of the stem: each one halves the image.

    >>> conv_channels(4, 256)
    [(3, 128), (128, 256)]
    """
    count = patch.bit_length() - 1
    after = [max(64, width // 2)] * (count - 1) + [width]
    return list(zip([3, *after[:-1]], after, strict=True))


PATCHES = FrontEndKind(PatchesConfig, lazy_function("qkv.images.patches:Patches"))


@dataclass(frozen=True, kw_only=True)
class ImageCodesConfig(BackEndConfig):
    """A picture of size × size pixels is drawn from (size / patch)² codes, row by row, one for each patch."""

    kind: ClassVar[str] = "image-codes"
    size: Annotated[int, Limits(1, 4096)] = 32
    patch: Annotated[int, Limits(1, 256)] = 4
    # The fraction of training pictures without a caption. 0: the model cannot be guided.
    caption_dropout: Annotated[float, Limits(0, 1)] = 0.0

    def __post_init__(self) -> None:
        if self.size % self.patch:
            raise ValueError(f"size = {self.size} is not a multiple of patch = {self.patch}; change one of them")
        super().__post_init__()

    @property
    def num_patches(self) -> int:
        """The codes of a picture."""
        return (self.size // self.patch) ** 2

    def length(self, size: tuple[int, int]) -> int:
        """The number of codes of (rows, columns) of patches."""
        return size[0] * size[1]


IMAGE_CODES = BackEndKind(ImageCodesConfig, lazy_function("qkv.images.codec:ImageCodes"))
