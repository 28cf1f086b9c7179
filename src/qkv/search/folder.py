"""The folder of an index.

    INDEX/
      manifest.json        sealed with a checksum; written last: settings, source files, and checksums of all data files
      data-000003/         the data that the manifest names
        vectors.npy        (N, C) unit vectors, float32 or float16
        texts.txt          the text of all passages, UTF-8; passage i is the bytes text_starts[i] to text_starts[i + 1]
        text_starts.npy    (N + 1,)
        lines.npy          (N, 2) the first and last line of each passage in its file
        word_bytes.npy …   the inverted index of BM25
        ivf.faiss          the inverted file of more than a million vectors, if faiss is installed

A new version is written beside the old one, and replaces it when `manifest.json` is renamed. A killed writer leaves the
old version intact, and the next writer removes what it left. Arrays are memory-mapped. Passages are in the order of the
files in the manifest, which has the number of passages of each file.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from qkv.errors import QkvError, suggest_path
from qkv.files import (
    is_sealed,
    open_file,
    parse_json,
    partial_path,
    read_bytes,
    report_write_errors,
    seal_json,
    sync_folder,
    write_atomically,
)

VERSION = 3  # version 2 had other names; version 1 had other rules for words
MANIFEST_FILE = "manifest.json"
MANIFEST_PARTIAL = partial_path(Path(MANIFEST_FILE)).name
TEXTS_FILE = "texts.txt"
VECTORS_FILE = "vectors.npy"
IVF_FILE = "ivf.faiss"
LOCK_FILE = ".lock"
DATA_FOLDER = re.compile(r"data-\d{6,18}")
ARRAYS = {
    "text_starts": np.int64,
    "lines": np.int32,
    "word_bytes": np.uint8,
    "word_starts": np.int64,
    "posting_starts": np.int64,
    "posting_passages": np.int32,
    "posting_counts": np.int32,
    "passage_words": np.int32,
}
"""The arrays and their dtypes, except the vectors, whose dtype is chosen."""
VECTOR_DTYPES = ("float32", "float16")


class DamagedIndex(QkvError):
    """An index is incomplete, or its bytes have changed since it was written."""

    def __init__(self, folder: Path, problem: str) -> None:
        super().__init__(f"{folder}: damaged index: {problem}; build it again with qkv index --rebuild --model MODEL")


def is_index(folder: Path) -> bool:
    """Whether a folder contains an index."""
    return (folder / MANIFEST_FILE).is_file() and any(folder.glob(f"data-*/{TEXTS_FILE}"))


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of an index."""
    path = folder / MANIFEST_FILE
    if not folder.is_dir():
        raise QkvError(f"{folder}: no such index; build one with qkv index{suggest_path(folder, folders=True)}")
    if not path.exists():
        raise QkvError(f"{folder}: not an index, because it has no {MANIFEST_FILE}; build one with qkv index")
    data = read_bytes(path)
    if not is_sealed(data):
        raise DamagedIndex(folder, f"{MANIFEST_FILE} does not match its checksum")
    try:
        content: dict[str, Any] = parse_json(data)["content"]
        version = content["version"]
    except (LookupError, TypeError, ValueError):
        raise DamagedIndex(folder, f"{MANIFEST_FILE} has no version") from None
    if version != VERSION:
        raise QkvError(
            f"{folder}: version {str(version)[:20]} of the index format, but this qkv reads version {VERSION}; use the "
            "qkv that wrote it, or build it again with qkv index --rebuild --model MODEL"
        )
    return content


def read_arrays(folder: Path, manifest: dict[str, Any], *, verify: bool = True) -> dict[str, np.ndarray]:
    """The memory-mapped arrays of an index, with "vectors" and "texts". `verify` reads all bytes and checks them."""
    try:
        data, checksums = manifest["data"], dict(manifest["checksums"])
        if not DATA_FOLDER.fullmatch(data):
            raise ValueError(f"bad data folder {data!r}")
        optional = [IVF_FILE] if IVF_FILE in checksums else []
        for name in (VECTORS_FILE, TEXTS_FILE, *(f"{name}.npy" for name in ARRAYS), *optional):
            if not (folder / data / name).exists():
                raise DamagedIndex(folder, f"{data}/{name} is missing")
            if verify and checksum(folder / data / name) != checksums[name]:
                raise DamagedIndex(folder, f"{data}/{name} does not match its checksum: it was changed or cut short")
        arrays = {name: _map_array(folder / data / f"{name}.npy") for name in (*ARRAYS, "vectors")}
        arrays["texts"] = np.memmap(folder / data / TEXTS_FILE, np.uint8, "r")
        _check_shapes(arrays)
        if sum(file["passages"] for file in manifest["files"]) != len(arrays["lines"]):
            raise ValueError("the manifest and the arrays have different numbers of passages")
    except FileNotFoundError as error:
        raise DamagedIndex(folder, f"{error.filename} is missing") from None
    except (QkvError, MemoryError, OSError):  # such as too many open files
        raise
    except Exception as error:  # NumPy's parser of headers raises almost anything, such as a TokenError
        if not verify:
            return read_arrays(folder, manifest)  # the checksums tell which file is damaged
        raise DamagedIndex(folder, f"its files do not match {MANIFEST_FILE} ({error})") from None
    return arrays


def _map_array(path: Path) -> np.ndarray:
    return np.load(path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]


def _check_shapes(arrays: dict[str, np.ndarray]) -> None:
    """Raise ValueError if the arrays do not belong together, or if a number in them is out of range of an array."""
    num, words = len(arrays["lines"]), len(arrays["word_starts"]) - 1
    shapes = {"text_starts": (num + 1,), "lines": (num, 2), "passage_words": (num,), "posting_starts": (words + 1,)}
    for name, dtype in ARRAYS.items():
        array = arrays[name]
        if array.dtype != dtype or array.shape != shapes.get(name, (array.size,)):
            raise ValueError(f"{name} has dtype {array.dtype} and shape {array.shape}")
    vectors = arrays["vectors"]
    if vectors.ndim != 2 or len(vectors) != num or str(vectors.dtype) not in VECTOR_DTYPES:
        raise ValueError(f"vectors have dtype {vectors.dtype} and shape {vectors.shape}")
    ends = {"text_starts": "texts", "word_starts": "word_bytes", "posting_starts": "posting_passages"}
    for name, target in ends.items():
        starts = arrays[name]
        if starts[0] != 0 or starts[-1] != len(arrays[target]) or (np.diff(starts) < 0).any():
            raise ValueError(f"{name} does not match {target}")
    if len(arrays["posting_counts"]) != len(arrays["posting_passages"]):
        raise ValueError("posting_counts does not match posting_passages")
    passages = arrays["posting_passages"]
    if passages.size and not (passages.min() >= 0 and passages.max() < num):
        raise ValueError("posting_passages has a number that is out of range")


def checksum(path: Path) -> str:
    """The SHA-256 of a file."""
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def lock_for_writing(folder: Path) -> Iterator[None]:
    """Create the folder if needed, and lock it. Raises an error if the folder has other files, but no index."""
    if folder.exists() and not folder.is_dir():
        raise QkvError(f"{folder}: this is a file, but an index is a folder; choose another path")
    is_new = not folder.exists()
    names = set() if is_new else {path.name for path in folder.iterdir()}
    others = {name for name in names - {LOCK_FILE, MANIFEST_PARTIAL} if not DATA_FOLDER.fullmatch(name)}
    if others and MANIFEST_FILE not in others:
        raise QkvError(f"{folder}: this folder contains other files, but no index; choose an empty or new folder")
    with report_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK_FILE)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            raise QkvError(f"{folder}: another process is writing this index; wait until it has finished") from None
    try:
        yield
    finally:
        if {path.name for path in folder.iterdir()} <= {LOCK_FILE}:  # nothing was written
            with suppress(OSError):  # Windows does not remove an open file
                (folder / LOCK_FILE).unlink()
                if is_new:
                    folder.rmdir()
        lock.release()


@contextmanager
def write_data(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield a new data folder to write into, and a manifest to fill in; then publish both.

    If the block fails, the index stays as it was. The caller holds the lock.
    """
    old = [path for path in folder.iterdir() if DATA_FOLDER.fullmatch(path.name)]
    number = max((int(path.name.removeprefix("data-")) for path in old), default=0) + 1
    data = folder / f"data-{number:06d}"
    manifest: dict[str, Any] = {"version": VERSION, "data": data.name}
    with report_write_errors(folder):
        data.mkdir()
        try:
            yield data, manifest
            for path in data.iterdir():
                with path.open("rb+") as file:
                    os.fsync(file.fileno())
            sync_folder(data)
            manifest["checksums"] = {path.name: checksum(path) for path in sorted(data.iterdir())}
            write_atomically(folder / MANIFEST_FILE, seal_json(manifest))
        except BaseException:
            if not _is_published(folder, data.name):
                shutil.rmtree(data, ignore_errors=True)
            (folder / MANIFEST_PARTIAL).unlink(missing_ok=True)
            raise
        sync_folder(folder)
    for path in old:
        shutil.rmtree(path, ignore_errors=True)


def _is_published(folder: Path, data_name: str) -> bool:
    """Whether the manifest names this data folder: an interrupt may come just after the rename."""
    path = folder / MANIFEST_FILE
    return path.exists() and f'"data": "{data_name}"'.encode() in path.read_bytes()
