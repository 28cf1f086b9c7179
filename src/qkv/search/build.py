"""Build or update an index: read the files, split them into passages, embed the passages that are new."""

from collections.abc import Iterator
from dataclasses import dataclass, field
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
    CANDIDATES_FILE,
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


@dataclass
class BuildReport:
    """What a build did."""

    files: int = 0  # in the index now
    passages: int = 0
    embedded_files: int = 0  # new and changed files
    embedded_passages: int = 0
    removed_files: int = 0  # names that were in the index before and are not in it now
    skipped: dict[str, str] = field(default_factory=dict)  # files that are not in the index, and why
    notes: list[str] = field(default_factory=list)


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

    def passages(self, checksum: str) -> list[Passage]:
        """The passages of a file."""
        starts, lines = self.arrays["text_starts"], self.arrays["lines"]
        return [
            Passage(bytes(self.arrays["texts"][starts[i] : starts[i + 1]]).decode(), int(lines[i, 0]), int(lines[i, 1]))
            for i in range(*self.ranges[checksum])
        ]


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
    """Write the index of a folder or file. Files that an existing index has with the same content are not embedded.

    An existing index must be of the same model and source; the source may have moved. With `rebuild`, it is ignored and
    replaced.
    """
    if dtype not in VECTOR_DTYPES:
        raise UsageError(f"dtype = {dtype!r} is unknown; {suggest_name(str(dtype), VECTOR_DTYPES)}")
    folder = to_path(folder)
    passage_tokens = embedder.passage_tokens(max_tokens)
    root, names = find_files(source, excluded=folder)
    is_file = to_path(source).is_file()
    settings: dict[str, Any] = {"max_tokens": max_tokens, "dtype": dtype, "pooling": embedder.pooling}
    report = BuildReport()
    with lock_for_writing(folder):
        old = OldIndex(folder) if (folder / MANIFEST_FILE).exists() and not rebuild else None
        if old is not None:
            remedy = "give that model, choose another folder for the index, or add --rebuild to replace it"
            embedder.check_probe(old.manifest["probe"], str(folder), remedy)
            _check_source(old.manifest["source"], source, folder)
            if {name: old.manifest[name] for name in settings} != settings:
                old.ranges = {}
        with write_data(folder) as (data, manifest):
            words = InvertedIndexBuilder()
            files: list[dict[str, Any]] = []
            reused: list[tuple[int, int] | None] = []  # the old passages of each file, if it is unchanged
            lines, text_starts = [], [0]
            with (data / TEXTS_FILE).open("wb") as texts:
                for number, name in enumerate(names):
                    try:
                        name.encode()
                        content = read_source(root / name, may_be_picture=is_file)
                        checksum = sha256(content).hexdigest()
                        known = old.ranges.get(checksum) if old is not None else None
                        if old is not None and known is not None:
                            passages = old.passages(checksum)
                        else:
                            passages = split_passages(decode_source(content), embedder.count_tokens, passage_tokens)
                    except (QkvError, UnicodeEncodeError) as error:
                        reason = str(error) if isinstance(error, QkvError) else "its name is not UTF-8"
                        report.skipped[name.encode(errors="replace").decode()] = reason
                        continue
                    files.append({"name": name, "sha256": checksum, "passages": len(passages)})
                    reused.append(known)
                    for passage in passages:
                        encoded = passage.text.encode()
                        texts.write(encoded)
                        text_starts.append(text_starts[-1] + len(encoded))
                        lines.append((passage.first_line, passage.last_line))
                        words.add(passage.text)
                    if progress is not None:
                        progress("reading", number + 1, len(names))
            if not lines:
                why = "".join(f"; {name}: {reason}" for name, reason in list(report.skipped.items())[:1])
                raise QkvError(f"{source}: no text found in {len(names):,} files{why}; give a folder with text files")
            arrays = words.arrays() | {
                "text_starts": np.array(text_starts, np.int64),
                "lines": np.array(lines, np.int32),
            }
            for array_name, array in arrays.items():
                np.save(data / f"{array_name}.npy", array, allow_pickle=False)
            counts = [file["passages"] for file in files]
            _write_vectors(data, embedder, counts, reused, old, dtype, text_starts, progress)
            report.notes += _write_candidates(data, progress)
            manifest |= settings | {
                "source": _absolute_source(source),
                "root": str(root),
                "model": embedder.name or (old.manifest["model"] if old is not None else ""),
                "probe": embedder.probe.tolist(),
                "files": files,
            }
    report.files, report.passages = len(files), len(lines)
    fresh = [count for count, known in zip(counts, reused, strict=True) if known is None]
    report.embedded_files, report.embedded_passages = len(fresh), sum(fresh)
    report.removed_files = len(old.names - {file["name"] for file in files}) if old is not None else 0
    return report


def _write_vectors(
    data: Path,
    embedder: Embedder,
    counts: list[int],
    reused: list[tuple[int, int] | None],
    old: OldIndex | None,
    dtype: str,
    text_starts: list[int],
    progress: OnStage | None,
) -> None:
    """Write the vectors of all passages: copy those of unchanged files, and embed the others."""
    shape = (sum(counts), len(embedder.probe))
    vectors = np.lib.format.open_memmap(data / VECTORS_FILE, "w+", np.dtype(dtype), shape)
    pending: list[int] = []
    for first, count, known in zip(accumulate([0, *counts]), counts, reused, strict=False):
        if known is None or old is None:
            pending += range(first, first + count)
        else:
            vectors[first : first + count] = old.arrays["vectors"][known[0] : known[1]]
    texts = np.memmap(data / TEXTS_FILE, np.uint8, "r")
    done = 0
    if progress is not None and pending:
        progress("embedding", 0, len(pending))
    for chunk in _chunks(pending, BATCHES_PER_CHUNK * embedder.batch_size):
        vectors[chunk] = embedder.embed([bytes(texts[text_starts[i] : text_starts[i + 1]]).decode() for i in chunk])
        done += len(chunk)
        if progress is not None:
            progress("embedding", done, len(pending))
    vectors.flush()


def _write_candidates(data: Path, progress: OnStage | None) -> list[str]:
    """Write the inverted file of the vectors, if there are many. Returns a note if faiss is not installed."""
    vectors = np.load(data / VECTORS_FILE, mmap_mode="r", allow_pickle=False)
    if len(vectors) <= approximate.MAX_EXACT_VECTORS:
        return []
    if not approximate.has_faiss():
        return [approximate.exact_search_note(len(vectors))]
    stage = partial(progress, "clustering") if progress is not None else None
    approximate.write_candidates(data / CANDIDATES_FILE, vectors, stage)
    return []


def _absolute_source(source: str | Path) -> str:
    return str(to_path(source).resolve())


def _check_source(old: str, source: str | Path, folder: Path) -> None:
    """Raise an error if an index of other files, which still exist, would be overwritten."""
    if old != _absolute_source(source) and Path(old).exists():
        raise UsageError(
            f"{folder}: this is the index of {old}, not of {source}; choose another folder for the index, or add "
            "--rebuild to replace it"
        )


def _chunks(numbers: list[int], size: int) -> Iterator[list[int]]:
    for start in range(0, len(numbers), size):
        yield numbers[start : start + size]
