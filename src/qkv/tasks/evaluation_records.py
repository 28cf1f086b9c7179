"""Load the records of an evaluation from the user's files or a built-in dataset, with the task's field names.

Columns are recognised as in training, so `qkv eval` reads the same files as a recipe.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from qkv.data import Problems, Record
from qkv.data.builtin import DATASETS
from qkv.data.builtin.dataset import SPLITS
from qkv.errors import UsageError, shorten, suggest_name
from qkv.progress import OnProgress
from qkv.tasks.prepare.columns import check_columns
from qkv.tasks.prepare.sources import BuiltinSource, open_source, open_sources
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
    problems: Problems | None = None,
    progress: OnProgress | None = None,
) -> list[Record]:
    """Load records from a file, several files, line-aligned files (field → file), or a split of a built-in dataset.

    `columns` maps fields to columns; `key` is for JSON documents. At most `max_records` are loaded (0: all).
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
    recipe = Recipe(data=section, objective=ObjectiveSection(kind=task.objective))
    try:
        source = open_source(recipe, section, files, split or "test")  # type: ignore[arg-type]
    except UsageError as error:
        hint = "\nOn the command line: --columns FIELD=COLUMN, once for each" if "data.columns" in str(error) else ""
        raise UsageError(f"{error}{hint}") from error
    if max_records and isinstance(source, BuiltinSource):
        length = source.dataset.length(source.split)
        if length != source.num_examples:
            source = replace(source, num_examples=max_records if length is None else min(max_records, length))
    records = source.records(problems or Problems(max_invalid_fraction=1), progress)
    return list(islice(records, max_records) if max_records else records)


def held_out_records(
    recipe: Recipe, max_records: int = 0, problems: Problems | None = None, progress: OnProgress | None = None
) -> list[Record]:
    """The records that a run with this recipe holds out of its training files for validation (0: all of them)."""
    problems = problems or Problems(max_invalid_fraction=1)
    records = chain.from_iterable(source.records(problems, progress) for source in open_sources(recipe).valid)
    return list(islice(records, max_records or None))
