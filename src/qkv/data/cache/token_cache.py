"""The token cache: files are tokenized once, and then read from memory-mapped arrays.

    cache = token_cache(DataFiles("train.jsonl"), encode, "cache")   # built the first time, found the next
    cache[7]["ids"]                                                  # int32, copied from the mapped file
    flat, offsets = cache.gather("ids", indices)                     # many examples

The name of a cache is a hash of the content of the files, the reading options, the validation split and the encoder's
fingerprint. If one of these changes, another cache is used, so a cache is never out of date. The module `folder`
describes the files of a cache, and `writer` writes them.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from qkv.data.cache.examples import EncodedExamples
from qkv.data.cache.file_hashes import FileHashes
from qkv.data.cache.folder import (
    CACHE_VERSION,
    DISK_DTYPES,
    DamagedCache,
    build_lock,
    building_folder,
    field_file,
    location_file,
    read_meta,
    remove_stale_builds,
    write_meta,
)
from qkv.data.cache.writer import RecordEncoder, write_token_cache
from qkv.data.problems import Problems
from qkv.data.readers import DataFiles
from qkv.data.records import FileLocation, Record
from qkv.data.split import SplitName, ValidationSplit
from qkv.errors import QkvError
from qkv.files import describe_os_error
from qkv.progress import OnProgress

__all__ = ["DamagedCache", "RecordEncoder", "TokenCache", "find_or_build", "token_cache"]


class TokenCache(EncodedExamples):
    """Random access to encoded examples on disk.

    Pickling a cache is cheap: only the path of the folder is stored, and the files are mapped again when it is loaded.
    """

    def __init__(self, folder: Path, meta: dict[str, Any]):
        """Use `open`, `build` or `token_cache`."""
        super().__init__(meta["examples"], meta["order"])
        self.folder = folder
        self.meta = meta
        for name in self.fields:
            field = meta["fields"][name]
            offsets = field_file(folder, name, "offsets")
            row_shape = tuple(field.get("row_shape", ()))
            path = field_file(folder, name, "tokens")
            self._tokens[name] = _map_file(path, field["dtype"], field["tokens"], row_shape)
            self._offsets[name] = _map_file(offsets, "int64", self._count + 1)
            self._lengths[name] = _map_file(field_file(folder, name, "lengths"), "int32", self._count)
            if self._offsets[name][0] != 0 or self._offsets[name][-1] != field["tokens"]:
                raise DamagedCache(f"{offsets} does not match the number of tokens in meta.json")
        self._files = _map_file(location_file(folder, "files"), "int32", self._count)
        self._lines = _map_file(location_file(folder, "lines"), "int64", self._count)

    @classmethod
    def open(cls, folder: str | Path) -> "TokenCache":
        """Open a cache; raises `DamagedCache` if a file is missing or has the wrong size."""
        return cls(Path(folder), read_meta(Path(folder)))

    @classmethod
    def build(
        cls,
        records: Iterable[Record],
        encode: RecordEncoder,
        folder: str | Path,
        *,
        content: str = "",
        problems: Problems | None = None,
        workers: int = 2,
        progress: OnProgress | None = None,
    ) -> "TokenCache":
        """Encode records into a new cache in `folder`, which replaces an older cache atomically.

        `content` is a hash that identifies the records; it is stored. Up to `workers` batches are encoded at a time.
        `progress` is called with the number of examples so far. Invalid records are reported to `problems`, and the
        reports are stored with the cache, so that they are repeated when the cache is reused.
        """
        with build_lock(Path(folder)):
            return _build(Path(folder), records, encode, content, problems or Problems(), workers, progress)

    def location(self, index: int) -> FileLocation:
        """The file and line that an example came from."""
        return FileLocation(self.meta["location"]["names"][self._files[index]], int(self._lines[index]))

    @property
    def fingerprint(self) -> str:
        """A hash of the records and of the encoder. Equal examples have equal fingerprints."""
        return cache_name(self.meta["content"], self.meta["encode"])

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenCache.open, (self.folder,)

    def __repr__(self) -> str:
        tokens = ", ".join(f"{name}: {self.meta['fields'][name]['tokens']:,}" for name in self.fields)
        return f"TokenCache({self._count:,} examples, {tokens} tokens, {str(self.folder)!r})"


def token_cache(
    files: DataFiles,
    encode: RecordEncoder,
    root: str | Path,
    *,
    split: ValidationSplit | None = None,
    split_name: SplitName = "train",
    problems: Problems | None = None,
    workers: int = 2,
    trust_mtime: bool = True,
    progress: OnProgress | None = None,
) -> TokenCache:
    """Open the cache of these files and this encoder in `root`, or build it there.

    Problems in the files are reported to `problems` in both cases. If two processes need the same cache, the second
    waits for the first. `progress` is called with the number of bytes read and the total. With `trust_mtime`, a file
    whose path, size and modification time are the same as before is not hashed again (see `file_hashes`).
    """
    root = Path(root)
    problems = problems if problems is not None else Problems()
    hashes = FileHashes(root / "contents.json", trust_mtime)
    key: dict[str, Any] = {"files": files.content_key(hashes.get)}
    if split is not None:
        key |= {"split": split.to_dict(), "split_name": split_name}
    content = blake2b(json.dumps(key, sort_keys=True).encode(), digest_size=16).hexdigest()

    def records(found: Problems) -> Iterator[Record]:
        yield from files.split_records(split, split_name, found, progress)
        hashes.check_unchanged()

    return find_or_build(root, content, encode, records, problems=problems, workers=workers)


def find_or_build(
    root: Path,
    content: str,
    encode: RecordEncoder,
    records: Callable[[Problems], Iterable[Record]],
    *,
    problems: Problems,
    workers: int = 2,
    progress: OnProgress | None = None,
) -> TokenCache:
    """The cache of `content` with this encoder in `root`; if it is missing or damaged, build it from `records`.

    `content` identifies the records: it must change whenever the records change.
    """
    folder = root / cache_name(content, encode.fingerprint)
    cache = _open_existing(folder, problems)  # not under the lock, because the disk may be read-only
    if cache is not None:
        return cache
    remove_stale_builds(root)
    with build_lock(folder):
        cache = _open_existing(folder, problems)  # another process may have built it while this one waited
        if cache is not None:
            return cache
        # The problems of this cache, which are stored in it.
        found = Problems(problems.max_invalid_fraction, problems.max_samples)
        try:
            return _build(folder, records(found), encode, content, found, workers, progress)
        finally:
            problems.merge(found.summary().to_dict())


def _build(
    folder: Path,
    records: Iterable[Record],
    encode: RecordEncoder,
    content: str,
    problems: Problems,
    workers: int,
    progress: OnProgress | None,
) -> TokenCache:
    """Build a cache. The caller must hold the lock."""
    with building_folder(folder) as building:
        meta = write_token_cache(building, records, encode, problems, workers, progress)
        if not meta["examples"]:  # do not report the fraction, which counts the other side of a split, too
            raise QkvError(f"no record can be used for training:\n{problems.summary().describe_categories()}")
        problems.finish()
        key = {"content": content, "encode": encode.fingerprint, "order": list(encode.fields)}
        write_meta(building, {**meta, **key, "problems": problems.summary().to_dict()})
    return TokenCache.open(folder)


def _open_existing(folder: Path, problems: Problems) -> TokenCache | None:
    """Open a cache and report the problems stored in it; None if the cache is missing or damaged."""
    if not folder.exists():
        return None
    try:
        cache = TokenCache.open(folder)
    except DamagedCache as damage:
        problems.note("damaged token cache", FileLocation(str(folder)), f"{damage}; the cache is built again")
        return None
    problems.merge(cache.meta["problems"])
    problems.finish()
    return cache


def cache_name(content: str, fingerprint: str) -> str:
    """The name of the folder of a cache: a hash of `content`, the encoder's fingerprint and the format's version."""
    return blake2b(json.dumps([CACHE_VERSION, content, fingerprint]).encode(), digest_size=12).hexdigest()


def _map_file(path: Path, dtype: str, count: int, row_shape: tuple[int, ...] = ()) -> np.ndarray:
    """Memory-map a file as a read-only array, after checking its size."""
    disk_dtype, shape = np.dtype(DISK_DTYPES[dtype]), (count, *row_shape)
    try:
        size, expected = path.stat().st_size, int(np.prod(shape)) * disk_dtype.itemsize
        if size != expected:
            raise DamagedCache(f"{path} has {size:,} bytes, but should have {expected:,}")
        if expected == 0:
            return np.zeros(shape, disk_dtype)
        return np.memmap(path, disk_dtype, "r", shape=shape).view(np.ndarray)
    except OSError as error:
        raise DamagedCache(f"{path} cannot be read: {describe_os_error(error)}") from None
