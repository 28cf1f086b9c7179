"""Writing an export: every file beside its place first, so that whatever fails, what was there stays whole."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qkv.errors import QkvError

PARTIAL = ".partial"


@contextmanager
def staged(folder: str | Path, marker: str) -> Iterator[Path]:
    """A folder to write into, whose files move to `folder` when the block ends well.

    A folder with other files in it is refused unless it has `marker`, the file by which an earlier export is known.
    """
    folder = Path(folder).expanduser()
    if folder.exists() and not folder.is_dir():
        raise QkvError(f"{folder}: this is a file; give a folder")
    new = not folder.exists()
    partial = folder / PARTIAL
    try:
        there = [] if new else [path for path in folder.iterdir() if path.name != PARTIAL]
        if there and not (folder / marker).exists():
            raise QkvError(f"{folder}: there are other files in this folder; choose another")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            yield partial
            for path in partial.iterdir():
                os.replace(path, folder / path.name)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
            if new and not any(folder.iterdir()):
                folder.rmdir()
    except OSError as error:
        raise QkvError(f"{folder}: could not be written ({error.strerror or error})") from error
