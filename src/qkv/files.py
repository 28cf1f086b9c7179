"""Write files atomically, and read files with limits and clear errors.

After an atomic write, even if it was interrupted by a kill or a power cut, a reader sees either the old file or the new
one.

    write_atomically(path, text)          write a small file
    save_text(path, text)                 write a file that a user named
    publish_file(temporary, path)         rename a finished file to its final path
    replace_folder(temporary, folder)     rename a finished folder to its final path
    to_path(name)                         a path that a user named
    open_file(path)                       open a regular file: no pipe, no device
    read_text(path), read_json(path)      read a file of bounded size; if that fails, a `QkvError` says why
    seal_json(content), is_sealed(data)   JSON that starts with a checksum of itself

Every write flushes the file to disk (`fsync`) before it renames it. Otherwise the renamed file could be empty after a
power cut.
"""

import errno
import json
import math
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from io import BufferedReader
from pathlib import Path
from typing import Any

from qkv.errors import QkvError, UsageError, shorten

PARTIAL = ".partial"
"""The suffix of a file that is being written."""
MAX_FILE_BYTES = 2**29
"""The largest file that is read whole. The largest tokenizer files have a tenth of this size."""

_CHECKSUM_PREFIX = b'{"sha256": "'
_CHECKSUM_DIGITS = 64
MAX_DIGITS = 300
"""The most digits of an integer in JSON, so that it can become a float."""


def partial_path(path: Path) -> Path:
    """The path beside `path` where its new content is written before the rename.

    >>> partial_path(Path("runs/a/env.json")).name
    'env.json.partial'
    """
    return path.with_name(path.name + PARTIAL)


def hidden_sibling(folder: Path, suffix: str) -> Path:
    """The hidden path beside `folder` that it has while it is written, replaced or deleted.

    >>> hidden_sibling(Path("checkpoints/step-000000100"), "writing").name
    '.step-000000100.writing'
    """
    return folder.with_name(f".{folder.name}.{suffix}")


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a small file atomically: after a crash it has either its old content or all of `content`."""
    temporary = partial_path(path)
    temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    publish_file(temporary, path)


@contextmanager
def report_write_errors(path: Path, advice: str = "check permissions and free space") -> Iterator[None]:
    """Inside, a failure of the operating system becomes a `QkvError` that says that `path` cannot be written."""
    try:
        yield
    except OSError as error:
        raise QkvError(f"{path}: cannot be written ({describe_os_error(error)}); {advice}") from error


def save_text(path: Path, text: str) -> None:
    """Write a file that a user named, atomically. Missing folders are made."""
    with report_write_errors(path, "choose another file"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)


def publish_file(temporary: Path, path: Path) -> None:
    """Flush a finished file to disk, give it the permissions of a new file, and rename it to `path`."""
    umask = os.umask(0)
    os.umask(umask)
    temporary.chmod(0o666 & ~umask)
    with temporary.open("rb+") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)


def replace_folder(temporary: Path, folder: Path, on_phase: Callable[[str], None] = lambda phase: None) -> Path:
    """Rename `temporary`, whose files are flushed already, to `folder`.

    If `folder` exists, it is first renamed to its hidden sibling `.NAME.replaced`. The path of this sibling is
    returned; the caller deletes it. `on_phase` is called with "aside" before this rename, with "rename" before the
    rename to `folder`, and with "renamed" after it.
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
    """Flush a folder's entries to disk, so that renames in it survive a power cut. On Windows this does nothing."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def to_path(name: str | os.PathLike[str]) -> Path:
    """The path of a file or folder that a user names; `~` stands for the home folder. A folder must be readable."""
    if not isinstance(name, str | os.PathLike):
        raise UsageError(f"a path must be a text or a pathlib.Path, got {shorten(repr(name))} ({type(name).__name__})")
    text = os.fspath(name)
    if "\0" in text:
        raise UsageError(f"{shorten(repr(text))} cannot be a path, because it contains a NUL character; check the name")
    try:
        path = Path(text).expanduser()
        if path.is_dir() and not os.access(path, os.R_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except RuntimeError as error:  # ~name, but there is no such user
        raise UsageError(f"{text}: {error}; write the whole path") from None
    except OSError as error:
        raise QkvError(
            f"{text}: cannot be read ({describe_os_error(error)}); check the name and the permissions of the folder"
        ) from None
    return path


def open_file(path: Path) -> BufferedReader:
    """Open a regular file for reading. The error says what is wrong with the path.

    A pipe or a device is refused, because reading it may never end. Opening a pipe would wait for its writer, so the
    file is opened without waiting and then checked.
    """
    try:
        file = open(path, "rb", opener=_open_without_waiting)  # noqa: SIM115 - the caller closes it
    except FileNotFoundError:
        raise QkvError(f"{path}: no such file; check the path") from None
    except (OSError, ValueError) as error:
        raise QkvError(f"{path}: cannot be read ({describe_os_error(error)}); check its permissions") from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise QkvError(f"{path}: not a regular file but a pipe or a device, which may never end; copy it to a file")
    return file


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def read_bytes(path: Path, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Read a file of at most `max_bytes`."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise QkvError(f"{path}: {size:,} bytes, but at most {max_bytes:,} are read; is this the right file?")
        try:
            return file.read(size)  # a larger number would allocate as many bytes
        except OSError as error:
            raise QkvError(f"{path}: cannot be read ({describe_os_error(error)}); check the disk") from None


def read_text(path: Path, max_bytes: int = MAX_FILE_BYTES, *, may_be_empty: bool = False) -> str:
    """Read a UTF-8 file. A byte order mark is removed. An empty file is an error, unless `may_be_empty` is set."""
    try:
        text = read_bytes(path, max_bytes).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise QkvError(
            f"{path}: not UTF-8 text ({error.reason} at byte {error.start}); fetch or save it again"
        ) from None
    if not text.strip() and not may_be_empty:
        raise QkvError(f"{path}: the file is empty; fetch or save it again")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_json(path: Path) -> Any:
    """Read the value in a JSON file."""
    text = read_text(path)
    try:
        return parse_json(text)
    except json.JSONDecodeError as error:
        raise QkvError(
            f"{path}: line {error.lineno}, column {error.colno}: not JSON ({error.msg}); fetch or save it again"
        ) from None
    except ValueError as error:
        raise QkvError(f"{path}: not usable JSON ({error}); fetch or save it again") from None


def parse_json(text: str | bytes) -> Any:
    """Parse JSON. A ValueError is raised for deep nesting and for numbers that no float can hold, too.

    An integer of more than 64 bits becomes a float: tokenizer_config.json files write 10^30 for "no limit".

    >>> parse_json("[18446744073709551615, 1000000000000000019884624838656]")
    [18446744073709551615, 1e+30]
    """
    try:
        return json.loads(text, parse_int=_parse_int)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _parse_int(digits: str) -> float:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"the integer {shorten(digits, 30)} has more than {MAX_DIGITS} digits")
    number = int(digits)
    return number if -(2**63) <= number < 2**64 else float(number)


def read_json_object(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise QkvError(f"{path}: expected a JSON object {{…}}, found {type(value).__name__}; fetch or save it again")
    return value


def describe_os_error(error: BaseException) -> str:
    """The operating system's message, such as "No space left on device", without error number and path."""
    return getattr(error, "strerror", None) or str(error)


def seal_json(content: dict[str, Any]) -> str:
    """JSON of `{"sha256": …, "content": content}`, whose checksum covers all bytes after it."""
    body = f'", "content": {json.dumps(content)}}}\n'
    return _CHECKSUM_PREFIX.decode() + sha256(body.encode()).hexdigest() + body


def is_sealed(data: bytes) -> bool:
    """Whether this is the unchanged output of `seal_json`.

    >>> is_sealed(seal_json({"step": 1}).encode()), is_sealed(seal_json({"step": 1}).encode().replace(b"1}", b"2}"))
    (True, False)
    """
    body = data[len(_CHECKSUM_PREFIX) + _CHECKSUM_DIGITS :]
    return data == _CHECKSUM_PREFIX + sha256(body).hexdigest().encode() + body


def replace_nonfinite(values: Any) -> Any:
    """Replace NaN and infinities, which JSON does not have, by None.

    >>> replace_nonfinite({"loss": float("nan"), "each": [1.5, float("inf")]})
    {'loss': None, 'each': [1.5, None]}
    """
    if isinstance(values, float):
        return values if math.isfinite(values) else None
    if isinstance(values, dict):
        return {name: replace_nonfinite(value) for name, value in values.items()}
    return [replace_nonfinite(value) for value in values] if isinstance(values, list | tuple) else values
