"""Readers: the user's files, whatever their format, as a stream of records.

    for record in read("train.jsonl", columns={"source": "en", "target": "de"}):
        record.fields["source"], record.where

`Files` says which files and how to read them, and can be read again; `read` is the short form for once. One module
here holds one format; `find` turns names, globs and folders into files, `opening` and `lines` turn bytes into text.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields
from itertools import chain
from pathlib import Path
from typing import Any

from qkv.data.problems import Problems
from qkv.data.readers.aligned import read_aligned
from qkv.data.readers.columns import ColumnChoice, normalize_columns
from qkv.data.readers.conll import read_conll
from qkv.data.readers.decompress import ReadLimits
from qkv.data.readers.delimited import read_delimited
from qkv.data.readers.find_files import FileGroup, PathsArgument, find_file_groups, list_paths
from qkv.data.readers.hf_datasets import hf_dataset_fingerprint, read_hf_dataset
from qkv.data.readers.json_document import read_json
from qkv.data.readers.jsonl import read_jsonl
from qkv.data.readers.options import ReadContext, ReadOptions
from qkv.data.readers.parquet import read_parquet
from qkv.data.readers.text import read_text
from qkv.data.records import Record
from qkv.errors import QkvError, UsageError, suggest_name

__all__ = ["FORMATS", "ColumnChoice", "DataFiles", "PathsArgument", "ReadLimits", "ReadOptions", "read"]

FORMATS: dict[str, Callable[[FileGroup, ReadContext], Iterator[Record]]] = {
    "text": read_text,
    "csv": read_delimited,
    "tsv": read_delimited,
    "jsonl": read_jsonl,
    "json": read_json,
    "squad": read_json,
    "conll": read_conll,
    "conllu": read_conll,
    "aligned": read_aligned,
    "parquet": read_parquet,
    "datasets": read_hf_dataset,
}


@dataclass(frozen=True)
class DataFiles:
    """The user's files and how to read them.

    `paths` is a file, a glob, a folder, a list of these, or a mapping of field → file for files that go in step. The
    format is told by each file's extension unless `format` is given.

    >>> DataFiles({"source": "train.en", "target": "train.fr"})           # doctest: +SKIP
    >>> DataFiles.from_options("tweets/*.csv.gz", columns={"text": "tweet", "label": "mood"})      # doctest: +SKIP
    """

    paths: PathsArgument
    format: str | None = None
    options: ReadOptions = field(default_factory=ReadOptions)

    @classmethod
    def from_options(cls, paths: PathsArgument, format: str | None = None, **options: Any) -> "DataFiles":
        """Files with options by name, as a recipe writes them; a misspelt name is an error.

        >>> DataFiles.from_options("train.tsv", columns=["text"], header=True).options.columns
        {'text': 'text'}
        """
        known = [one.name for one in fields(ReadOptions)]
        for name in options:
            if name not in known:
                raise UsageError(f"unknown option {name!r} for reading files; {suggest_name(name, known)}")
        if isinstance(options.get("limits"), dict):
            options["limits"] = ReadLimits(**options["limits"])
        return cls(paths, format, ReadOptions(**{**options, "columns": normalize_columns(options.get("columns"))}))

    def __post_init__(self) -> None:
        if self.format is not None and self.format not in FORMATS:
            raise UsageError(f"unknown format {self.format!r}; {suggest_name(self.format, FORMATS)}")

    def find_groups(self, problems: Problems) -> list[FileGroup]:
        """The files found, in reading order, each with its format."""
        if self.format == "datasets":
            return [FileGroup("datasets", (Path(path),)) for path in list_paths(self.paths)]
        return find_file_groups(self.paths, self.format, problems)

    def records(self, problems: Problems, progress: Callable[[int, int], None] | None = None) -> Iterator[Record]:
        """All records, in order. `progress` hears of bytes done and bytes in all.

        Raises `QkvError` when there is nothing usable, or too much that is not (see `Problems`).
        """
        parts = self.find_groups(problems)
        total = sum(path.stat().st_size for part in parts for path in part.paths if path.is_file())
        done = 0

        def on_bytes(count: int) -> None:
            nonlocal done
            done += count
            if progress:
                progress(done, total)

        reading = ReadContext(self.options, problems, on_bytes)
        found = chain.from_iterable(FORMATS[part.format](part, reading) for part in parts)
        for first in found:
            yield first
            yield from found
            problems.finish()
            return
        problems.finish()
        raise QkvError(f"no usable records in {self.describe_paths()}\n{problems.summary()}")

    def describe_paths(self) -> str:
        """The paths, for a message."""
        return ", ".join(map(str, list_paths(self.paths)))

    def content_key(self, hash_file: Callable[[Path], str]) -> dict[str, Any]:
        """All that the records depend on, for a cache's key: what the files hold and how they are read."""
        parts = []
        for part in self.find_groups(Problems(max_invalid_fraction=1)):
            if part.format == "datasets":
                contents = [hf_dataset_fingerprint(str(part.paths[0]), self.options)]
            else:
                contents = [hash_file(path) for path in part.paths]
            parts.append([part.format, part.fields, contents])
        return {"parts": parts, "options": asdict(self.options)}


def read(
    paths: PathsArgument,
    *,
    problems: Problems | None = None,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Iterator[Record]:
    """Records of files in any known format; see `Files` for the paths and `Options` for the options.

    >>> for record in read({"source": "train.en", "target": "train.fr"}): ...   # doctest: +SKIP
    >>> for record in read("tweets.tsv", columns={"text": 0, "label": 1}): ...    # doctest: +SKIP
    """
    return DataFiles.from_options(paths, **options).records(problems or Problems(), progress)
