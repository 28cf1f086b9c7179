"""From the user's files, globs and folders to the files to read and the format of each.

Files are sorted, so that two machines agree. In a folder or glob, a file with an unknown extension is reported and
left out; if the user named it explicitly, its content says its format.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from glob import glob, has_magic
from os import PathLike
from pathlib import Path

from qkv.data.problems import Problems
from qkv.data.readers.decompress import COMPRESSION_BY_EXTENSION, open_data_file
from qkv.data.readers.formats import FORMAT_BY_EXTENSION, FORMATS, GROUPED_FORMATS
from qkv.data.readers.options import ReadOptions
from qkv.data.readers.sniff import SNIFFED_EXTENSIONS, guess_format, sniff_format
from qkv.data.records import FileLocation
from qkv.errors import QkvError, UsageError
from qkv.files import to_path

PathArgument = str | PathLike[str]
PathsArgument = PathArgument | Sequence[PathArgument] | Mapping[str, "PathArgument | Sequence[PathArgument]"]

UNREAD_ARCHIVES = {".7z", ".rar"}
KALDI_FILES = ("wav.scp", "text", "segments", "utt2spk")
TRANSCRIPTS = ".trans.txt"  # of all sounds of a folder
IDX_NAME = "idx3-ubyte"  # in the names of MNIST's files of images, which may have no extension


@dataclass(frozen=True)
class FileGroup:
    """What one reader reads at a time: a file, or several line-aligned files (`aligned`) with a field for each."""

    format: str
    paths: tuple[Path, ...]
    fields: tuple[str, ...] = ()


def find_file_groups(
    paths: PathsArgument, format: str | None, problems: Problems, options: ReadOptions | None = None
) -> list[FileGroup]:
    """The groups of files to read, in order. A mapping of field → file means aligned files."""
    if isinstance(paths, Mapping):
        if format not in (None, "aligned"):
            raise UsageError(
                f"format {format!r} does not apply to files given by field ({', '.join(paths)}), because these are "
                "always read as line-aligned files; leave out the format, or give the files without fields"
            )
        return _make_aligned_groups(paths)
    listed = list_paths(paths)
    if not listed:
        raise UsageError("the list of data files is empty; name at least one file, folder or glob")
    if format == "aligned" or (format is None and _look_aligned(listed)):
        if len(listed) < 2:
            raise UsageError(
                "line-aligned data needs at least two files; give them as a list, or by field: {source = …, target = …}"
            )
        return _make_aligned_groups(dict(zip(_field_names(listed), listed, strict=True)))
    groups: list[FileGroup] = []
    for path in listed:
        files, is_explicit = _expand_path(path)
        num_before = len(groups)
        formats: dict[str, str] = {}  # by extension; in a folder, the first file with an extension decides for all
        together: dict[str, list[Path]] = {}  # images or sounds by their format
        for file in files:
            if file.name in KALDI_FILES[1:] and file.with_name(KALDI_FILES[0]).is_file() and not is_explicit:
                continue
            extension = format_extension(file)
            if format is None and extension in SNIFFED_EXTENSIONS and extension not in formats:
                formats[extension] = _sniff(file, FORMAT_BY_EXTENSION[extension], options or ReadOptions(), problems)
            found = format or formats.get(extension) or FORMAT_BY_EXTENSION.get(extension)
            if not found and IDX_NAME in file.name:
                found = "idx"
            if not found and is_explicit:
                found = _guess(file, options or ReadOptions(), problems)
            if found in GROUPED_FORMATS:
                together.setdefault(found, []).append(file)
            elif found == "kaldi":
                siblings = (file.with_name(name) for name in KALDI_FILES[1:])
                groups.append(FileGroup("kaldi", (file, *(path for path in siblings if path.is_file()))))
            elif found == "idx":
                groups.append(FileGroup("idx", (file, *filter(None, [find_labels(file)]))))
            elif found:
                groups.append(FileGroup(found, (file,)))
            else:
                reason = f"not read, because the extension is unknown; {_format_hint()}"
                problems.note("unknown extension", FileLocation(str(file)), reason)
        if together:
            groups[num_before:] = _make_content_groups(path, together, groups[num_before:], problems)
        if len(groups) == num_before:
            raise QkvError(f"no file in {path} has a known extension; {_format_hint()}")
    return groups


def _make_content_groups(
    path: PathArgument, together: Mapping[str, list[Path]], others: Sequence[FileGroup], problems: Problems
) -> list[FileGroup]:
    """The groups of images and of sounds in a folder. Text files beside sounds may have their transcripts; other files
    of the folder are reported.
    """
    sounds = {file.with_suffix("") for file in together.get("sounds", ())}
    transcripts = [group.paths[0] for group in others if is_transcript(group.paths[0], sounds)]
    for group in others:
        if group.paths[0] not in transcripts:
            reason = f"not read, because the folder has {' and '.join(together)}; name it to read it"
            problems.note("other file", FileLocation(str(group.paths[0])), reason)
    root = to_path(path) if to_path(path).is_dir() else Path()
    made = []
    for format, files in together.items():
        paths = [*files, *transcripts] if format == "sounds" else files
        names = tuple(file.relative_to(root).as_posix() if root in file.parents else str(file) for file in paths)
        made.append(FileGroup(format, tuple(paths), names))
    return made


def is_transcript(path: Path, sounds: Collection[Path]) -> bool:
    """Whether a text file beside sounds has the transcript of one of them, or of several. `sounds` lack extensions."""
    if path.name.endswith(TRANSCRIPTS):
        return any(path.parent == sound.parent for sound in sounds)
    return path.suffix.lower() == ".txt" and path.with_suffix("") in sounds


def list_paths(paths: PathsArgument) -> list[PathArgument]:
    """One path or many, as a list; for a mapping, all its files.

    >>> list_paths("a.txt"), list_paths({"source": "a.en", "target": ["b.fr", "c.fr"]})
    (['a.txt'], ['a.en', 'b.fr', 'c.fr'])
    """
    if isinstance(paths, str | PathLike):
        return [paths]
    if isinstance(paths, Mapping):
        return [path for given in paths.values() for path in list_paths(given)]
    return list(paths)


def format_extension(path: Path) -> str:
    """The extension that decides the format, in lower case. A compression extension such as `.gz` is ignored.

    >>> format_extension(Path("train.JSONL.gz")), format_extension(Path("README"))
    ('.jsonl', '')
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSION_BY_EXTENSION:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def find_labels(path: Path) -> Path | None:
    """The file of labels beside an IDX file of images; None if there is none."""
    other = path.with_name(path.name.replace("images", "labels").replace("idx3", "idx1"))
    return other if other != path and other.is_file() else None


def _sniff(path: Path, format: str, options: ReadOptions, problems: Problems) -> str:
    found, reason = sniff_format(path, format, options)
    if found != format:
        other = f'to read it as {format}, use --format {format} on the command line, or data.format = "{format}"'
        problems.note("format", FileLocation(str(path)), f"read as {found}, because it has {reason}; {other}")
    return found


def _guess(file: Path, options: ReadOptions, problems: Problems) -> str:
    """The format of a file whose extension is unknown, by its content; an archive or a binary file is an error."""
    if UNREAD_ARCHIVES & set(file.suffixes):
        raise UsageError(f"{file} is an archive that qkv cannot read; unpack it, and pass the paths of its files")
    found = guess_format(file, options)
    if not found:
        raise UsageError(f"{file} has no known extension; {_format_hint()}. It looks like a binary file")
    problems.note("format", FileLocation(str(file)), f"read as {found} by its first lines; to choose another: --format")
    return found


def _expand_path(path: PathArgument) -> tuple[list[Path], bool]:
    """The files of a folder, a glob or a name, and whether a single file was named explicitly."""
    given = to_path(path)
    if given.is_dir():
        files = sorted(file for file in given.rglob("*") if file.is_file())
        if not files:
            raise QkvError(f"the folder {path} contains no files; name a folder with data files")
        return files, False
    if has_magic(str(path)) and not given.exists():
        files = sorted(Path(match) for match in glob(str(path), recursive=True))
        files = [file for file in files if file.is_file()]
        if not files:
            raise QkvError(f"no file matches {path}; check the pattern and the working directory")
        return files, False
    open_data_file(given).close()  # fail now, with the reason, and not after an hour of reading other files
    return [given], True


def _make_aligned_groups(paths: Mapping[str, PathArgument | Sequence[PathArgument]]) -> list[FileGroup]:
    files_by_field = {}
    for field, given in paths.items():
        listed = list_paths(given)
        for path in listed:
            if Path(path).is_dir():
                raise QkvError(f"{path} is a folder; name aligned files one by one, or with a glob")
        files_by_field[field] = [file for path in listed for file in _expand_path(path)[0]]
    counts = {field: len(files) for field, files in files_by_field.items()}
    if len(set(counts.values())) != 1:
        listed_counts = ", ".join(f"{count} for {field}" for field, count in counts.items())
        raise QkvError(f"every field needs the same number of aligned files, but there are {listed_counts}")
    fields = tuple(files_by_field)
    return [FileGroup("aligned", files, fields) for files in zip(*files_by_field.values(), strict=True)]


def _look_aligned(paths: list[PathArgument]) -> bool:
    """Whether these are files like `train.en` and `train.fr`: one stem, and extensions that are not formats."""
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
    """The names of the fields: the extensions (`en`, `fr`) if they are distinct, otherwise numbers."""
    names = [format_extension(Path(path)).removeprefix(".") for path in paths]
    return names if len(set(names)) == len(names) and all(names) else [str(number) for number in range(len(names))]


def _format_hint() -> str:
    return f"set the format (--format, or data.format in a recipe) to one of: {', '.join(sorted(FORMATS))}"
