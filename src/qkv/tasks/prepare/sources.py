"""Where a recipe's examples come from: files, or a dataset that comes with qkv, as parts that can be read again.

A part gives its records under the names of the objective's fields, says what it depends on (for the names of what is
kept of it), and encodes itself into the token cache.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from hashlib import blake2b
from itertools import islice
from json import dumps
from pathlib import Path
from typing import Any, Literal, Protocol

from qkv.data import DataFiles, FileLocation, Problems, Record, TokenCache, ValidationSplit, token_cache
from qkv.data.builtin import DATASETS, BuiltinDataset
from qkv.data.builtin import find_dataset as find_dataset
from qkv.data.cache.file_hashes import FileHashes
from qkv.data.cache.token_cache import Encode, find_or_build
from qkv.data.split import SplitName
from qkv.errors import UsageError, suggest_name
from qkv.tasks.prepare.columns import check_columns, match_columns, match_record_columns
from qkv.train.recipe.schema import DataSection, Recipe

SourceName = Literal["train", "valid", "test"]
PhaseProgress = Callable[[str, int, int], None]
"""Hears what is being done, how much of it is, and how much there is (0: not known)."""

DOCUMENT_KINDS = ("causal_lm", "masked_lm", "next_sentence", "span_corruption", "denoising")
TOGETHER = {"seq2seq": "source", "question_answering": "context", "classification": "text", "contrastive": "first"}
"""Records that agree in this field stay on one side of a split: else validation would hold what was trained on."""
IN_STEP = {"seq2seq": ("source", "target"), "contrastive": ("first", "second")}
"""What two files that go in step are, in the order in which they are named."""
ENDLESS_EPOCH_EXAMPLES = 50_000  # examples that make an epoch of an endless dataset, unless the recipe says
ENDLESS_VALID_EXAMPLES = 2000  # examples of its validation and test parts
MIN_FILES_TO_SPLIT = 20  # a text in fewer files than this has no documents to hold out: its end is kept instead


class DataSource(Protocol):
    """Some of the data, by its records."""

    @property
    def description(self) -> str:
        """What it is, for messages."""
        ...

    @property
    def fields(self) -> frozenset[str]:
        """The objective's fields that its records have."""
        ...

    def records(self, problems: Problems, progress: Callable[[int, int], None] | None = None) -> Iterator[Record]: ...
    def identity(self, root: Path) -> str: ...
    def encoded(
        self, encode: Encode, root: Path, problems: Problems, progress: Callable[[int, int], None] | None
    ) -> TokenCache: ...


@dataclass(frozen=True)
class FileSource:
    """Files, or one side of them."""

    files: DataFiles
    fields: frozenset[str]
    split: ValidationSplit | None = None
    side: SplitName = "train"

    @property
    def description(self) -> str:
        return self.files.describe_paths()

    def records(self, problems: Problems, progress: Callable[[int, int], None] | None = None) -> Iterator[Record]:
        if self.split is None:
            return self.files.records(problems, progress)
        met = iter([problems] if self.split.split_by == "content" else [Problems(max_invalid_fraction=1), problems])
        return self.split.records(lambda: self.files.records(next(met), progress), self.side)

    def identity(self, root: Path) -> str:
        rules = None if self.split is None else [self.split.to_dict(), self.side]
        return digest([self.files.content_key(FileHashes(root / "contents.json").get), rules])

    def encoded(
        self, encode: Encode, root: Path, problems: Problems, progress: Callable[[int, int], None] | None
    ) -> TokenCache:
        return token_cache(
            self.files, encode, root, split=self.split, split_name=self.side, problems=problems, progress=progress
        )


@dataclass(frozen=True)
class BuiltinSource:
    """The first examples of one split of a dataset that comes with qkv."""

    dataset: BuiltinDataset
    split: str
    num_examples: int
    columns: Mapping[str, str] = field(default_factory=dict)

    @property
    def description(self) -> str:
        return f"{self.dataset.name}/{self.split}"

    @property
    def fields(self) -> frozenset[str]:
        return frozenset(self.columns)

    def records(self, problems: Problems, progress: Callable[[int, int], None] | None = None) -> Iterator[Record]:
        for number, example in enumerate(self.dataset.examples(self.split, stop=self.num_examples)):
            problems.num_seen += 1
            fields = {name: example[column] for name, column in self.columns.items()}
            yield Record(fields, FileLocation(self.description, number + 1))
            if progress and number % 1000 == 999:
                progress(number + 1, self.num_examples)

    @cached_property
    def content_hash(self) -> str:
        return digest([self.dataset.name, self.dataset.fingerprint, self.split, self.num_examples, dict(self.columns)])

    def identity(self, root: Path) -> str:
        return self.content_hash

    def encoded(
        self, encode: Encode, root: Path, problems: Problems, progress: Callable[[int, int], None] | None
    ) -> TokenCache:
        def records(met: Problems) -> Iterator[Record]:
            return self.records(met, progress)

        return find_or_build(root, self.content_hash, encode, records, problems=problems)


@dataclass(frozen=True)
class DataSources:
    """The parts of a recipe: what is trained on by name (one unless it is a mixture), and what is held out."""

    train: dict[str, DataSource]
    weights: dict[str, float]
    valid: tuple[DataSource, ...]
    valid_is_held_out: bool  # held out of the same files, so that what is bad in them is known already
    notes: tuple[str, ...]


def open_sources(recipe: Recipe) -> DataSources:
    """What a recipe trains and validates on, with its columns recognised; files are opened, not read through."""
    data = recipe.data
    check_columns(recipe.objective.kind, data.columns)
    notes: list[str] = []
    named: dict[str, DataSection] = {"": data}
    if data.mix:
        named = {
            name: replace(
                data, mix={}, train=one["train"], format=one.get("format", data.format), columns=one.get("columns", {})
            )
            for name, one in data.mix.items()
        }
    held = bool(data.valid_fraction) and not data.valid
    train: dict[str, DataSource] = {}
    valid: list[DataSource] = []
    for name, section in named.items():
        part = open_source(recipe, section, section.train, "train")
        if not held:
            train[name] = part
        elif isinstance(part, BuiltinSource):
            train[name] = part
            valid.append(open_source(recipe, section, section.train, "valid"))
        else:
            assert isinstance(part, FileSource)
            split = choose_split(recipe, part, notes)
            train[name] = replace(part, split=split)
            valid.append(replace(part, split=split, side="validation"))
    if data.valid:
        valid = [open_source(recipe, data, data.valid, "valid")]
    if data.test:
        open_source(recipe, data, data.test, "test")  # nothing is trained on it, but a misspelt name should show now
    weights = {name: float(one.get("weight", 1.0)) for name, one in data.mix.items()}
    return DataSources(train, weights, tuple(valid), held, tuple(notes))


def open_source(recipe: Recipe, data: DataSection, data_files: Any, split: SourceName) -> DataSource:
    """The data that a recipe names: a built-in dataset's split, or files."""
    kind = recipe.objective.kind
    if isinstance(data_files, str) and data_files in DATASETS:
        dataset = load_dataset(data_files)
        columns = dict(data.columns) or match_columns(kind, dataset.fields, data_files)
        for name in columns.values():
            if name not in dataset.fields:
                raise UsageError(f"{data_files} has no field {name!r}; {suggest_name(name, dataset.fields)}")
        length = dataset.length(split)
        wanted = (data.epoch_examples or ENDLESS_EPOCH_EXAMPLES) if split == "train" else ENDLESS_VALID_EXAMPLES
        if length is not None:
            wanted = min(length, data.epoch_examples or length) if split == "train" else length
        return BuiltinSource(dataset, split, wanted, columns)
    paths = list(data_files) if isinstance(data_files, tuple) else data_files
    if not data.format and isinstance(paths, str) and not Path(paths).exists() and paths.isidentifier():
        hint = suggest_name(paths, DATASETS)
        raise UsageError(f"{paths}: no such file, and no built-in dataset has this name; {hint}")
    files = DataFiles.from_options(paths, data.format or None, columns=dict(data.columns) or None)
    if kind in DOCUMENT_KINDS:
        files = replace(files, options=replace(files.options, unit="document"))
    return match_file_columns(kind, files)


@lru_cache
def load_dataset(name: str) -> BuiltinDataset:
    """A built-in dataset, made once: its parts share its tables."""
    return find_dataset(name)


def match_file_columns(kind: str, files: DataFiles) -> FileSource:
    """The files with their columns chosen: as the user says, or by the names of the first record's fields."""
    told = files.describe_paths()
    if files.options.columns is not None:
        return FileSource(files, frozenset(match_columns(kind, files.options.columns, told)))
    formats = {part.format for part in files.find_groups(Problems(max_invalid_fraction=1))}
    first = next(files.records(Problems(max_invalid_fraction=1)))
    names = tuple(first.fields)
    if formats == {"aligned"} and kind in IN_STEP and not isinstance(files.paths, Mapping) and len(names) == 2:
        chosen = dict(zip(IN_STEP[kind], names, strict=True))  # in the order in which the user names them
    else:
        chosen = match_record_columns(kind, first, told)
    if not formats & {"conll", "conllu"}:  # chosen outright, so that a record without one is counted as bad
        files = replace(files, options=replace(files.options, columns=dict(chosen)))
    return FileSource(files, frozenset(chosen))


def choose_split(recipe: Recipe, source: FileSource, notes: list[str]) -> ValidationSplit:
    """How validation data is held out of files."""
    data, kind = recipe.data, recipe.objective.kind
    if data.valid_split_by == "tail":
        return ValidationSplit(data.valid_fraction, split_by="tail")
    parts = source.files.find_groups(Problems(max_invalid_fraction=1))
    if kind in DOCUMENT_KINDS and len(parts) < MIN_FILES_TO_SPLIT and all(one.format == "text" for one in parts):
        notes.append(
            f"{source.description}: the last {data.valid_fraction:.0%} of the text is held out for validation; "
            "give data.valid to use another"
        )
        return ValidationSplit(data.valid_fraction, split_by="tail")
    notes.append(f"{source.description}: about {data.valid_fraction:.0%} of the records are held out for validation")
    by = TOGETHER.get(kind)
    return ValidationSplit(data.valid_fraction, group_by=(by,) if by else ())


def cache_root(data: DataSection) -> Path:
    """Where tokenised data is kept: where the recipe says, or in the user's cache folder (`QKV_CACHE` moves it)."""
    given = data.cache or os.environ.get("QKV_CACHE")
    if given:
        return Path(given).expanduser()
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or Path.home() / ".cache")
    return base / "qkv"


def sample_records(records: Iterable[Record], count: int, max_read: int = 100_000) -> list[Record]:
    """`count` records spread over the first `look`, the same each time, in their order."""
    if not count:
        return []
    kept: list[tuple[bytes, int, Record]] = []
    for number, record in enumerate(islice(records, max_read)):
        kept.append((blake2b(number.to_bytes(8, "big"), digest_size=8).digest(), number, record))
        if len(kept) >= 4 * count:  # now and then, so that few are held
            kept = sorted(kept, key=lambda one: one[:2])[:count]
    chosen = sorted(kept, key=lambda one: one[:2])[:count]
    return [record for _, _, record in sorted(chosen, key=lambda one: one[1])]


def digest(parts: Any) -> str:
    """A short hash of plain values."""
    return blake2b(dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()
