"""Writing a folder: every file beside its place first, so that whatever fails, what was there stays whole."""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from qkv.errors import QkvError

STAGING_FOLDER = ".partial"
"""Where a folder's new files wait until all of them are written."""


@contextmanager
def staged_folder(
    folder: str | Path, marker: str, replaces: Sequence[str] = (), also_accepted: Sequence[str] = ()
) -> Iterator[Path]:
    """A folder to write into, whose files move to `folder` when the block ends well, `marker` last.

    `marker` is the file by which a folder of this kind is known: one that has other files and neither this nor one
    that is `welcome` is refused. Files of an older one that match `replaces` and have no successor go.
    """
    folder = Path(folder).expanduser()
    if folder.exists() and not folder.is_dir():
        raise QkvError(f"{folder}: this is a file; give a folder")
    new = not folder.exists()
    partial = folder / STAGING_FOLDER
    try:
        there = set() if new else {path.name for path in folder.iterdir()} - {STAGING_FOLDER}
        if there and not there & {marker, *also_accepted}:
            raise QkvError(f"{folder}: there are other files in this folder and no model; choose another")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            yield partial
            _move_into_place(partial, folder, marker, replaces)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
            if new and not any(folder.iterdir()):
                folder.rmdir()
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise QkvError(f"{folder}: could not be written ({reason})") from error


def _move_into_place(partial: Path, folder: Path, marker: str, replaces: Sequence[str]) -> None:
    """Give finished files their places; what is left of an older folder goes before the marker comes."""
    names = sorted((path.name for path in partial.iterdir()), key=lambda name: name == marker)
    old = {path for pattern in replaces for path in folder.glob(pattern)}
    for name in names[:-1]:
        os.replace(partial / name, folder / name)
    for path in old - {folder / name for name in names}:
        path.unlink()
    os.replace(partial / names[-1], folder / names[-1])
