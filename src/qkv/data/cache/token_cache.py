"""The token cache: every file is tokenised once, and read back from memory-mapped arrays.

    cache = token_cache(Files("train.jsonl"), encode, "cache")   # built the first time, found the next
    cache[7]["ids"]                                              # int32, a copy of a few bytes of a mapped file
    flat, offsets = cache.gather("ids", indices)                 # many at once

A cache belongs to the content of the files, to how they are read and split, and to the encode's fingerprint: the
three make its name, so a change of any gives another cache, and nothing is ever out of date. `cache_folder` has the
files' format, `cache_writer` the building.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from qkv.data.cache.file_hashes import FileHashes
from qkv.data.cache.folder import (
    CACHE_VERSION,
    DISK_DTYPES,
    DamagedCache,
    build_lock,
    field_file,
    read_meta,
    remove_stale_builds,
    replaced,
    write_meta,
)
from qkv.data.cache.writer import Encode, write_token_cache
from qkv.data.problems import Problems
from qkv.data.ragged import ragged_index
from qkv.data.readers import DataFiles
from qkv.data.records import FileLocation, Record
from qkv.data.split import SplitName, ValidationSplit
from qkv.errors import QkvError, UsageError, suggest_name

__all__ = ["DamagedCache", "Encode", "TokenCache", "find_or_build", "token_cache"]

CacheProgress = Callable[[int, int], None]

MIN_TOKENS_TO_COPY = (
    64  # tokens of an example from which on copying one after the other beats fetching by index (measured)
)


class TokenCache:
    """Random access to encoded examples on disk.

    Cheap to hand to other processes: what travels is the folder's name, and each process maps the files itself.
    """

    def __init__(self, folder: Path, meta: dict[str, Any]):
        """Use `open`, `build` or `token_cache`."""
        self.folder = folder
        self.meta = meta
        self.fields: tuple[str, ...] = tuple(meta["order"])
        self._count: int = meta["examples"]
        self._tokens: dict[str, np.ndarray] = {}
        self._offsets: dict[str, np.ndarray] = {}
        self._lengths: dict[str, np.ndarray] = {}
        for name in self.fields:
            field = meta["fields"][name]
            paths = {part: field_file(folder, name, part) for part in ("tokens", "offsets", "lengths")}
            self._tokens[name] = _map_file(paths["tokens"], field["dtype"], field["tokens"])
            self._offsets[name] = _map_file(paths["offsets"], "int64", self._count + 1)
            self._lengths[name] = _map_file(paths["lengths"], "int32", self._count)
            if self._offsets[name][0] != 0 or self._offsets[name][-1] != field["tokens"]:
                raise DamagedCache(f"{paths['offsets']} does not fit its tokens")
        self._files = _map_file(folder / "where.files.bin", "int32", self._count)
        self._lines = _map_file(folder / "where.lines.bin", "int64", self._count)

    @classmethod
    def open(cls, folder: str | Path) -> "TokenCache":
        """Open a cache; `DamagedCache` if its files are not as long as they were written."""
        return cls(Path(folder), read_meta(Path(folder)))

    @classmethod
    def build(
        cls,
        records: Iterable[Record],
        encode: Encode,
        folder: str | Path,
        *,
        content: str = "",
        problems: Problems | None = None,
        workers: int = 2,
        progress: CacheProgress | None = None,
    ) -> "TokenCache":
        """Encode records into `folder`, replacing what was there; all of it appears at once, or nothing.

        `content` is remembered as what the records were made from. `workers` batches are encoded at a time;
        `progress` hears of examples done. Bad records go to `problems`, and into the cache, which tells of them again
        when it is reused.
        """
        folder = Path(folder)
        with build_lock(folder):
            return cls._build(records, encode, folder, content, problems or Problems(), workers, progress)

    @classmethod
    def _build(
        cls,
        records: Iterable[Record],
        encode: Encode,
        folder: Path,
        content: str,
        problems: Problems,
        workers: int,
        progress: CacheProgress | None,
    ) -> "TokenCache":
        with replaced(folder) as temporary:
            meta = write_token_cache(temporary, records, encode, problems, workers, progress)
            problems.finish()
            if not meta["examples"]:
                raise QkvError(f"no usable examples: {problems.summary()}")
            made = {"content": content, "encode": encode.fingerprint, "order": list(encode.fields)}
            write_meta(temporary, {**meta, **made, "problems": problems.summary().to_dict()})
        return cls.open(folder)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        """One example: each field a fresh array, int32 (float32 for a field of fractions).

        >>> cache[0]["ids"]                                     # doctest: +SKIP
        """
        if index < 0:
            index += self._count
        if not 0 <= index < self._count:
            raise IndexError(f"example {index} of {self._count}")
        example = {}
        for name in self.fields:
            offsets, tokens = self._offsets[name], self._tokens[name]
            example[name] = tokens[offsets[index] : offsets[index + 1]].astype(_output_dtype(tokens))
        return example

    def lengths(self, field: str) -> np.ndarray:
        """(N,) int32: the length of every example in one field, mapped from the disk."""
        self._check_field(field)
        return self._lengths[field]

    def gather(
        self, field: str, indices: np.ndarray, starts: np.ndarray | None = None, counts: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """One field of many examples, or of a slice of each: (flat tokens, n + 1 offsets into them).

        Example `indices[i]` gives its tokens `starts[i] … starts[i] + counts[i]`; all of them where these are not
        given.

        >>> flat, offsets = cache.gather("ids", np.array([3, 1]))      # doctest: +SKIP
        >>> flat[offsets[1] : offsets[2]]                               # example 1     # doctest: +SKIP
        """
        self._check_field(field)
        indices = np.asarray(indices, np.int64)
        if indices.size and not (indices.min() >= 0 and indices.max() < self._count):
            raise IndexError(f"examples {indices.min()} … {indices.max()} of {self._count}")
        length = self._lengths[field][indices]
        begin = self._offsets[field][indices]
        if starts is not None or counts is not None:
            starts = np.zeros(len(indices), np.int64) if starts is None else np.asarray(starts, np.int64)
            counts = length - starts if counts is None else np.asarray(counts, np.int64)
            if not ((starts >= 0) & (counts >= 0) & (starts + counts <= length)).all():
                raise IndexError(f"a slice of {field!r} reaches beyond its example")
            begin, length = begin + starts, counts
        offsets = np.zeros(len(indices) + 1, np.int64)
        np.cumsum(length, out=offsets[1:])
        return _gather_slices(self._tokens[field], begin, length, offsets), offsets

    def location(self, index: int) -> FileLocation:
        """The file and line that an example came from.

        >>> str(cache.location(7))                                  # doctest: +SKIP
        'train.jsonl:8'
        """
        return FileLocation(self.meta["where"]["names"][self._files[index]], int(self._lines[index]))

    @property
    def fingerprint(self) -> str:
        """The same for the same examples: what they were made from and how they were encoded."""
        return cache_name(self.meta["content"], self.meta["encode"])

    def verify(self) -> None:
        """Read every byte and compare it with the checksums; `DamagedCache` names the file that does not match."""
        for name in self.fields:
            for part, expected in self.meta["fields"][name]["files"].items():
                _verify_checksum(field_file(self.folder, name, part), expected["checksum"])
        for part, expected in self.meta["where"]["files"].items():
            _verify_checksum(self.folder / f"where.{part}.bin", expected["checksum"])

    def _check_field(self, field: str) -> None:
        if field not in self._tokens:
            raise UsageError(f"the encoded examples have no field {field!r}; {suggest_name(field, self.fields)}")

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenCache.open, (self.folder,)

    def __repr__(self) -> str:
        tokens = ", ".join(f"{name}: {self.meta['fields'][name]['tokens']:,}" for name in self.fields)
        return f"TokenCache({self._count:,} examples, {tokens} tokens, {str(self.folder)!r})"


def token_cache(
    files: DataFiles,
    encode: Encode,
    root: str | Path,
    *,
    split: ValidationSplit | None = None,
    split_name: SplitName = "train",
    problems: Problems | None = None,
    workers: int = 2,
    trust_mtime: bool = True,
    progress: CacheProgress | None = None,
) -> TokenCache:
    """The cache of these files under this encode: found in `root`, or built there.

    What was bad in the files goes to `problems` either way. Two processes that ask for the same cache get the same
    one: the second waits for the first. `progress` hears of bytes read and bytes in all. `trust_times` takes a file
    whose path, size and time of change are as before for unchanged without reading it (see `content`).
    """
    root = Path(root)
    problems = problems if problems is not None else Problems()
    contents = FileHashes(root / "contents.json", trust_mtime)
    made_from: dict[str, Any] = {"files": files.content_key(contents.get)}
    if split is not None:
        made_from |= {"split": split.to_dict(), "side": split_name}
    content = blake2b(json.dumps(made_from, sort_keys=True).encode(), digest_size=16).hexdigest()

    def records(met: Problems) -> Iterator[Record]:
        if split is None:
            yield from files.records(met, progress)
        else:
            counted = iter(
                [met] if split.split_by == "content" else [Problems(max_invalid_fraction=1), met]
            )  # bad data once only
            yield from split.records(lambda: files.records(next(counted), progress), split_name)
        contents.check_unchanged()

    return find_or_build(root, content, encode, records, problems=problems, workers=workers)


def find_or_build(
    root: Path,
    content: str,
    encode: Encode,
    records: Callable[[Problems], Iterable[Record]],
    *,
    problems: Problems,
    workers: int = 2,
    progress: CacheProgress | None = None,
) -> TokenCache:
    """The cache of `content` under `encode` in `root`; where there is none, or a damaged one, it is built from
    `records`.

    For records that are not in files (a generator): `content` must change whenever they would.
    """
    folder = root / cache_name(content, encode.fingerprint)
    cache = _open_existing(
        folder, problems
    )  # without the lock: a complete cache needs none, and may be on a read-only disk
    if cache is not None:
        return cache
    remove_stale_builds(root)
    with build_lock(folder):
        cache = _open_existing(folder, problems)  # another process may have built it while we waited
        if cache is not None:
            return cache
        met = Problems(problems.max_invalid_fraction, problems.max_samples)  # of this cache alone, to be stored in it
        try:
            return TokenCache._build(records(met), encode, folder, content, met, workers, progress)
        finally:
            problems.merge(met.summary().to_dict())


def _open_existing(folder: Path, problems: Problems) -> TokenCache | None:
    """The cache that is there, with what was bad when it was built; None if there is none, or a damaged one."""
    if not folder.exists():
        return None
    try:
        cache = TokenCache.open(folder)
    except DamagedCache as damage:
        problems.note("damaged token cache", FileLocation(str(folder)), f"{damage}; it is built again")
        return None
    problems.merge(cache.meta["problems"])
    problems.finish()
    return cache


def cache_name(content: str, fingerprint: str) -> str:
    """A cache's folder name: the same for the same content and encode, in this version of the format."""
    return blake2b(json.dumps([CACHE_VERSION, content, fingerprint]).encode(), digest_size=12).hexdigest()


def _map_file(path: Path, dtype: str, count: int) -> np.ndarray:
    """A file as a read-only array that the system pages in, after checking that it is as long as it should be."""
    kind = np.dtype(DISK_DTYPES[dtype])
    try:
        size = path.stat().st_size
        if size != count * kind.itemsize:
            raise DamagedCache(f"{path} has {size:,} bytes where {count * kind.itemsize:,} were written")
        if count == 0:
            return np.zeros(0, kind)
        return np.memmap(path, kind, "r", shape=(count,)).view(np.ndarray)
    except OSError as error:
        raise DamagedCache(f"{path} cannot be read: {error.strerror or error}") from None


def _output_dtype(tokens: np.ndarray) -> type[np.float32] | type[np.int32]:
    """The type that callers get, whatever is on the disk."""
    return np.float32 if tokens.dtype.kind == "f" else np.int32


def _gather_slices(tokens: np.ndarray, begin: np.ndarray, length: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """The stretches of `tokens` from each of `begin` on, end to end."""
    if offsets[-1] < MIN_TOKENS_TO_COPY * len(begin):
        fetched: np.ndarray = tokens[ragged_index(begin, length)]
        return fetched.astype(_output_dtype(tokens), copy=False)
    flat = np.empty(offsets[-1], _output_dtype(tokens))  # indices would take four times the memory of what they fetch
    for place, start, count in zip(offsets.tolist(), begin.tolist(), length.tolist(), strict=False):
        flat[place : place + count] = tokens[start : start + count]
    return flat


def _verify_checksum(path: Path, checksum: str) -> None:
    hashed = blake2b(digest_size=16)
    try:
        with path.open("rb") as source:
            while block := source.read(2**20):
                hashed.update(block)
    except OSError as error:
        raise DamagedCache(f"{path} cannot be read: {error.strerror or error}") from None
    if hashed.hexdigest() != checksum:
        raise DamagedCache(f"{path} does not match its checksum: a byte has changed since it was written")
