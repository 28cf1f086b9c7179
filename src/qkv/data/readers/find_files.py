"""From what the user wrote (files, globs, folders) to the files to read and the format of each.

Order is sorted, so that two machines agree. In folders and globs a file whose extension says nothing is reported and
left out; one that was named outright is an error, because somebody meant it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from glob import glob, has_magic
from os import PathLike
from pathlib import Path

from qkv.data.problems import Problems
from qkv.data.readers.decompress import COMPRESSION_BY_EXTENSION, open_file
from qkv.data.records import FileLocation
from qkv.errors import QkvError, UsageError

PathArgument = str | PathLike[str]
PathsArgument = PathArgument | Sequence[PathArgument] | Mapping[str, "PathArgument | Sequence[PathArgument]"]

FORMAT_BY_EXTENSION = {
    ".txt": "text",
    ".text": "text",
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".jsonlines": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".conll": "conll",
    ".iob": "conll",
    ".iob2": "conll",
    ".bio": "conll",
    ".conllu": "conllu",
}


@dataclass(frozen=True)
class FileGroup:
    """What one reader reads at a time: a file, or several that go in step (`aligned`, with a field name for each)."""

    format: str
    paths: tuple[Path, ...]
    fields: tuple[str, ...] = ()


def find_file_groups(paths: PathsArgument, format: str | None, problems: Problems) -> list[FileGroup]:
    """The parts to read, in order. A mapping of field → file means aligned files.

    >>> find_file_groups("corpus/*.jsonl", None, Problems())             # doctest: +SKIP
    >>> find_file_groups({"source": "train.en", "target": "train.fr"}, None, Problems())  # doctest: +SKIP
    """
    if isinstance(paths, Mapping):
        if format not in (None, "aligned"):
            raise UsageError(f"files given by field are read side by side, line by line; that is no {format}")
        return _make_aligned_groups(paths, problems)
    listed = list_paths(paths)
    if not listed:
        raise UsageError("no files were given")
    if format == "aligned" or (format is None and _look_aligned(listed)):
        if len(listed) < 2:
            raise UsageError(
                "aligned files come in twos or more; give them as a list, or by field: {source = …, target = …}"
            )
        return _make_aligned_groups(dict(zip(_field_names(listed), listed, strict=True)), problems)
    parts = []
    for path in listed:
        found, outright = _expand_path(path)
        usable = [part for file in found if (part := _make_group(file, format, outright, problems))]
        if not usable:
            raise QkvError(f"nothing in {path} has a format that its name tells; {_format_hint()}")
        parts += usable
    return parts


def list_paths(paths: PathsArgument) -> list[PathArgument]:
    """One path or many, as a list; of a mapping, all the files it names.

    >>> list_paths("a.txt"), list_paths({"source": "a.en", "target": ["b.fr", "c.fr"]})
    (['a.txt'], ['a.en', 'b.fr', 'c.fr'])
    """
    if isinstance(paths, str | PathLike):
        return [paths]
    if isinstance(paths, Mapping):
        return [path for given in paths.values() for path in list_paths(given)]
    return list(paths)


def format_extension(path: Path) -> str:
    """The extension that tells the format, below any compression.

    >>> format_extension(Path("train.JSONL.gz")), format_extension(Path("README"))
    ('.jsonl', '')
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSION_BY_EXTENSION:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def _make_group(path: Path, format: str | None, named_explicitly: bool, problems: Problems) -> FileGroup | None:
    guess = format or FORMAT_BY_EXTENSION.get(format_extension(path))
    if guess:
        return FileGroup(guess, (path,))
    if named_explicitly:
        raise UsageError(f"the name of {path} does not tell its format; {_format_hint()}")
    problems.note(
        "unknown extension", FileLocation(str(path)), f"not read: the name does not tell its format; {_format_hint()}"
    )
    return None


def _expand_path(path: PathArgument) -> tuple[list[Path], bool]:
    """The files behind one name, and whether they were named outright."""
    here = Path(path)
    if here.is_dir():
        files = sorted(file for file in here.rglob("*") if file.is_file())
        if not files:
            raise QkvError(f"the folder {path} holds no files")
        return files, False
    if has_magic(str(path)) and not here.exists():
        files = sorted(Path(match) for match in glob(str(path), recursive=True))
        files = [file for file in files if file.is_file()]
        if not files:
            raise QkvError(f"no file matches {path}")
        return files, False
    open_file(here).close()  # fail now, with the reason, and not after an hour of reading others
    return [here], True


def _make_aligned_groups(
    paths: Mapping[str, PathArgument | Sequence[PathArgument]], problems: Problems
) -> list[FileGroup]:
    columns = {}
    for name, given in paths.items():
        listed = list_paths(given)
        for path in listed:
            if Path(path).is_dir():
                raise QkvError(f"{path} is a folder; aligned files are named one by one, or by a glob")
        columns[name] = [file for path in listed for file in _expand_path(path)[0]]
    counts = {name: len(files) for name, files in columns.items()}
    if len(set(counts.values())) != 1:
        told = ", ".join(f"{count} for {name}" for name, count in counts.items())
        raise QkvError(f"aligned files must be as many on every side; there are {told}")
    return [FileGroup("aligned", together, tuple(columns)) for together in zip(*columns.values(), strict=True)]


def _look_aligned(paths: list[PathArgument]) -> bool:
    """`train.en` and `train.fr`: files of one stem whose extensions are languages, not formats."""
    files = [Path(path) for path in paths]
    if len(files) < 2 or not all(file.name for file in files):
        return False
    extensions = {format_extension(file) for file in files}
    stems = {
        (file.with_suffix("") if file.suffix.lower() in COMPRESSION_BY_EXTENSION else file).with_suffix("")
        for file in files
    }
    return len(extensions) == len(files) and len(stems) == 1 and not extensions & {"", *FORMAT_BY_EXTENSION}


def _field_names(paths: list[PathArgument]) -> list[str]:
    """Fields called after the extensions (`en`, `fr`) where these tell the files apart, else after their numbers."""
    names = [format_extension(Path(path)).removeprefix(".") for path in paths]
    return names if len(set(names)) == len(names) and all(names) else [str(number) for number in range(len(names))]


def _format_hint() -> str:
    return "give format = one of: " + ", ".join(sorted({*FORMAT_BY_EXTENSION.values(), "aligned", "squad", "datasets"}))
