"""A sheet of examples: pictures in rows, each with its texts, as one PNG file."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

from qkv.errors import UsageError
from qkv.files import write_atomically
from qkv.images.files import import_pillow, open_image

COLUMNS, SIDE, MARGIN, LINE = 4, 160, 12, 13  # pixels, except the number of columns
MAX_LINES = 7


def write_sheet(path: Path, examples: Sequence[dict[str, Any]]) -> None:
    """Draw the pictures of examples with their texts, and write the sheet."""
    if path.suffix.lower() != ".png":
        raise UsageError(f"{path}: a sheet of pictures is a PNG file; name it {path.with_suffix('.png').name}")
    pillow = import_pillow()
    from io import BytesIO

    from PIL import ImageDraw

    width, height = COLUMNS * (SIDE * 2 + MARGIN) + MARGIN, -(-len(examples) // COLUMNS) * cell_height() + MARGIN
    sheet = pillow.new("RGB", (width, height), "white")
    pen = ImageDraw.Draw(sheet)
    for number, example in enumerate(examples):
        x = MARGIN + (number % COLUMNS) * (SIDE * 2 + MARGIN)
        y = MARGIN + (number // COLUMNS) * cell_height()
        images = [value for value in example.values() if isinstance(value, bytes)]
        for place, image in enumerate(images):
            picture = open_image(image)
            scale = SIDE / max(picture.size)
            width, height = (max(1, round(scale * one)) for one in picture.size)
            sheet.paste(picture.resize((width, height), pillow.Resampling.NEAREST), (x + place * SIDE, y))
        texts = [f"{name}: {value}" for name, value in example.items() if isinstance(value, str)]
        lines = [line for text in texts for line in wrap(text, 2 * SIDE // 6)][:MAX_LINES]
        for place, line in enumerate(lines):
            pen.text((x, y + SIDE + 4 + place * LINE), line, fill="black")
    buffer = BytesIO()
    sheet.save(buffer, "PNG")
    write_atomically(path, buffer.getvalue())


def cell_height() -> int:
    """The height of a picture with its texts."""
    return SIDE + MAX_LINES * LINE + MARGIN
