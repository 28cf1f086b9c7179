"""Load the records of an evaluation from the user's files or a built-in dataset, with the task's field names.

Columns are recognised by their names, as in training. In a table without a header line they are guessed, as in `qkv
init`. The score of a run on its own training or validation files is not a test score.
"""

import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from qkv.data import DataFiles, Problems, Record
from qkv.data.builtin import DATASETS, find_dataset
from qkv.data.cache.file_hashes import FileHashes
from qkv.data.objectives.table import OBJECTIVES
from qkv.data.readers.columns import MAX_RECORDS_SEARCHED
from qkv.errors import QkvError, UsageError, shorten, suggest_name
from qkv.progress import OnProgress
from qkv.tasks.prepare.columns import UnrecognisedColumns, check_columns, find_modality
from qkv.tasks.prepare.guess_columns import describe_readings, find_readings
from qkv.tasks.prepare.sources import (
    TABS_HINT,
    BuiltinSource,
    DataSource,
    FileSource,
    cache_root,
    open_source,
    open_sources,
    sample_records,
)
from qkv.tasks.task import Task
from qkv.train.recipe.schema import DataSection, Files, ObjectiveSection, Recipe


def _check_files(data: Any) -> Any:
    """Convert paths to strings: in a single name, a tuple of names, or field → name."""
    if isinstance(data, str | Path):
        return str(data)
    if isinstance(data, Mapping) and all(isinstance(name, str | Path) for name in data.values()):
        return {field: str(name) for field, name in data.items()}
    if isinstance(data, Sequence) and all(isinstance(name, str | Path) for name in data):
        return tuple(map(str, data))
    raise UsageError(
        f"data must be a file, a list of files, field → file, or a built-in dataset ({', '.join(DATASETS)}), "
        f"got {shorten(repr(data))}"
    )


def load_records(
    task: Task,
    data: str | Path | Sequence[str | Path] | Mapping[str, str | Path],
    *,
    columns: Mapping[str, str] | None = None,
    format: str = "",
    records_key: str = "",
    encoding: str = "",
    split: str = "",
    max_records: int = 0,
    guess: bool = True,
    notes: list[str] | None = None,
    problems: Problems | None = None,
    progress: OnProgress | None = None,
) -> list[Record]:
    """Load records from a file, several files, line-aligned files (field → file), or a split of a built-in dataset.

    `columns` maps fields to columns; `records_key` is for JSON documents. The `encoding` is recognised by default. At
    most `max_records` are loaded (0: all): a random sample with a fixed seed, because files are often sorted. With
    `guess`, the columns of a table without a header line are guessed, and `notes` gets a note on the guess. `problems`
    counts invalid records.
    """
    files = _check_files(data)
    if isinstance(files, tuple) and len(files) == 1:
        files = files[0]
    is_builtin = isinstance(files, str) and files in DATASETS
    if split and not is_builtin:
        raise UsageError(
            f"split = {split!r} is for built-in datasets ({', '.join(DATASETS)}), not for files; leave it out"
        )
    if split and split not in (known := find_dataset(files).splits):
        raise UsageError(f"split = {split!r} is not a split; {suggest_name(split, known)}")
    check_columns(task.objective, columns or {}, "columns", f"a model that {task.description}")
    section = DataSection(format=format, columns=dict(columns or {}), records_key=records_key, encoding=encoding)
    source = _open_source(task, files, section, split or "test", guess, [] if notes is None else notes)
    if max_records and isinstance(source, BuiltinSource):
        length = source.dataset.length(source.split)
        if length != source.num_examples:
            source = replace(source, num_examples=max_records if length is None else min(max_records, length))
    if isinstance(source, FileSource) and not section.modality:
        first = list(islice(source.records(Problems(max_invalid_fraction=1)), MAX_RECORDS_SEARCHED))
        if modality := find_modality(task.objective, first):
            source = _open_source(task, files, replace(section, modality=modality), "test", guess, [])
    records = source.records(problems or Problems(max_invalid_fraction=1), progress)
    if not max_records or isinstance(source, BuiltinSource):
        return list(islice(records, max_records or None))
    return sample_records(records, max_records, sys.maxsize)


def _open_source(task: Task, files: Any, section: DataSection, split: str, guess: bool, notes: list[str]) -> DataSource:
    """Open the data of an evaluation. If no columns are recognised, the columns of a table without a header are
    guessed.
    """
    recipe = Recipe(data=section, objective=ObjectiveSection(kind=task.objective))
    spec = OBJECTIVES[task.objective]
    try:
        return open_source(recipe, section, files, split)  # type: ignore[arg-type]
    except UnrecognisedColumns as error:
        if section.columns:
            missing = {name.partition(" or ")[0]: "COLUMN" for name in spec.describe_missing(section.columns)}
            raise UsageError(
                f"columns: no column is chosen for the {' and the '.join(missing)}; add {_format_columns(missing)}"
            ) from None
        names = list(error.names)
        try:
            readings = find_readings(task.objective, names, error.records)
        except UsageError:  # too few columns
            raise UsageError(f"{error.problem}. Add the missing columns") from None
        if len(readings) > 1:
            shown = "\n".join(describe_readings(readings, error.records))
            raise UsageError(f"{error.problem}. There are several ways to read them; choose one:\n{shown}") from None
        guessed = readings[0]
        numbers = {name: str(names.index(column)) for name, column in guessed.items()}
        has_numbers = names == [str(number) for number in range(len(names))]  # there is no header line
        # Any of several columns could be the text of a language model.
        if not (guess and has_numbers) or (spec.reads_documents and len(names) > 1):
            raise UsageError(f"{error.problem}. {_advise(error, guessed, numbers)}") from None
    notes.append(
        f"no header line, so {', '.join(f'column {number} is read as the {name}' for name, number in guessed.items())} "
        "(counted from 0); --columns (in Python, columns=) chooses other columns"
    )
    return open_source(recipe, replace(section, columns=guessed), files, split)  # type: ignore[arg-type]


def _advise(error: UnrecognisedColumns, guessed: Mapping[str, str], numbers: Mapping[str, str]) -> str:
    """How to choose columns on the command line and in Python, with the guessed columns as the example."""
    advice = f"Choose columns, for example: {_format_columns(guessed)} (in Python: columns={dict(guessed)})"
    if set(error.formats) <= {"csv", "tsv"} and error.formats and guessed != numbers:
        advice += f". If the first line is data and not a header: {_format_columns(numbers)}"
    return f"{advice}. To read it as plain text: --format text" if TABS_HINT in error.advice else advice


def _format_columns(columns: Mapping[str, str]) -> str:
    """Columns as options of the command line.

    >>> _format_columns({"source": "0", "target": "my text"})
    "--columns source=0 --columns 'target=my text'"
    """
    return " ".join(f"--columns {shlex.quote(f'{name}={column}')}" for name, column in columns.items())


def held_out_records(
    recipe: Recipe, max_records: int = 0, problems: Problems | None = None, progress: OnProgress | None = None
) -> list[Record]:
    """The records that a run with this recipe holds out of its training files for validation (0: all of them)."""
    problems = problems or Problems(max_invalid_fraction=1)
    records = chain.from_iterable(source.records(problems, progress) for source in open_sources(recipe).valid)
    return sample_records(records, max_records, sys.maxsize) if max_records else list(records)


def describe_use_in_training(
    recipe: Recipe, files: Files, *, format: str = "", split: str = "", is_held_out: bool = False
) -> str:
    """Why a score on these files is not a test score of a run with this recipe; "" if the run has not used them.

    `is_held_out` means that the run held out these records of the files.
    """
    data, root = recipe.data, cache_root(recipe.data)
    is_chosen = recipe.train.final == "best" or recipe.train.patience > 0
    chooses = "the run chose its weights by the score on" if is_chosen else "the run was validated on"
    if is_held_out:
        return f"this is not a test score: {chooses} these records"
    if same := find_training_files(recipe, files, format=format, split=split):
        held_out = bool(data.valid_fraction) and not data.valid and all(path.is_absolute() for path in same)
        exception = f", except for the {data.valid_fraction:.0%} that it held out" if held_out else ""
        return f"this is not a test score: the run was trained on {_list_names(same)}{exception}"
    validated = _find_files(data.valid, data.format, "valid")
    if data.valid_fraction and not data.valid:  # a built-in dataset has a split for it
        validated = {
            Path(names, "valid")
            for names, _ in _training_sections(recipe)
            if isinstance(names, str) and names in DATASETS
        }
    if same := _find_same_files(_find_files(files, format, split or "test"), validated, root):
        return f"this is not a test score: {chooses} {_list_names(same)}"
    return ""


def find_training_files(recipe: Recipe, files: Files, *, format: str = "", split: str = "") -> list[Path]:
    """The files that a run with this recipe was trained on, and copies of such files."""
    sections = _training_sections(recipe)
    trained = {path for names, own_format in sections for path in _find_files(names, own_format, "train")}
    return _find_same_files(_find_files(files, format, split or "test"), trained, cache_root(recipe.data))


def _training_sections(recipe: Recipe) -> list[tuple[Files, str]]:
    """The training files and their format, of each part of a mixture."""
    data = recipe.data
    if data.mix:
        return [(one["train"], one.get("format", data.format)) for one in data.mix.values()]
    return [(data.train, data.format)]


def _find_files(files: Files, format: str, split: str) -> set[Path]:
    """The absolute paths of files; for a built-in dataset, its name and the split as a relative path."""
    paths = files if isinstance(files, str | Mapping) else list(files)
    if isinstance(paths, list) and len(paths) == 1:
        paths = paths[0]
    if isinstance(paths, str) and paths in DATASETS:
        return {Path(paths, split)}
    with suppress(QkvError):  # files of a recipe may no longer exist
        groups = DataFiles(paths, format or None).find_groups(Problems(max_invalid_fraction=1)) if paths else []
        return {path.resolve() for group in groups for path in group.paths}
    return set()


def _find_same_files(files: set[Path], others: set[Path], root: Path) -> list[Path]:
    """The files that are also in `others`, or copies of files in `others`. Only files of the same size are hashed."""
    hashes = FileHashes(root / "contents.json")
    sizes = {path.stat().st_size for path in files - others if path.is_file()}
    same = files & others
    with suppress(QkvError):  # a file that cannot be read
        contents = {hashes.get(path) for path in others if path.is_file() and path.stat().st_size in sizes}
        same |= {path for path in files - others if contents and path.is_file() and hashes.get(path) in contents}
    return sorted(same)


def _list_names(paths: Sequence[Path]) -> str:
    """The names of files, or of a built-in dataset with its split.

    >>> _list_names([Path("/data/a.tsv"), Path("/data/b.tsv"), Path("/data/c.tsv"), Path("/data/d.tsv")])
    'a.tsv, b.tsv, c.tsv and 1 more'
    """
    names = [path.name if path.is_absolute() else path.as_posix() for path in paths]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
