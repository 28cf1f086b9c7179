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
from qkv.errors import UsageError, suggest_name
from qkv.tasks.prepare.columns import field_names
from qkv.tasks.prepare.sources import BuiltinSource, open_source
from qkv.tasks.task import Task
from qkv.train.recipe.schema import DataSection, ObjectiveSection, Recipe


def load_records(
    task: Task,
    data: str | Sequence[str] | Mapping[str, str],
    *,
    columns: Mapping[str, str] | None = None,
    format: str = "",
    split: str = "",
    max_records: int = 0,
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
        raise UsageError(f"split = {split!r}; {suggest_name(split, SPLITS)}")
    known = field_names(task.objective)
    for name in columns or {}:
        if name not in known:
            raise UsageError(
                f"columns: a model that {task.description} has no field {name!r}; {suggest_name(name, known)}"
            )
    section = DataSection(format=format, columns=dict(columns or {}))
    objective = ObjectiveSection(kind=task.objective)  # type: ignore[arg-type]
    try:
        part = open_source(Recipe(data=section, objective=objective), section, given, split or "test")  # type: ignore[arg-type]
    except UsageError as error:
        hint = "\nOn the command line: --columns FIELD=COLUMN, once for each" if "data.columns" in str(error) else ""
        raise UsageError(f"{error}{hint}") from error
    if (
        max_records
        and isinstance(part, BuiltinSource)
        and (end := part.dataset.length(part.split)) != part.num_examples
    ):
        part = replace(part, num_examples=max_records if end is None else min(max_records, end))
    found = part.records(problems or Problems(max_invalid_fraction=1), progress)
    return list(islice(found, max_records) if max_records else found)
