"""Write a folder in two steps: first write all files into a staging folder, then move them to the folder itself.

If anything fails before the files are moved, the folder keeps its old files.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from qkv.errors import QkvError
from qkv.files import describe_os_error, to_path

STAGING_FOLDER = ".staging"
"""The sub-folder in which new files are written until all of them are complete."""


@contextmanager
def staged_folder(
    folder: str | Path, marker: str, replaces: Sequence[str] = (), also_accepted: Sequence[str] = ()
) -> Iterator[Path]:
    """Yield a staging folder to write into. If the block ends without an error, its files are moved to `folder`.

    `marker` is the file that identifies a folder of this kind; it is moved last. If `folder` is not empty, it must
    contain the marker or a name in `also_accepted`. Old files that match a pattern in `replaces` are deleted.
    """
    folder = to_path(folder)
    if folder.exists() and not folder.is_dir():
        raise QkvError(f"{folder}: this is a file, but a model is a folder; choose another path")
    is_new = not folder.exists()
    staging = folder / STAGING_FOLDER
    try:
        names = set() if is_new else {path.name for path in folder.iterdir()} - {STAGING_FOLDER}
        if names and not names & {marker, *also_accepted}:
            raise QkvError(f"{folder}: this folder contains other files, but no model; choose an empty or new folder")
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        try:
            yield staging
            _move_into_place(staging, folder, marker, replaces)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
            if is_new and not any(folder.iterdir()):
                folder.rmdir()
    except (OSError, SafetensorError) as error:
        raise QkvError(f"{folder}: could not be written ({describe_os_error(error)}); choose another folder") from error


def _move_into_place(staging: Path, folder: Path, marker: str, replaces: Sequence[str]) -> None:
    """Move the finished files to the folder, and delete old files. The marker is moved last."""
    names = sorted((path.name for path in staging.iterdir()), key=lambda name: name == marker)
    old = {path for pattern in replaces for path in folder.glob(pattern)}
    for name in names[:-1]:
        if (folder / name).is_dir():
            shutil.rmtree(folder / name)
        os.replace(staging / name, folder / name)
    for path in old - {folder / name for name in names}:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    os.replace(staging / names[-1], folder / names[-1])
