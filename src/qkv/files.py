"""Atomic writes, and small files read with clear errors.

A reader of an atomic write sees the old file or the new one, never half of either, even after a kill or a power cut.

    write_atomically(path, text)          a small file
    publish_file(temporary, path)         a large file that was written beside its final path
    replace_folder(temporary, folder)     a whole folder
    read_text(path), read_json(path)      a small file, or a `QkvError` that says what is wrong with it

Each write flushes to disk (`fsync`) before it renames: after a power cut a renamed file could otherwise be empty.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qkv.errors import QkvError

PARTIAL = ".partial"
"""The suffix of a file that is being written."""


def partial_path(path: Path) -> Path:
    """The path beside `path` to which its new content is written first.

    >>> partial_path(Path("runs/a/env.json")).name
    'env.json.partial'
    """
    return path.with_name(path.name + PARTIAL)


def hidden_sibling(folder: Path, suffix: str) -> Path:
    """The hidden folder beside `folder` that holds it while it is written, replaced or deleted.

    >>> hidden_sibling(Path("checkpoints/step-000000100"), "writing").name
    '.step-000000100.writing'
    """
    return folder.with_name(f".{folder.name}.{suffix}")


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a small file so that it has either its old content or all of `content`."""
    temporary = partial_path(path)
    temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    publish_file(temporary, path)


def publish_file(temporary: Path, path: Path) -> None:
    """Flush a finished file to disk, give it the usual permissions and rename it to `path`."""
    umask = os.umask(0)
    os.umask(umask)
    temporary.chmod(0o666 & ~umask)
    with temporary.open("rb+") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)


def replace_folder(temporary: Path, folder: Path, on_phase: Callable[[str], None] = lambda phase: None) -> Path:
    """Rename `temporary`, whose files are flushed already, to `folder`.

    A folder of that name is moved to its hidden sibling `.NAME.replaced` first, whose path is returned: the caller
    deletes it. `on_phase` is called before each rename ("aside", "rename") and after the last ("renamed").
    """
    replaced = hidden_sibling(folder, "replaced")
    sync_folder(temporary)
    if folder.exists():
        on_phase("aside")
        folder.rename(replaced)
    try:
        on_phase("rename")
        temporary.rename(folder)
    except OSError:
        if replaced.exists():
            replaced.rename(folder)
        raise
    on_phase("renamed")
    sync_folder(folder.parent)
    return replaced


def sync_folder(folder: Path) -> None:
    """Flush the list of a folder's files to disk, which makes renames in it durable. Windows cannot do this."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, without a byte order mark."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise QkvError(f"{path}: no such file") from None
    except OSError as error:
        raise QkvError(f"{path}: cannot be read ({describe_os_error(error)})") from None
    except UnicodeDecodeError as error:
        raise QkvError(
            f"{path}: not UTF-8 text ({error.reason} at byte {error.start}); fetch or save it again"
        ) from None
    if not text.strip():
        raise QkvError(f"{path}: the file is empty; fetch or save it again")
    return text


def read_json(path: Path) -> Any:
    """The value in a JSON file."""
    text = read_text(path)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise QkvError(
            f"{path}: line {error.lineno}, column {error.colno}: not JSON ({error.msg}); fetch or save it again"
        ) from None
    except (ValueError, RecursionError) as error:  # a number, or a depth, beyond what Python reads
        raise QkvError(f"{path}: not usable JSON ({error}); fetch or save it again") from None


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise QkvError(f"{path}: expected a JSON object {{…}}, found {type(value).__name__}; fetch or save it again")
    return value


def describe_os_error(error: BaseException) -> str:
    """The system's words for what went wrong, such as "No space left on device", without numbers and paths."""
    return getattr(error, "strerror", None) or str(error)
