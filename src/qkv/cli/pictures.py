"""`qkv run` of a model that draws: pictures are written to a file."""

import json as json_format
from math import ceil
from pathlib import Path
from typing import Any

from qkv.api import Model
from qkv.cli.input_lines import InputLines
from qkv.cli.shared import check_minimum
from qkv.errors import UsageError
from qkv.files import report_write_errors, write_atomically
from qkv.images.files import import_pillow

DEFAULT_FILE = Path("picture.png")
COLUMNS = 4


def run_drawing(
    model: Model, lines: InputLines, options: dict[str, Any], out: Path | None, count: int, json: bool
) -> None:
    """Draw each text `count` times, and write one picture, or a sheet of all pictures."""
    check_minimum("count", count, 1)
    out = out or DEFAULT_FILE
    if out.suffix.lower() != ".png":
        raise UsageError(f"--out {out}: pictures are PNG files; name it {out.with_suffix('.png').name}")
    if count > 1 and not options.get("temperature"):
        options["temperature"] = 1.0  # without sampling, all pictures of a text would be equal
    texts = [text for chunk in lines for text in chunk if text.strip()]
    if not texts:
        raise UsageError('there is nothing to draw; give a text, such as "a red circle"')
    found = model.draw([text for text in texts for _ in range(count)], batch_size=lines.batch_size, **options)
    images = [one.image for one in found]
    if len(images) == 1:
        content = found[0].png
    else:
        content = to_sheet(images)
    with report_write_errors(out):
        write_atomically(out, content)
    if json:
        for text, one in zip([text for text in texts for _ in range(count)], found, strict=True):
            print(json_format.dumps({"input": text, "file": str(out), **one.to_dict()}))
    else:
        print(f"wrote {out}: {len(images)} picture{'s' if len(images) > 1 else ''}")


def to_sheet(images: list[Any]) -> bytes:
    """Pictures side by side, as the bytes of a PNG file."""
    from io import BytesIO

    columns = min(COLUMNS, len(images))
    width, height = images[0].size
    sheet = import_pillow().new("RGB", (columns * width, ceil(len(images) / columns) * height), "white")
    for number, image in enumerate(images):
        sheet.paste(image, (number % columns * width, number // columns * height))
    buffer = BytesIO()
    sheet.save(buffer, "PNG")
    return buffer.getvalue()
