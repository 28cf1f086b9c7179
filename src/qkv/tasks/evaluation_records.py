"""Load the records of an evaluation from the user's files or a built-in dataset, with the task's field names.

Columns are recognised as in training, so `qkv eval` reads the same files as a recipe. `describe_use_in_training` says
whether a run was trained or validated on the same files.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from qkv.data import DataFiles, Problems, Record
from qkv.data.builtin import DATASETS
from qkv.data.builtin.dataset import SPLITS
from qkv.data.cache.file_hashes import FileHashes
from qkv.errors import QkvError, UsageError, shorten, suggest_name
from qkv.progress import OnProgress
from qkv.tasks.prepare.columns import check_columns
from qkv.tasks.prepare.sources import BuiltinSource, cache_root, open_source, open_sources
from qkv.tasks.task import Task
from qkv.train.recipe.schema import DataSection, Files, ObjectiveSection, Recipe


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


def describe_use_in_training(
    recipe: Recipe, files: Files, *, format: str = "", split: str = "", is_held_out: bool = False
) -> str:
    """Why a score on these files is not a test score of a run with this recipe; "" if the run has not used them.

    With `is_held_out`, the records are those that the run held out of the files.
    """
    data = recipe.data
    chooses = "the run chose its weights by the score on" if _chooses_weights(recipe) else "the run was validated on"
    if is_held_out:
        return f"this is not a test score: {chooses} these records"
    sections = [(data.train, data.format)]
    if data.mix:
        sections = [(one["train"], one.get("format", data.format)) for one in data.mix.values()]
    trained = {path for names, own_format in sections for path in _find_files(names, own_format, "train")}
    validated = _find_files(data.valid, data.format, "valid")
    if data.valid_fraction and not data.valid:  # a built-in dataset has a split for it
        validated = {Path(names, "valid") for names, _ in sections if isinstance(names, str) and names in DATASETS}
    given = _find_files(files, format, split or "test")
    root = cache_root(data)
    if same := _find_same_files(given, trained, root):
        held_out = bool(data.valid_fraction) and not data.valid and all(path.is_absolute() for path in same)
        exception = f", except for the {data.valid_fraction:.0%} that it held out" if held_out else ""
        return f"this is not a test score: the run was trained on {_list_names(same)}{exception}"
    if same := _find_same_files(given, validated, root):
        return f"this is not a test score: {chooses} {_list_names(same)}"
    return ""


def _chooses_weights(recipe: Recipe) -> bool:
    return recipe.train.final == "best" or recipe.train.patience > 0


def _find_files(files: Files, format: str, split: str) -> set[Path]:
    """The absolute paths of files; for a built-in dataset, its name and the split as a relative path."""
    if isinstance(files, str) and files in DATASETS:
        return {Path(files, split)}
    with suppress(QkvError):  # files of a recipe may no longer exist
        paths = list(files) if isinstance(files, tuple) else files
        groups = DataFiles(paths, format or None).find_groups(Problems(max_invalid_fraction=1)) if paths else []
        return {path.resolve() for group in groups for path in group.paths}
    return set()


def _find_same_files(files: set[Path], others: set[Path], root: Path) -> list[Path]:
    """The files that are also in `others`, or a copy of one of them. Only files of the same size are hashed."""
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
