"""Build or update an index: read the files, split them into passages, embed the passages that are new."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from qkv.errors import QkvError, UsageError, suggest_name
from qkv.files import to_path
from qkv.progress import OnStage
from qkv.search import approximate
from qkv.search.embedder import BATCHES_PER_CHUNK, Embedder
from qkv.search.folder import (
    IVF_FILE,
    MANIFEST_FILE,
    TEXTS_FILE,
    VECTOR_DTYPES,
    VECTORS_FILE,
    lock_for_writing,
    read_arrays,
    read_manifest,
    write_data,
)
from qkv.search.passages import Passage, decode_source, find_files, read_source, split_passages
from qkv.text.bm25 import InvertedIndexBuilder


@dataclass(frozen=True)
class BuildReport:
    """The result of a build: counts of files and passages."""

    files: int  # in the index now
    passages: int
    embedded_files: int  # new and changed files
    embedded_passages: int
    removed_files: int  # files that only the old index had
    skipped: dict[str, str]  # files that are not in the index, and why
    notes: list[str]


class OldIndex:
    """The passages and vectors of the index that is replaced, by the checksums of their files."""

    def __init__(self, folder: Path) -> None:
        self.manifest = read_manifest(folder)
        self.arrays = read_arrays(folder, self.manifest)
        self.names = {file["name"] for file in self.manifest["files"]}
        counts = [file["passages"] for file in self.manifest["files"]]
        starts = [0, *accumulate(counts)]
        self.ranges = {
            file["sha256"]: (start, start + file["passages"])
            for file, start in zip(self.manifest["files"], starts, strict=False)
        }

    def passages(self, first: int, last: int) -> list[Passage]:
        """The passages with these numbers."""
        starts, lines = self.arrays["text_starts"], self.arrays["lines"]
        return [
            Passage(bytes(self.arrays["texts"][starts[i] : starts[i + 1]]).decode(), int(lines[i, 0]), int(lines[i, 1]))
            for i in range(first, last)
        ]


@dataclass(frozen=True)
class IndexedFile:
    """A file of the new index."""

    name: str
    checksum: str
    num_passages: int
    old_range: tuple[int, int] | None  # the numbers of its passages in the old index, if it is unchanged


class DataWriter:
    """Writes the data folder of an index: passages, their words and vectors."""

    def __init__(self, data: Path, embedder: Embedder, old: OldIndex | None, progress: OnStage | None) -> None:
        self.data, self.embedder, self.old = data, embedder, old
        self.progress: OnStage = progress or (lambda stage, done, total: None)
        self.files: list[IndexedFile] = []
        self.skipped: dict[str, str] = {}  # files without text, and why
        self.lines: list[tuple[int, int]] = []  # the first and last line of each passage
        self.text_starts = [0]

    def write_passages(self, root: Path, names: Sequence[str], max_tokens: int, may_be_picture: bool) -> None:
        """Split the files into passages of at most `max_tokens` tokens, and write their text, lines and words."""
        words = InvertedIndexBuilder()
        with (self.data / TEXTS_FILE).open("wb") as texts:
            for number, name in enumerate(names):
                try:
                    name.encode()
                    content = read_source(root / name, may_be_picture=may_be_picture)
                    file, passages = self._split_file(name, content, max_tokens)
                except (QkvError, UnicodeEncodeError) as error:
                    reason = str(error) if isinstance(error, QkvError) else "its name is not UTF-8"
                    self.skipped[name.encode(errors="replace").decode()] = reason
                    continue
                self.files.append(file)
                for passage in passages:
                    encoded = passage.text.encode()
                    texts.write(encoded)
                    self.text_starts.append(self.text_starts[-1] + len(encoded))
                    self.lines.append((passage.first_line, passage.last_line))
                    words.add(passage.text)
                self.progress("reading", number + 1, len(names))
        if not self.lines:
            return
        arrays = words.arrays() | {
            "text_starts": np.array(self.text_starts, np.int64),
            "lines": np.array(self.lines, np.int32),
        }
        for array_name, array in arrays.items():
            np.save(self.data / f"{array_name}.npy", array, allow_pickle=False)

    def _split_file(self, name: str, content: bytes, max_tokens: int) -> tuple[IndexedFile, list[Passage]]:
        """The passages of a file, from the old index if it has a file with the same content."""
        checksum = sha256(content).hexdigest()
        old_range = None if self.old is None else self.old.ranges.get(checksum)
        if self.old is not None and old_range is not None:
            passages = self.old.passages(*old_range)
        else:
            passages = split_passages(decode_source(content), self.embedder.count_tokens, max_tokens)
        return IndexedFile(name, checksum, len(passages), old_range), passages

    def write_vectors(self, dtype: str) -> None:
        """Write the vectors of all passages: copy the vectors of unchanged files, and embed the other passages."""
        shape = (len(self.lines), len(self.embedder.fingerprint))
        path = self.data / VECTORS_FILE
        vectors = np.lib.format.open_memmap(path, "w+", np.dtype(dtype), shape)
        if hasattr(os, "posix_fallocate"):  # else a full disk kills the process when it writes to the mapped memory
            with path.open("rb+") as allocated:
                os.posix_fallocate(allocated.fileno(), 0, path.stat().st_size)
        pending: list[int] = []
        first = 0
        for file in self.files:
            last = first + file.num_passages
            if self.old is None or file.old_range is None:
                pending += range(first, last)
            else:
                vectors[first:last] = self.old.arrays["vectors"][slice(*file.old_range)]
            first = last
        texts, starts = np.memmap(self.data / TEXTS_FILE, np.uint8, "r"), self.text_starts
        size = BATCHES_PER_CHUNK * self.embedder.batch_size
        for done in range(0, len(pending), size):
            self.progress("embedding", done, len(pending))
            chunk = pending[done : done + size]
            vectors[chunk] = self.embedder.embed([bytes(texts[starts[i] : starts[i + 1]]).decode() for i in chunk])
        if pending:
            self.progress("embedding", len(pending), len(pending))
        vectors.flush()

    def write_ivf(self) -> list[str]:
        """Write the inverted file of the vectors, if there are many. Returns a note if faiss is not installed."""
        vectors = np.load(self.data / VECTORS_FILE, mmap_mode="r", allow_pickle=False)
        if len(vectors) <= approximate.MAX_EXACT_VECTORS:
            return []
        if not approximate.has_faiss():
            return [approximate.exact_search_note(len(vectors))]
        approximate.write_ivf(self.data / IVF_FILE, vectors, partial(self.progress, "clustering"))
        return []


def build_index(
    source: str | Path,
    folder: str | Path,
    embedder: Embedder,
    *,
    max_tokens: int,
    dtype: str = "float32",
    rebuild: bool = False,
    progress: OnStage | None = None,
) -> BuildReport:
    """Write the index of a folder or file. If the folder has an index, embed only new and changed files.

    An existing index must have the same model and source; the source may have moved. `rebuild` ignores and replaces an
    existing index.
    """
    if dtype not in VECTOR_DTYPES:
        raise UsageError(f"dtype = {dtype!r} is unknown; {suggest_name(str(dtype), VECTOR_DTYPES)}")
    folder = to_path(folder)
    max_passage_tokens = embedder.max_passage_tokens(max_tokens)
    root, names = find_files(source, excluded=folder)
    settings: dict[str, Any] = {"max_tokens": max_tokens, "dtype": dtype, "pooling": embedder.pooling}
    with lock_for_writing(folder):
        old = OldIndex(folder) if (folder / MANIFEST_FILE).exists() and not rebuild else None
        if old is not None:
            remedy = "use the model that built it, choose another folder, or replace the index with --rebuild"
            embedder.check_same_model(old.manifest["fingerprint"], str(folder), remedy)
            _check_source(old.manifest["source"], source, folder)
            if {name: old.manifest[name] for name in settings} != settings:
                old.ranges = {}
        with write_data(folder) as (data, manifest):
            writer = DataWriter(data, embedder, old, progress)
            writer.write_passages(root, names, max_passage_tokens, may_be_picture=to_path(source).is_file())
            if not writer.lines:
                why = "".join(f"; {name}: {reason}" for name, reason in list(writer.skipped.items())[:1])
                raise QkvError(f"{source}: no text found in {len(names):,} files{why}; give a folder with text files")
            writer.write_vectors(dtype)
            notes = writer.write_ivf()
            files = writer.files
            manifest |= settings | {
                "source": _absolute_source(source),
                "root": str(root),
                "model": embedder.name or (old.manifest["model"] if old is not None else ""),
                "fingerprint": embedder.fingerprint.tolist(),
                "files": [
                    {"name": file.name, "sha256": file.checksum, "passages": file.num_passages} for file in files
                ],
            }
    embedded = [file.num_passages for file in files if file.old_range is None]
    return BuildReport(
        files=len(files),
        passages=len(writer.lines),
        embedded_files=len(embedded),
        embedded_passages=sum(embedded),
        removed_files=len(old.names - {file.name for file in files}) if old is not None else 0,
        skipped=writer.skipped,
        notes=notes,
    )


def _absolute_source(source: str | Path) -> str:
    return str(to_path(source).resolve())


def _check_source(old: str, source: str | Path, folder: Path) -> None:
    """Raise an error if an index of other files, which still exist, would be overwritten."""
    if old != _absolute_source(source) and Path(old).exists():
        raise UsageError(
            f"{folder}: this is the index of {old}, not of {source}; choose another folder for the index, or add "
            "--rebuild to replace it"
        )
