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

from qkv.data import Files, Problems, Record, Split, TokenCache, Where, token_cache
from qkv.data.builtin import DATASETS, Dataset
from qkv.data.builtin import find as find_dataset
from qkv.data.cache import Encode, find_or_build
from qkv.data.content import Contents
from qkv.data.split import Side
from qkv.errors import UsageError, nearest
from qkv.tasks.prepare_fields import check_columns, columns_of, recognise
from qkv.train.recipe import DataSection, Recipe

PartName = Literal["train", "valid", "test"]
Progress = Callable[[str, int, int], None]
"""Hears what is being done, how much of it is, and how much there is (0: not known)."""

DOCUMENT_KINDS = ("next_token", "masked", "masked_sentences", "spans", "denoise")
TOGETHER = {"pairs": "source", "answers": "context", "classify": "text", "contrast": "first"}
"""Records that agree in this field stay on one side of a split: else validation would hold what was trained on."""
IN_STEP = {"pairs": ("source", "target"), "contrast": ("first", "second")}
"""What two files that go in step are, in the order in which they are named."""
ENDLESS = 50_000  # examples that make an epoch of an endless dataset, unless the recipe says
HELD_OUT = 2000  # examples of its validation and test parts
FEW_FILES = 20  # a text in fewer files than this has no documents to hold out: its end is kept instead


class Part(Protocol):
    """Some of the data, by its records."""

    @property
    def told(self) -> str:
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
class FilePart:
    """Files, or one side of them."""

    files: Files
    fields: frozenset[str]
    split: Split | None = None
    side: Side = "train"

    @property
    def told(self) -> str:
        return self.files.told()

    def records(self, problems: Problems, progress: Callable[[int, int], None] | None = None) -> Iterator[Record]:
        if self.split is None:
            return self.files.records(problems, progress)
        met = iter([problems] if self.split.how == "content" else [Problems(max_bad=1), problems])
        return self.split.records(lambda: self.files.records(next(met), progress), self.side)

    def identity(self, root: Path) -> str:
        rules = None if self.split is None else [self.split.rules(), self.side]
        return digest([self.files.identity(Contents(root / "contents.json").of), rules])

    def encoded(
        self, encode: Encode, root: Path, problems: Problems, progress: Callable[[int, int], None] | None
    ) -> TokenCache:
        return token_cache(
            self.files, encode, root, split=self.split, side=self.side, problems=problems, progress=progress
        )


@dataclass(frozen=True)
class BuiltinPart:
    """The first examples of one split of a dataset that comes with qkv."""

    dataset: Dataset
    split: str
    count: int
    columns: Mapping[str, str] = field(default_factory=dict)

    @property
    def told(self) -> str:
        return f"{self.dataset.name}/{self.split}"

    @property
    def fields(self) -> frozenset[str]:
        return frozenset(self.columns)

    def records(self, problems: Problems, progress: Callable[[int, int], None] | None = None) -> Iterator[Record]:
        for number, example in enumerate(self.dataset.examples(self.split, stop=self.count)):
            problems.saw()
            fields = {name: example[column] for name, column in self.columns.items()}
            yield Record(fields, Where(self.told, number + 1))
            if progress and number % 1000 == 999:
                progress(number + 1, self.count)

    @cached_property
    def content(self) -> str:
        return digest([self.dataset.name, self.dataset.fingerprint, self.split, self.count, dict(self.columns)])

    def identity(self, root: Path) -> str:
        return self.content

    def encoded(
        self, encode: Encode, root: Path, problems: Problems, progress: Callable[[int, int], None] | None
    ) -> TokenCache:
        def records(met: Problems) -> Iterator[Record]:
            return self.records(met, progress)

        return find_or_build(root, self.content, encode, records, problems=problems)


@dataclass(frozen=True)
class Sources:
    """The parts of a recipe: what is trained on by name (one unless it is a mixture), and what is held out."""

    train: dict[str, Part]
    weights: dict[str, float]
    valid: tuple[Part, ...]
    valid_of_train: bool  # held out of the same files, so that what is bad in them is known already
    notes: tuple[str, ...]


def sources_of(recipe: Recipe) -> Sources:
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
    held = bool(data.valid_share) and not data.valid
    train: dict[str, Part] = {}
    valid: list[Part] = []
    for name, section in named.items():
        part = part_of(recipe, section, section.train, "train")
        if not held:
            train[name] = part
        elif isinstance(part, BuiltinPart):
            train[name] = part
            valid.append(part_of(recipe, section, section.train, "valid"))
        else:
            assert isinstance(part, FilePart)
            split = split_of(recipe, part, notes)
            train[name] = replace(part, split=split)
            valid.append(replace(part, split=split, side="validation"))
    if data.valid:
        valid = [part_of(recipe, data, data.valid, "valid")]
    if data.test:
        part_of(recipe, data, data.test, "test")  # nothing is trained on it, but a misspelt name should show now
    weights = {name: float(one.get("weight", 1.0)) for name, one in data.mix.items()}
    return Sources(train, weights, tuple(valid), held, tuple(notes))


def part_of(recipe: Recipe, data: DataSection, given: Any, part: PartName) -> Part:
    """The data that a recipe names: a built-in dataset's split, or files."""
    kind = recipe.objective.kind
    if isinstance(given, str) and given in DATASETS:
        dataset = dataset_of(given)
        columns = dict(data.columns) or recognise(kind, dataset.fields, given)
        for name in columns.values():
            if name not in dataset.fields:
                raise UsageError(f"{given} has no field {name!r}; {nearest(name, dataset.fields)}")
        length = dataset.length(part)
        wanted = (data.examples or ENDLESS) if part == "train" else HELD_OUT
        if length is not None:
            wanted = min(length, data.examples or length) if part == "train" else length
        return BuiltinPart(dataset, part, wanted, columns)
    paths = list(given) if isinstance(given, tuple) else given
    if not data.format and isinstance(paths, str) and not Path(paths).exists() and paths.isidentifier():
        hint = nearest(paths, DATASETS)
        raise UsageError(f"{paths}: no such file, and no built-in dataset has this name; {hint}")
    files = Files.of(paths, data.format or None, columns=dict(data.columns) or None)
    if kind in DOCUMENT_KINDS:
        files = replace(files, options=replace(files.options, unit="document"))
    return recognised(kind, files)


@lru_cache
def dataset_of(name: str) -> Dataset:
    """A built-in dataset, made once: its parts share its tables."""
    return find_dataset(name)


def recognised(kind: str, files: Files) -> FilePart:
    """The files with their columns chosen: as the user says, or by the names of the first record's fields."""
    told = files.told()
    if files.options.columns is not None:
        return FilePart(files, frozenset(recognise(kind, files.options.columns, told)))
    formats = {part.format for part in files.parts(Problems(max_bad=1))}
    first = next(files.records(Problems(max_bad=1)))
    names = tuple(first.fields)
    if formats == {"aligned"} and kind in IN_STEP and not isinstance(files.paths, Mapping) and len(names) == 2:
        chosen = dict(zip(IN_STEP[kind], names, strict=True))  # in the order in which the user names them
    else:
        chosen = columns_of(kind, first, told)
    if not formats & {"conll", "conllu"}:  # chosen outright, so that a record without one is counted as bad
        files = replace(files, options=replace(files.options, columns=dict(chosen)))
    return FilePart(files, frozenset(chosen))


def split_of(recipe: Recipe, part: FilePart, notes: list[str]) -> Split:
    """How validation data is held out of files."""
    data, kind = recipe.data, recipe.objective.kind
    if data.valid_from == "tail":
        return Split(data.valid_share, how="tail")
    parts = part.files.parts(Problems(max_bad=1))
    if kind in DOCUMENT_KINDS and len(parts) < FEW_FILES and all(one.format == "text" for one in parts):
        notes.append(
            f"{part.told}: the last {data.valid_share:.0%} of the text is held out for validation; "
            "give data.valid to use another"
        )
        return Split(data.valid_share, how="tail")
    notes.append(f"{part.told}: about {data.valid_share:.0%} of the records are held out for validation")
    by = TOGETHER.get(kind)
    return Split(data.valid_share, by=(by,) if by else ())


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


def sampled(records: Iterable[Record], count: int, look: int = 100_000) -> list[Record]:
    """`count` records spread over the first `look`, the same each time, in their order."""
    if not count:
        return []
    kept: list[tuple[bytes, int, Record]] = []
    for number, record in enumerate(islice(records, look)):
        kept.append((blake2b(number.to_bytes(8, "big"), digest_size=8).digest(), number, record))
        if len(kept) >= 4 * count:  # now and then, so that few are held
            kept = sorted(kept, key=lambda one: one[:2])[:count]
    chosen = sorted(kept, key=lambda one: one[:2])[:count]
    return [record for _, _, record in sorted(chosen, key=lambda one: one[1])]


def digest(parts: Any) -> str:
    """A short hash of plain values."""
    return blake2b(dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()
