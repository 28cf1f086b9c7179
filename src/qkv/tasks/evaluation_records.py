"""Load the records of an evaluation from the user's files or a built-in dataset, with the task's field names.

Columns are recognised by their names, as in training. In a table without a header line they are guessed, as by
`qkv init`.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from qkv.data import Problems, Record
from qkv.data.builtin import DATASETS
from qkv.data.builtin.dataset import SPLITS
from qkv.data.objectives.table import OBJECTIVES
from qkv.errors import UsageError, shorten, suggest_name
from qkv.progress import OnProgress
from qkv.tasks.prepare.columns import UnrecognisedColumns, check_columns, guess_columns
from qkv.tasks.prepare.sources import TABS_HINT, BuiltinSource, DataSource, open_source, open_sources
from qkv.tasks.task import Task
from qkv.train.recipe.schema import DataSection, ObjectiveSection, Recipe


def _check_files(data: Any) -> Any:
    """The name of a file, a tuple of names, or field → name, with all names as texts."""
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
    split: str = "",
    max_records: int = 0,
    guess: bool = True,
    notes: list[str] | None = None,
    problems: Problems | None = None,
    progress: OnProgress | None = None,
) -> list[Record]:
    """Load records from a file, several files, line-aligned files (field → file), or a split of a built-in dataset.

    `columns` maps fields to columns; `records_key` is for JSON documents. At most `max_records` are loaded (0: all).
    With `guess`, the columns of a table without a header line are guessed, and `notes` gets a note on the guess.
    `problems` counts invalid records.
    """
    files = _check_files(data)
    if isinstance(files, tuple) and len(files) == 1:
        files = files[0]
    is_builtin = isinstance(files, str) and files in DATASETS
    if split and not is_builtin:
        raise UsageError(
            f"split = {split!r} is for built-in datasets ({', '.join(DATASETS)}), not for files; leave it out"
        )
    if split and split not in SPLITS:
        raise UsageError(f"split = {split!r} is not a split; {suggest_name(split, SPLITS)}")
    check_columns(task.objective, columns or {}, "columns", f"a model that {task.description}")
    section = DataSection(format=format, columns=dict(columns or {}), records_key=records_key)
    source = _open_source(task, files, section, split or "test", guess, [] if notes is None else notes)
    if max_records and isinstance(source, BuiltinSource):
        length = source.dataset.length(source.split)
        if length != source.num_examples:
            source = replace(source, num_examples=max_records if length is None else min(max_records, length))
    records = source.records(problems or Problems(max_invalid_fraction=1), progress)
    return list(islice(records, max_records) if max_records else records)


def _open_source(task: Task, files: Any, section: DataSection, split: str, guess: bool, notes: list[str]) -> DataSource:
    """Open the data of an evaluation. If no columns are recognised, those of a table without a header are guessed."""
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
            guessed = guess_columns(task.objective, names, error.records)
        except UsageError:  # too few columns
            raise UsageError(f"{error.problem}. Add the missing columns") from None
        numbers = {name: str(names.index(column)) for name, column in guessed.items()}
        has_numbers = names == [str(number) for number in range(len(names))]  # there is no header line
        # Of several columns, any could be the text of a language model.
        if not (guess and has_numbers) or (spec.reads_documents and len(names) > 1):
            raise UsageError(f"{error.problem}. {_advise(error, guessed, numbers)}") from None
    notes.append(
        f"no header line, so {', '.join(f'column {number} is read as the {name}' for name, number in guessed.items())} "
        "(counted from 0); --columns (in Python, columns=) chooses other columns"
    )
    return open_source(recipe, replace(section, columns=guessed), files, split)  # type: ignore[arg-type]


def _advise(error: UnrecognisedColumns, guessed: Mapping[str, str], numbers: Mapping[str, str]) -> str:
    """How to choose columns, with the guess as the example, on the command line and in Python."""
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
    return list(islice(records, max_records or None))
