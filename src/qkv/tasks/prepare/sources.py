"""The data of a recipe: files or built-in datasets as sources whose records can be read again.

A source yields records with the objective's field names, has an identity (a hash) for caches, and encodes its records
into the token cache.
"""

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from hashlib import blake2b
from itertools import chain, islice
from json import dumps
from pathlib import Path
from typing import Any, Literal

from qkv.data import DataFiles, FileLocation, Problems, Record, TokenCache, ValidationSplit, find_classes, token_cache
from qkv.data.builtin import DATASETS, BuiltinDataset, find_dataset
from qkv.data.cache.file_hashes import FileHashes
from qkv.data.cache.folder import META_FILE
from qkv.data.cache.token_cache import RecordEncoder, find_or_build
from qkv.data.modalities import MODALITIES
from qkv.data.objectives.table import OBJECTIVES, file_fields
from qkv.data.readers import ReadOptions
from qkv.data.readers.columns import MAX_RECORDS_SEARCHED, common_names
from qkv.data.readers.find_files import format_extension, list_paths
from qkv.data.readers.formats import FORMAT_BY_EXTENSION
from qkv.data.readers.sniff import sniff_format
from qkv.data.split import SplitName
from qkv.data.text_lists import ListMeaning, is_text_list
from qkv.errors import UsageError, suggest_name
from qkv.files import to_path
from qkv.progress import OnProgress
from qkv.tasks.prepare.columns import UnrecognisedColumns, check_columns, match_columns
from qkv.train.recipe.schema import DataSection, Recipe

CACHE_ENTRIES = ("contents.json", "tokenizers", "codecs", "tables")
"""The entries of the folder of tokenised data, besides the folders of token caches."""
DataSplit = Literal["train", "valid", "test"]
"""The name of a split, as in the recipe's keys and the built-in datasets."""

FORMATS_WITH_LISTS = {"json", "jsonl", "parquet", "datasets"}
ENDLESS_EPOCH_EXAMPLES = 50_000  # examples in an epoch of an endless dataset, by default (data.epoch_examples)
ENDLESS_VALID_EXAMPLES = 2000  # examples in the validation and test splits of an endless dataset
TABS_HINT = '. Its lines have tabs: to read it as plain text, write data.format = "text"'
MIN_FILES_TO_SPLIT = 20  # with fewer text files, the end of the text is held out instead of whole documents


@dataclass(frozen=True)
class FileSource:
    """Files, or the training or validation part of files that are split."""

    files: DataFiles
    fields: frozenset[str]
    split: ValidationSplit | None = None
    split_name: SplitName = "train"

    @property
    def description(self) -> str:
        """The paths."""
        return self.files.describe_paths()

    def records(self, problems: Problems, progress: OnProgress | None = None) -> Iterator[Record]:
        """The records of the files, or of one part of the split."""
        return self.files.split_records(self.split, self.split_name, problems, progress)

    def identity(self, root: Path) -> str:
        """A hash of the files' contents and of the options for reading and splitting them."""
        rules = None if self.split is None else [self.split.to_dict(), self.split_name]
        return digest([self.files.content_key(FileHashes(root / "contents.json").get), rules])

    def encoded(self, encode: RecordEncoder, root: Path, problems: Problems, progress: OnProgress | None) -> TokenCache:
        """The encoded records from the token cache, which several processes build if necessary."""
        return token_cache(
            self.files, encode, root, split=self.split, split_name=self.split_name, problems=problems, progress=progress
        )


@dataclass(frozen=True)
class BuiltinSource:
    """The first examples of one split of a built-in dataset."""

    dataset: BuiltinDataset
    split: str
    num_examples: int
    columns: Mapping[str, str] = field(default_factory=dict)

    @property
    def description(self) -> str:
        """The dataset and its split."""
        return f"{self.dataset.name}/{self.split}"

    @property
    def fields(self) -> frozenset[str]:
        """The objective's fields that the records have."""
        return frozenset(self.columns)

    def records(self, problems: Problems, progress: OnProgress | None = None) -> Iterator[Record]:
        """The examples as records."""
        for number, example in enumerate(self.dataset.examples(self.split, stop=self.num_examples)):
            problems.num_seen += 1
            fields = {name: example[column] for name, column in self.columns.items()}
            yield Record(fields, FileLocation(self.description, number + 1))
            if progress and number % 1000 == 999:
                progress(number + 1, self.num_examples)

    @cached_property
    def content_hash(self) -> str:
        """A hash of the dataset, its split and the chosen columns."""
        return digest([self.dataset.name, self.dataset.fingerprint, self.split, self.num_examples, dict(self.columns)])

    def identity(self, root: Path) -> str:
        """The content hash; it reads nothing from disk."""
        return self.content_hash

    def encoded(self, encode: RecordEncoder, root: Path, problems: Problems, progress: OnProgress | None) -> TokenCache:
        """The encoded examples from the token cache, built if necessary."""
        return find_or_build(
            root, self.content_hash, encode, lambda counted: self.records(counted, progress), problems=problems
        )


DataSource = FileSource | BuiltinSource
"""A part of the data that yields records, has an identity for caches, and is encoded into the token cache."""


@dataclass(frozen=True)
class DataSources:
    """The sources of a recipe: training data by name (only a mixture has several), and validation data."""

    train: dict[str, DataSource]
    weights: dict[str, float]
    valid: tuple[DataSource, ...]
    valid_is_held_out: bool  # validation data is part of the training files, so its problems are already counted
    notes: tuple[str, ...]


def open_sources(recipe: Recipe) -> DataSources:
    """Open the training and validation data of a recipe and match the columns; only the start of the files is read."""
    data = recipe.data
    check_columns(recipe.objective.kind, data.columns)
    notes: list[str] = []
    sections: dict[str, DataSection] = {"": data}
    if data.mix:
        sections = {
            name: replace(
                data, mix={}, train=one["train"], format=one.get("format", data.format), columns=one.get("columns", {})
            )
            for name, one in data.mix.items()
        }
    is_held_out = bool(data.valid_fraction) and not data.valid
    train: dict[str, DataSource] = {}
    valid: list[DataSource] = []
    for name, section in sections.items():
        train[name] = source = open_source(recipe, section, section.train, "train")
        if not is_held_out:
            continue
        if isinstance(source, BuiltinSource):
            valid.append(open_source(recipe, section, section.train, "valid"))
        else:
            split = choose_split(recipe, source, notes)
            train[name] = replace(source, split=split)
            valid.append(replace(source, split=split, split_name="validation"))
    if data.valid:
        valid = [open_source(recipe, data, data.valid, "valid")]
    if data.test:
        open_source(recipe, data, data.test, "test")  # training does not read it, but a wrong path is an error now
    weights = {name: float(one.get("weight", 1.0)) for name, one in data.mix.items()}
    return DataSources(train, weights, tuple(valid), is_held_out, tuple(notes))


def open_source(recipe: Recipe, data: DataSection, data_files: Any, split: DataSplit) -> DataSource:
    """The data that a recipe names: a split of a built-in dataset, or files."""
    kind = recipe.objective.kind
    if isinstance(data_files, str) and data_files in DATASETS:
        return open_builtin(kind, data, data_files, split)
    paths = list(data_files) if isinstance(data_files, tuple) else data_files
    if not data.format:
        paths = pair_text_files(kind, paths)
    if not data.format and isinstance(paths, str) and not Path(paths).exists() and paths.isidentifier():
        hint = suggest_name(paths, DATASETS)
        raise UsageError(f"{paths}: there is no file and no built-in dataset of this name; {hint}")
    files = open_files(paths, data)
    if OBJECTIVES[kind].reads_documents and not MODALITIES[data.modality or "text"].load:
        files = replace(files, options=replace(files.options, unit="document"))
    source = match_file_columns(kind, files)
    spec = OBJECTIVES[kind]
    if spec.sparse_names:
        optional = tuple(spec_field.name for spec_field in spec.fields if spec_field.is_sparse)
        source = replace(source, files=replace(source.files, options=replace(source.files.options, optional=optional)))
    if "instruction" in source.fields:
        source = replace(source, files=replace(source.files, has_instructions=True), fields=frozenset({"messages"}))
    words = tuple(spec.required_fields) if spec.head == "tag" else ()
    lists = find_list_fields(kind, source.files)
    fields_of_files = file_fields(spec, source.fields)
    texts = tuple(one.name for one in spec.fields if one.modality in ("text", "words"))
    changes: Any = {"class_field": spec.class_field, "word_fields": words, "text_fields": texts, "list_fields": lists}
    files = replace(source.files, **changes, file_fields=fields_of_files)
    if any(one.unless and one.name not in source.fields for one in spec.fields):
        files = replace(files, pairs_by="label" if "label" in source.fields else "score")
        source = replace(source, fields=frozenset({"first", "second", "score"}))
    return replace(source, files=files)


def open_files(paths: Any, data: DataSection) -> DataFiles:
    """Files that are read as a recipe says."""
    files = DataFiles.from_options(
        paths,
        data.format or None,
        columns=dict(data.columns) or None,
        records_key=data.records_key or None,
        encoding=data.encoding or None,
    )
    return replace(files, modality=data.modality)


def find_list_fields(kind: str, files: DataFiles) -> dict[str, ListMeaning]:
    """The text fields that hold lists in one of the first records, and what the elements of each list are."""
    meanings = {one.name: one.list_meaning for one in OBJECTIVES[kind].fields if one.list_meaning}
    formats = {group.format for group in files.find_groups(Problems(max_invalid_fraction=1))}
    if not meanings or not formats & FORMATS_WITH_LISTS:
        return {}
    first = list(islice(files.records(Problems(max_invalid_fraction=1)), MAX_RECORDS_SEARCHED))
    return {
        name: meaning
        for name, meaning in meanings.items()
        if any(is_text_list(record.fields.get(name)) for record in first)
    }


def find_unseen_label(sources: Iterable[DataSource], classes: Collection[str]) -> str:
    """The only label of these sources that is not one of the classes; "" if there is none, or if there are several."""
    readers = (source.records(Problems(max_invalid_fraction=1)) for source in sources)
    unseen = set(find_classes(chain.from_iterable(readers), "label")) - set(classes)
    return unseen.pop() if len(unseen) == 1 else ""


def pair_text_files(kind: str, paths: Any) -> Any:
    """Return two text files by field if the objective reads two texts, because the files are then line-aligned;
    otherwise return `paths`.
    """
    fields = OBJECTIVES[kind].aligned_fields
    if not fields or not isinstance(paths, list) or len(paths) != 2 or not all(Path(path).is_file() for path in paths):
        return paths
    for path in map(Path, paths):
        format = FORMAT_BY_EXTENSION.get(format_extension(path))
        if format not in (None, "text") or sniff_format(path, "text", ReadOptions())[0] != "text":
            return paths
    return dict(zip(fields, paths, strict=True))


def open_builtin(kind: str, data: DataSection, name: str, split: DataSplit) -> BuiltinSource:
    """A split of a built-in dataset; `data.epoch_examples` limits the training split."""
    dataset = load_dataset(name)
    columns = dict(data.columns) or match_columns(kind, dataset.fields, name)
    for column in columns.values():
        if column not in dataset.fields:
            raise UsageError(f"data.columns: {name} has no column {column!r}; {suggest_name(column, dataset.fields)}")
    length = dataset.length(split)
    if split != "train":
        num_examples = ENDLESS_VALID_EXAMPLES if length is None else length
    elif length is None:
        num_examples = data.epoch_examples or ENDLESS_EPOCH_EXAMPLES
    else:
        num_examples = min(length, data.epoch_examples or length)
    return BuiltinSource(dataset, split, num_examples, columns)


@lru_cache
def load_dataset(name: str) -> BuiltinDataset:
    """A built-in dataset; it is built only once, so that its splits share its tables."""
    return find_dataset(name)


def match_file_columns(kind: str, files: DataFiles) -> FileSource:
    """A source with columns matched to fields, by the user's choice or by the names in the first records."""
    name = files.describe_paths()
    if files.options.columns is not None:
        return FileSource(files, frozenset(match_columns(kind, files.options.columns, name)))
    formats = {group.format for group in files.find_groups(Problems(max_invalid_fraction=1))}
    max_records = 1 if "text" in formats else MAX_RECORDS_SEARCHED  # all records of a text have the same field
    first = list(islice(files.records(Problems(max_invalid_fraction=1)), max_records))
    names = common_names(first, OBJECTIVES[kind].sparse_names)
    aligned = OBJECTIVES[kind].aligned_fields
    if formats == {"aligned"} and aligned and not isinstance(files.paths, Mapping) and len(names) == 2:
        columns = dict(zip(aligned, names, strict=True))  # in the order in which the user gives the files
    else:
        try:
            columns = match_columns(kind, names, name)
        except UnrecognisedColumns as error:
            is_text = all(format_extension(Path(path)) in (".txt", ".text") for path in list_paths(files.paths))
            advice = f"{error.advice}{TABS_HINT if is_text and formats == {'tsv'} else ''}"
            raise UnrecognisedColumns(error.problem, advice, names, first, formats) from None
    if not formats & {"conll", "conllu"}:  # with explicit columns, a record that lacks a column counts as invalid
        files = replace(files, options=replace(files.options, columns=dict(columns)))
    return FileSource(files, frozenset(columns))


def choose_split(recipe: Recipe, source: FileSource, notes: list[str]) -> ValidationSplit:
    """Choose how validation data is held out of files, and add a note about it."""
    data, spec = recipe.data, OBJECTIVES[recipe.objective.kind]
    if data.valid_split_by == "tail":
        return ValidationSplit(data.valid_fraction, split_by="tail")
    groups = source.files.find_groups(Problems(max_invalid_fraction=1))
    is_text = all(group.format == "text" for group in groups)
    if spec.reads_documents and len(groups) < MIN_FILES_TO_SPLIT and is_text:
        notes.append(
            f"{source.description}: the last {data.valid_fraction:.0%} of the text is held out for validation; "
            "set data.valid to use other files"
        )
        return ValidationSplit(data.valid_fraction, split_by="tail")
    notes.append(f"{source.description}: about {data.valid_fraction:.0%} of the records are held out for validation")
    group = next((group for group in spec.alternatives if spec.group_by in group), (spec.group_by,))
    return ValidationSplit(data.valid_fraction, group_by=tuple(name for name in group if name in source.fields))


def cache_root(data: DataSection) -> Path:
    """The folder of tokenised data: `data.cache_dir`, `$QKV_CACHE`, or `qkv` in the user's cache folder."""
    given = data.cache_dir or os.environ.get("QKV_CACHE")
    if given:
        return to_path(given)
    is_mac = sys.platform == "darwin"
    if not is_mac and (base := os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")):
        return Path(base) / "qkv"
    try:
        return Path.home() / ("Library/Caches" if is_mac else ".cache") / "qkv"
    except RuntimeError:  # neither $HOME nor an entry of the user, as in some containers
        raise UsageError(
            "there is no home folder for the cache of tokenised data; set $HOME, $QKV_CACHE or data.cache_dir"
        ) from None


def check_cache_folder(root: Path) -> None:
    """Raise an error if a folder has visible files, but no cache: a recipe may name any folder by mistake."""
    with suppress(OSError):  # reported when it is written
        entries = [entry for entry in root.iterdir() if not entry.name.startswith(".")]
        if entries and not any(entry.name in CACHE_ENTRIES or (entry / META_FILE).is_file() for entry in entries):
            raise UsageError(
                f"data.cache_dir = {str(root)!r}: this folder contains other files, not tokenised data; choose a new "
                f"folder, such as data.cache_dir={root / 'qkv-cache'}"
            )


def sample_records(records: Iterable[Record], count: int, max_read: int = 100_000) -> list[Record]:
    """Sample `count` of the first `max_read` records with a fixed seed, in their original order."""
    return [record for _, record in sorted(rank_records(records, count, max_read), key=lambda one: one[0])]


def rank_records(records: Iterable[Record], count: int, max_read: int = 100_000) -> list[tuple[int, Record]]:
    """Sample `count` of the first `max_read` records, with their numbers, in a random order with a fixed seed."""
    if not count:
        return []
    kept: list[tuple[bytes, int, Record]] = []
    for number, record in enumerate(islice(records, max_read)):
        kept.append((blake2b(number.to_bytes(8, "big"), digest_size=8).digest(), number, record))
        if len(kept) >= 4 * count:  # prune, so that few records are in memory
            kept = sorted(kept, key=lambda one: one[:2])[:count]
    return [(number, record) for _, number, record in sorted(kept, key=lambda one: one[:2])[:count]]


def digest(parts: Any) -> str:
    """A short hash of plain values."""
    return blake2b(dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()
