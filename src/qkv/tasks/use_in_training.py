"""Whether a run was trained or validated on the files of an evaluation, so that its score is not a test score."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from qkv.data import DataFiles, Problems
from qkv.data.builtin import DATASETS
from qkv.data.cache.file_hashes import FileHashes
from qkv.errors import QkvError
from qkv.tasks.prepare.sources import cache_root
from qkv.train.recipe.schema import Files, Recipe


def describe_use_in_training(
    recipe: Recipe, files: Files, *, format: str = "", split: str = "", is_held_out: bool = False
) -> str:
    """Why a score on these files is not a test score of a run with this recipe; "" if the run has not used them.

    With `is_held_out`, the records are those that the run held out of the files.
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
    """Those of the files that a run with this recipe was trained on, or copies of such files."""
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
