"""Readers: the user's files, whatever their format, as a stream of records.

    for record in read("train.jsonl", columns={"source": "en", "target": "de"}):
        record.fields["source"], record.location

`DataFiles` holds the paths and the options, and can be read repeatedly; `read` is its short form. Each module reads
one format; `find_files` expands names, globs and folders, `decompress` and `lines` turn bytes into text.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

from qkv.data.instructions import make_chat
from qkv.data.labels import clean_labels, split_words
from qkv.data.modalities import MODALITIES, load_texts
from qkv.data.pairs import pair_records
from qkv.data.problems import Problems
from qkv.data.readers.columns import ColumnChoice, normalize_columns
from qkv.data.readers.find_files import FileGroup, PathsArgument, find_file_groups, list_paths
from qkv.data.readers.formats import FORMATS, register_reader
from qkv.data.readers.hf_datasets import hf_dataset_fingerprint
from qkv.data.readers.joined_columns import expand_joined, join_columns
from qkv.data.readers.options import ReadContext, ReadLimits, ReadOptions
from qkv.data.records import Record
from qkv.data.span_tags import tag_spans
from qkv.data.split import SplitName, ValidationSplit
from qkv.data.text_lists import ListMeaning, join_text_lists
from qkv.errors import QkvError, UsageError, suggest_name
from qkv.progress import OnProgress

__all__ = [
    "FORMATS",
    "ColumnChoice",
    "DataFiles",
    "PathsArgument",
    "ReadLimits",
    "ReadOptions",
    "read",
    "register_reader",
]


FORMATS_OF_CONTENT = {"images", "sounds", "archive", "idx"}
"""Formats whose records have the content of files, not their paths."""


@dataclass(frozen=True)
class DataFiles:
    """The user's files and how to read them.

    `paths` is a file, a glob, a folder, a list of these, or a mapping of field → file for line-aligned files. Each
    file's extension gives its format unless `format` does. The labels in `class_field` become the names of classes.
    With `has_instructions`, records with an instruction and its response become chats. A text in one of the
    `word_fields` is split into words at white space; if the second one has spans of the text in the first, they become
    tags of its words. A list of texts in one of the `list_fields` becomes one text. A path in one of the `file_fields`
    becomes the bytes of the file. The `modality` says what the texts in `text_fields` are, such as proteins; "" is
    text. With `pairs_by`, the name of a field, single texts become pairs (`qkv.data.pairs`).

    >>> DataFiles({"source": "train.en", "target": "train.fr"})           # doctest: +SKIP
    >>> DataFiles.from_options("tweets/*.csv.gz", columns={"text": "tweet", "label": "mood"})      # doctest: +SKIP
    """

    paths: PathsArgument
    format: str | None = None
    options: ReadOptions = field(default_factory=ReadOptions)
    class_field: str = ""
    has_instructions: bool = False
    word_fields: tuple[str, ...] = ()
    modality: str = ""
    text_fields: tuple[str, ...] = ()
    pairs_by: str = ""
    list_fields: Mapping[str, ListMeaning] = field(default_factory=dict)
    file_fields: tuple[str, ...] = ()

    @classmethod
    def from_options(cls, paths: PathsArgument, format: str | None = None, **options: Any) -> "DataFiles":
        """Make `DataFiles` from options by name, as in a recipe; an unknown name is an error.

        >>> DataFiles.from_options("train.tsv", columns=["text"], header=True).options.columns
        {'text': 'text'}
        """
        known = [field.name for field in fields(ReadOptions)]
        for name in options:
            if name not in known:
                raise UsageError(f"unknown option {name!r} for reading files; {suggest_name(name, known)}")
        if isinstance(options.get("limits"), dict):
            options["limits"] = ReadLimits(**options["limits"])
        return cls(paths, format, ReadOptions(**{**options, "columns": normalize_columns(options.get("columns"))}))

    def __post_init__(self) -> None:
        if self.format is not None:
            FORMATS.find(self.format, "format")
        MODALITIES.find(self.modality or "text", "modality")

    def find_groups(self, problems: Problems) -> list[FileGroup]:
        """The files that exist, in the order in which they are read, each with its format."""
        if self.format == "datasets":
            return [FileGroup("datasets", (Path(path),)) for path in list_paths(self.paths)]
        return find_file_groups(self.paths, self.format, problems, self.options)

    def records(self, problems: Problems, progress: OnProgress | None = None) -> Iterator[Record]:
        """All records, in order. `progress` is called with the bytes read so far and the total.

        Raises `QkvError` when no record is usable, or more are invalid than `problems` allows.
        """
        groups = self.find_groups(problems)
        total = sum(path.stat().st_size for group in groups for path in group.paths if path.is_file())
        done = 0

        def on_bytes(count: int) -> None:
            nonlocal done
            done += count
            if progress:
                progress(done, total)

        options, joined = expand_joined(self.options)
        context = ReadContext(options, problems, on_bytes)
        records: Iterator[Record] = chain.from_iterable(FORMATS[group.format](group, context) for group in groups)
        if joined:
            records = join_columns(records, joined)
        if self.has_instructions:
            records = map(make_chat, records)
        modality = MODALITIES[self.modality or "text"]
        if self.word_fields:
            if len(self.word_fields) == 2:
                records = tag_spans(records, *self.word_fields, problems)
            records = split_words(records, self.word_fields, modality.split)
        if modality.load:
            records = load_texts(records, self.modality, self.text_fields, problems)
        if self.list_fields:
            records = join_text_lists(records, self.list_fields, problems)
        if self.file_fields:
            from qkv.data.readers.named_files import read_named_files

            records = read_named_files(records, self.file_fields, problems)
        record = None
        for record in clean_labels(records, self.class_field, problems) if self.class_field else records:
            yield record
        problems.finish()
        if record is None:
            raise QkvError(f"no usable records in {self.describe_paths()}\n{problems.summary()}".rstrip())

    def _hash_named_files(self) -> str:
        """A hash of the files that the records name; "" if the records have the content of files."""
        if {group.format for group in self.find_groups(Problems(max_invalid_fraction=1))} <= FORMATS_OF_CONTENT:
            return ""
        from qkv.data.readers.named_files import hash_named_files

        records = replace(self, file_fields=()).records(Problems(max_invalid_fraction=1))
        return hash_named_files(records, self.file_fields)

    def split_records(
        self,
        split: ValidationSplit | None,
        split_name: SplitName,
        problems: Problems,
        progress: OnProgress | None = None,
    ) -> Iterator[Record]:
        """The records of one side of a split, or all; with `pairs_by`, pairs of them."""
        if split is None:
            records = self.records(problems, progress)
        else:  # a split by tail reads the files twice; only the second pass reports problems
            passes = iter([problems] if split.split_by == "content" else [Problems(max_invalid_fraction=1), problems])
            records = split.records(lambda: self.records(next(passes), progress), split_name)
        return pair_records(records, self.pairs_by, problems) if self.pairs_by else records

    def describe_paths(self) -> str:
        """The paths, for a message."""
        return ", ".join(map(str, list_paths(self.paths)))

    def content_key(self, hash_file: Callable[[Path], str]) -> dict[str, Any]:
        """Everything that the records depend on, for a cache's key: the files' content and the options."""
        groups = []
        for group in self.find_groups(Problems(max_invalid_fraction=1)):
            if group.format == "datasets":
                hashes = [hf_dataset_fingerprint(str(group.paths[0]), self.options)]
            else:
                hashes = [hash_file(path) for path in group.paths]
            groups.append([group.format, group.fields, hashes])
        labels = {"class_field": self.class_field} if self.class_field else {}
        chats = {"has_instructions": True} if self.has_instructions else {}
        words = {"word_fields": self.word_fields} if self.word_fields else {}
        lists = {"list_fields": dict(self.list_fields)} if self.list_fields else {}
        files: dict[str, Any] = {"files": self._hash_named_files()} if self.file_fields else {}
        files |= {"modality": [self.modality, self.text_fields]} if self.modality else {}
        files |= {"pairs_by": self.pairs_by} if self.pairs_by else {}
        return {"groups": groups, "options": asdict(self.options), **labels, **chats, **words, **lists, **files}


def read(
    paths: PathsArgument, *, problems: Problems | None = None, progress: OnProgress | None = None, **options: Any
) -> Iterator[Record]:
    """The records of files in any known format; see `DataFiles` for the paths and `ReadOptions` for the options.

    >>> for record in read({"source": "train.en", "target": "train.fr"}): ...   # doctest: +SKIP
    >>> for record in read("tweets.tsv", columns={"text": 0, "label": 1}): ...    # doctest: +SKIP
    """
    return DataFiles.from_options(paths, **options).records(problems or Problems(), progress)
