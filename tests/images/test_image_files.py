"""Image files of every kind become pixels, or are refused with a reason and a category."""

import io

import numpy as np
import pytest
from image_files import Image, animation, claim_size, encode, picture

from qkv.errors import QkvError
from qkv.images import files
from qkv.images.config import PatchesConfig
from qkv.images.files import BadImage, load_image, open_image, split_patches, to_png

PIXELS = picture()
SAME = PatchesConfig(size=8, patch=4)


def sixteen_bits() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.full((8, 8), 0x8000, np.uint16)).save(buffer, "PNG")
    return buffer.getvalue()


def transparent() -> bytes:
    return encode(np.dstack([np.zeros((8, 8, 3), np.uint8), np.full((8, 8, 1), 0, np.uint8)]))


def turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90°
    return encode(PIXELS, "PNG", exif=exif)


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (encode(PIXELS), PIXELS),
        (encode(PIXELS, "BMP"), PIXELS),
        (encode(PIXELS, "WEBP", lossless=True), PIXELS),
        (sixteen_bits(), np.full((8, 8, 3), 0x80)),
        (transparent(), np.full((8, 8, 3), 255)),
        (turned(), np.rot90(PIXELS, -1)),
        (animation(), np.broadcast_to([254, 0, 0], (8, 8, 3))),
        (encode(np.full((8, 8, 3), 60, np.uint8), "JPEG", "CMYK"), np.full((8, 8, 3), 60)),
        (encode(np.full((8, 8, 3), 60, np.uint8), "PNG", "LA"), np.full((8, 8, 3), 60)),
    ],
    ids=["png", "bmp", "webp", "16 bits", "alpha", "exif", "animation", "cmyk", "grey and alpha"],
)
def test_files_become_pixels(file: bytes, expected: np.ndarray) -> None:
    assert np.abs(load_image(file, SAME).astype(int) - expected).max() <= 2


@pytest.mark.parametrize(
    ("file", "category", "reason"),
    [
        (b"", "empty image", "empty"),
        (b"hello\nworld\n", "not an image", "begins with b'hello"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image", "not an image"),
        (encode(picture(64, 64), "JPEG")[:900], "damaged image", "damaged"),
        (encode(picture(64, 64))[:900], "damaged image", "damaged"),
        (claim_size(8, 8), "damaged image", "damaged"),
        (claim_size(30_000, 30_000), "huge image", "too large|pixels, but at most"),
        (claim_size(7_000, 7_000), "huge image", "49,000,000|7,000 × 7,000 pixels"),
    ],
    ids=["empty", "text", "postscript", "cut jpeg", "cut png", "no data", "bomb", "large"],
)
def test_bad_files_are_refused_with_a_category(file: bytes, category: str, reason: str) -> None:
    with pytest.raises(BadImage, match=reason) as caught:
        open_image(file)
    assert caught.value.category == category


def test_a_large_file_is_not_read_whole(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 100)
    path = tmp_path / "big.png"
    path.write_bytes(encode(picture(32, 32)))
    assert len(files.read_file(path)) == 101
    with pytest.raises(BadImage, match="at most 100 are read"):
        load_image(path, SAME)


@pytest.mark.parametrize("fit", ["stretch", "crop", "pad"])
def test_a_line_of_pixels_gets_the_size(fit: str) -> None:
    for height, width in ((1, 10_000), (10_000, 1)):
        pixels = load_image(encode(picture(height, width)), PatchesConfig(size=16, patch=4, fit=fit))
        assert pixels.shape == (16, 16, 3)


def test_a_crop_is_the_middle_of_the_resized_image() -> None:
    image = Image.fromarray(picture(20, 30))
    expected = np.asarray(image.resize((12, 8), Image.Resampling.BILINEAR))[:, 2:10]
    found = load_image(image, PatchesConfig(size=8, patch=4, fit="crop"))
    assert np.abs(found.astype(int) - expected).max() <= 1


def test_patches_are_rows_of_squares() -> None:
    pixels = np.arange(4 * 4 * 3, dtype=np.uint8).reshape(4, 4, 3)
    patches = split_patches(pixels, 2)
    assert patches.shape == (4, 12)
    assert patches[1].tolist() == pixels[:2, 2:].reshape(-1).tolist()
    assert (load_image(to_png(pixels), PatchesConfig(size=4, patch=2)) == pixels).all()


def test_without_pillow_an_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(QkvError, match=r'pip install "qkv\[images\]"'):
        open_image(b"x")
