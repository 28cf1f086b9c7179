"""Small files read and written with care: what is wrong with one is one clear error that names it."""

import json
from pathlib import Path
from typing import Any

from qkv.errors import QkvError


def read_text(file: Path) -> str:
    """A UTF-8 file's text, or one error that says what is wrong with it."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise QkvError(f"{file}: not a UTF-8 text file (byte {error.start} is wrong); fetch or save it again") from None
    except OSError as error:
        raise QkvError(f"{file}: cannot be read ({error.strerror})") from None
    if not text.strip():
        raise QkvError(f"{file}: the file is empty; fetch or save it again")
    return text


def read_object(file: Path) -> dict[str, Any]:
    """A JSON object; empty where there is no such file."""
    if not file.is_file():
        return {}
    try:
        value = json.loads(read_text(file))
    except json.JSONDecodeError as error:
        raise QkvError(f"{file}: broken JSON at line {error.lineno} ({error.msg}); fetch or save it again") from None
    except RecursionError:
        raise QkvError(f"{file}: broken JSON (nested without end); fetch or save it again") from None
    if not isinstance(value, dict):
        raise QkvError(f"{file}: holds a JSON {type(value).__name__}, not an object; fetch or save it again")
    return value


def write(file: Path, data: bytes) -> None:
    """Write a file in one step: a reader sees the old file or the new one, never half of it."""
    half = file.with_name(file.name + ".part")
    half.write_bytes(data)
    half.replace(file)
