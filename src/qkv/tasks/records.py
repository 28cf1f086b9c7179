"""Records to judge a model on: the user's files, or a dataset that comes with qkv, by the names of the task's fields.

Columns are found as training finds them, so that what a recipe trains on can be given to `qkv eval` as it is.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from qkv.data import Problems, Record
from qkv.data.builtin import DATASETS
from qkv.data.builtin.dataset import SPLITS
from qkv.errors import UsageError, nearest
from qkv.tasks.prepare_data import BuiltinPart, part_of
from qkv.tasks.prepare_fields import FIELDS
from qkv.tasks.task import Task
from qkv.train.recipe import DataSection, ObjectiveSection, Recipe


def records_of(
    task: Task,
    data: str | Sequence[str] | Mapping[str, str],
    *,
    columns: Mapping[str, str] | None = None,
    format: str = "",
    split: str = "",
    limit: int = 0,
    problems: Problems | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Record]:
    """Records of files (one, several, or field → file for files in step), or of a split of a built-in dataset.

    `columns` says which column is which field; `limit` takes the first so many; bad records go to `problems`.
    """
    given: Any = dict(data) if isinstance(data, Mapping) else data if isinstance(data, str) else tuple(data)
    if isinstance(given, tuple) and len(given) == 1:
        given = given[0]
    builtin = isinstance(given, str) and given in DATASETS
    if split and not builtin:
        raise UsageError(f"split = {split!r} is for datasets that come with qkv ({', '.join(DATASETS)}), not for files")
    if split and split not in SPLITS:
        raise UsageError(f"split = {split!r}; {nearest(split, SPLITS)}")
    known = [field.name for field in FIELDS[task.objective]]
    for name in columns or {}:
        if name not in known:
            raise UsageError(f"columns: a model that {task.does} has no field {name!r}; {nearest(name, known)}")
    section = DataSection(format=format, columns=dict(columns or {}))
    objective = ObjectiveSection(kind=task.objective)  # type: ignore[arg-type]
    try:
        part = part_of(Recipe(data=section, objective=objective), section, given, split or "test")  # type: ignore[arg-type]
    except UsageError as error:
        hint = "\nOn the command line: --columns FIELD=COLUMN, once for each" if "data.columns" in str(error) else ""
        raise UsageError(f"{error}{hint}") from error
    if limit and isinstance(part, BuiltinPart) and (end := part.dataset.length(part.split)) != part.count:
        part = replace(part, count=limit if end is None else min(limit, end))
    found = part.records(problems or Problems(max_bad=1), progress)
    return list(islice(found, limit) if limit else found)
