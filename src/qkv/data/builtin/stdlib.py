"""`stdlib`: the sources of Python's standard library, a corpus for language models that needs no download."""

import hashlib
import os
import sysconfig
from functools import cached_property
from pathlib import Path

from qkv.data.builtin.dataset import SPLITS, BuiltinDataset, assign_split
from qkv.errors import QkvError

# Not part of the library: installed packages, compiled files, and tests, which many installations lack.
EXCLUDED_FOLDERS = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}
EXCLUDED_PREFIX = "_sysconfigdata"  # the content of these files differs between machines


class Stdlib(BuiltinDataset):
    """The source files of the standard library. Each file is a document; files are sorted by path.

    The split of a file depends only on the hash of its path, so it does not change when other files are added. Files
    that are not UTF-8 are left out and listed in `skipped`. Empty files are left out. The seed has no effect.

    >>> library = Stdlib()
    >>> "def " in "".join(example["text"] for example in library.examples("valid"))
    True
    """

    name = "stdlib"
    description = "the sources of Python's standard library, one file a document"
    licence = "PSF-2.0"
    fields = ("text", "path")

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = Path(sysconfig.get_path("stdlib") if folder is None else folder)
        self.skipped: list[str] = []

    @cached_property
    def paths(self) -> dict[str, list[str]]:
        """The files of each split, as paths relative to the library."""
        found: dict[str, list[str]] = {split: [] for split in SPLITS}
        for parent, folders, names in os.walk(self.folder):
            folders[:] = [name for name in folders if name not in EXCLUDED_FOLDERS]  # os.walk skips removed ones
            for name in names:
                if not name.endswith(".py") or name.startswith(EXCLUDED_PREFIX):
                    continue
                file = Path(parent, name)
                path = file.relative_to(self.folder).as_posix()
                try:
                    text = file.read_text(encoding="utf-8")
                except (UnicodeDecodeError, OSError):
                    self.skipped.append(path)
                    continue
                if text.strip():
                    found[assign_split(path_key(path))].append(path)
        if not any(found.values()):
            raise QkvError(
                f"{self.folder} has no Python sources: this Python is installed without the sources of its "
                "standard library; use another Python, or another dataset"
            )
        self.skipped.sort()
        return {split: sorted(paths) for split, paths in found.items()}

    def length(self, split: str) -> int:
        """The number of files in a split."""
        return len(self.paths.get(split, ()))

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all paths and texts."""
        digest = hashlib.sha256()
        for split in SPLITS:
            for i, path in enumerate(self.paths[split]):
                digest.update(f"{split} {path} ".encode() + self.example(split, i)["text"].encode() + b"\0")
        return digest.hexdigest()[:32]

    def example(self, split: str, i: int, seed: int = 0) -> dict[str, str]:
        """File `i` of a split: its `text` and its `path`."""
        self.check_index(split, i)
        path = self.paths[split][i]
        return {"text": (self.folder / path).read_text(encoding="utf-8"), "path": path}


def path_key(path: str) -> int:
    """A hash of a path, which is the same on every machine."""
    return int.from_bytes(hashlib.sha256(path.encode()).digest()[:8], "big")
