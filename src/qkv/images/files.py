"""Image files → pixels, with Pillow. Memory is bounded, whatever a file claims to be.

The first frame of an animation is read, a photo is turned as its EXIF data says, and transparent pixels become white.
"""

import io
import warnings
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.errors import QkvError
from qkv.images.config import PatchesConfig

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM")  # formats whose decoders run no other program
MAX_PIXELS = 40_000_000  # pixels of a file; their colours take 120 MB
MAX_FILE_BYTES = 64 * 2**20
MAX_RESIZED = 4_000_000  # pixels of a resized image of which only the middle is needed
BACKGROUND = (255, 255, 255)  # of transparent pixels


class BadImage(Exception):
    """Raised for a file that cannot be decoded, with the reason and the category under which such files are counted."""

    def __init__(self, reason: str, category: str = "damaged image") -> None:
        super().__init__(reason)
        self.reason, self.category = reason, category


def import_pillow() -> Any:
    """Return the module `PIL.Image`, or raise an error that says how to install it."""
    try:
        from PIL import Image
    except ImportError:
        raise QkvError('reading images needs the Pillow package: pip install "qkv[images]"') from None
    return Image


def is_image(value: Any) -> bool:
    """Whether a value is the bytes of a file, a path, or a Pillow image."""
    return isinstance(value, bytes | PathLike) or (hasattr(value, "getexif") and hasattr(value, "convert"))


def open_image(content: bytes) -> "Image":
    """Decode the bytes of a file to an RGB image. Raises `BadImage`."""
    pillow = import_pillow()
    if not content:
        raise BadImage("the file is empty", "empty image")
    if len(content) > MAX_FILE_BYTES:
        raise BadImage(f"the file has {len(content):,} bytes, but at most {MAX_FILE_BYTES:,} are read", "huge image")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about large images, which are checked here, and about damaged metadata
        try:
            image = pillow.open(io.BytesIO(content), formats=FORMATS)
            width, height = image.size
            if width * height > MAX_PIXELS:
                size = f"{width:,} × {height:,} pixels"
                raise BadImage(f"the image has {size}, but at most {MAX_PIXELS:,} are read", "huge image")
            image.load()
            return to_rgb(image)
        except pillow.DecompressionBombError as error:
            raise BadImage(f"the image is too large: {error}", "huge image") from None
        except pillow.UnidentifiedImageError:
            start = content[:16]
            raise BadImage(f"the file is not an image: it begins with {start!r}", "not an image") from None
        except (OSError, ValueError, SyntaxError, EOFError, IndexError, TypeError, OverflowError, MemoryError) as error:
            raise BadImage(f"the image is damaged: {error}") from None


def to_rgb(image: "Image") -> "Image":
    """Turn an image as its EXIF data says, and convert it to 8-bit RGB."""
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):  # 16 bits; `convert` would clip them
        return Image.fromarray((np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise BadImage("the pixels are fractions, whose scale is unknown", "unknown pixels")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, (*BACKGROUND, 255)), image).convert("RGB")
    return image.convert("RGB")


def fit_image(image: "Image", config: PatchesConfig) -> np.ndarray:
    """Bring an RGB image to the size of a model: (size, size, 3) bytes."""
    size, (width, height) = config.size, image.size
    resample = getattr(import_pillow().Resampling, config.resample.upper())
    if config.fit == "stretch":
        new = (size, size)
    else:  # the shorter or the longer side gets the size
        side = min(width, height) if config.fit == "crop" else max(width, height)
        new = (max(1, int(width * size / side)), max(1, int(height * size / side)))
    left, top = (new[0] - size) // 2, (new[1] - size) // 2  # of the cut
    if config.fit == "crop" and new[0] * new[1] > MAX_RESIZED:  # resize only the cut
        scale = width / new[0], height / new[1]
        box = (left * scale[0], top * scale[1], (left + size) * scale[0], (top + size) * scale[1])
        image = image.resize((size, size), resample, (*box[:2], min(box[2], width), min(box[3], height)))
    elif new != (width, height):
        image = image.resize(new, resample)
    if config.fit == "crop" and image.size != (size, size):
        image = image.crop((left, top, left + size, top + size))
    pixels = np.asarray(image)
    if config.fit == "pad":
        padded = np.full((size, size, 3), BACKGROUND, np.uint8)
        top, left = (size - new[1]) // 2, (size - new[0]) // 2
        padded[top : top + new[1], left : left + new[0]] = pixels
        return padded
    return pixels


def read_file(path: "str | PathLike[str]") -> bytes:
    """Read at most one byte more than `MAX_FILE_BYTES`, so that a larger file is recognised."""
    with open(path, "rb") as file:
        return file.read(MAX_FILE_BYTES + 1)


def load_image(value: Any, config: PatchesConfig) -> np.ndarray:
    """The pixels of the bytes of a file, a path or a Pillow image, as a model reads them. Raises `BadImage`."""
    if isinstance(value, str | PathLike):
        value = read_file(value)
    return fit_image(open_image(value) if isinstance(value, bytes) else to_rgb(value), config)


def split_patches(pixels: np.ndarray, patch: int) -> np.ndarray:
    """Images (…, S, S, 3) → patches (…, N, P · P · 3), row by row."""
    *lead, size, _, channels = pixels.shape
    rows = size // patch
    grid = pixels.reshape(*lead, rows, patch, rows, patch, channels).swapaxes(-4, -3)
    return grid.reshape(*lead, rows * rows, patch * patch * channels)


def to_png(pixels: np.ndarray) -> bytes:
    """Pixels (height, width, 3) as the bytes of a PNG file."""
    buffer = io.BytesIO()
    import_pillow().fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()
