"""Files of images or sounds in folders and archives: each file is a record, and its label is the name of its folder.

photos/cats/1.jpg, photos/dogs/2.jpg        image and label
photos/1.jpg                                only the image
clips/yes/1.wav                             audio and label
clips/1.wav, clips/1.txt                    audio and its transcript
84/1-2.flac, 84/1.trans.txt                 the same; lines of the second file begin with the name of a sound
"""

import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePath, PurePosixPath
from typing import IO, Any

from qkv.data.problems import Problems
from qkv.data.readers.decompress import DecompressedFile
from qkv.data.readers.find_files import TRANSCRIPTS, FileGroup
from qkv.data.readers.formats import FORMAT_BY_EXTENSION, GROUPED_FORMATS
from qkv.data.readers.options import ReadContext
from qkv.data.records import FileLocation, Record
from qkv.images.files import MAX_FILE_BYTES, read_file

LABEL_FIELD, TRANSCRIPT_FIELD = "label", "text"
MAX_TRANSCRIPT_BYTES = 64 * 2**20


def read_files(group: FileGroup, context: ReadContext) -> Iterator[Record]:
    """The files of a folder. `group.fields` has their paths relative to the folder that the user named."""
    named = list(zip(group.paths, group.fields or map(str, group.paths), strict=True))
    contents = [(path, name) for path, name in named if field_of_file(path)]
    transcripts = read_transcripts([path for path, _ in named if not field_of_file(path)], context.problems)
    for path, name in contents:
        context.problems.num_seen += 1
        location = FileLocation(str(path))
        try:
            content = read_file(path)
        except OSError as error:
            context.problems.skip("unreadable file", location, f"cannot be read: {error.strerror}")
            continue
        text = transcripts.get(path.with_suffix(""))
        yield make_record(content, PurePosixPath(Path(name).as_posix()), location, context.options.columns, text)
        if context.on_bytes:
            context.on_bytes(len(content))


def field_of_file(path: PurePath) -> str:
    """The field of a record for a file, by its extension: image, audio, or "" for other files."""
    return GROUPED_FORMATS.get(FORMAT_BY_EXTENSION.get(path.suffix.lower(), ""), "")


def read_transcripts(paths: Sequence[Path], problems: Problems) -> dict[Path, str]:
    """The path of each sound without its extension → its transcript."""
    found: dict[Path, str] = {}
    for path in paths:
        try:
            with open(path, encoding="utf-8") as file:
                content = file.read(MAX_TRANSCRIPT_BYTES)
        except (OSError, UnicodeDecodeError) as error:
            problems.note("unreadable transcript", FileLocation(str(path)), f"cannot be read: {error}")
            continue
        if path.name.endswith(TRANSCRIPTS):
            lines = (line.partition(" ") for line in content.splitlines())
            found |= {path.parent / name: text.strip() for name, _, text in lines}
        else:
            found[path.with_suffix("")] = " ".join(content.split())
    return found


def read_archive(group: FileGroup, context: ReadContext) -> Iterator[Record]:
    """The image and sound files in a tar (also compressed) or zip archive. Nothing is written to the disk."""
    path, problems, count = group.paths[0], context.problems, 0
    try:
        for name, content in read_zip(path) if zipfile.is_zipfile(path) else read_tar(path, context):
            if not field_of_file(PurePosixPath(name)):
                note_other_file(problems, path, name)
                continue
            count += 1
            problems.num_seen += 1
            yield make_record(content, PurePosixPath(name), FileLocation(f"{path}/{name}"), context.options.columns)
    except (tarfile.TarError, zipfile.BadZipFile, OSError, EOFError, RuntimeError, NotImplementedError) as error:
        problems.broken_file("damaged archive", FileLocation(str(path), count), f"cannot be read further: {error}")
    if not count:
        problems.note("empty file", FileLocation(str(path)), "the archive has neither images nor sounds")
    if context.on_bytes:
        context.on_bytes(path.stat().st_size)


def read_tar(path: Path, context: ReadContext) -> Iterator[tuple[str, bytes]]:
    """The names and contents of the files in a tar archive, read from its start to its end."""
    stream: Any = DecompressedFile(path, replace(context, on_bytes=None))
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isfile() else None
            if file is not None:
                yield member.name, read_some(file)


def read_zip(path: Path) -> Iterator[tuple[str, bytes]]:
    """The names and contents of the files in a zip archive."""
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if not member.is_dir():
                with archive.open(member) as file:
                    yield member.filename, read_some(file)


def read_some(file: IO[bytes]) -> bytes:
    """Read at most one byte more than a file may have, so that larger files are recognised."""
    return file.read(MAX_FILE_BYTES + 1)


def make_record(
    content: bytes, name: PurePosixPath, location: FileLocation, columns: Any, transcript: str | None = None
) -> Record:
    """A record with the image or sound, its transcript, and if the file is in a folder, the name of the folder.
    `columns` may rename them.
    """
    fields: dict[str, Any] = {field_of_file(name): content}
    if transcript is not None:
        fields[TRANSCRIPT_FIELD] = transcript
    if name.parent.name not in ("", ".", ".."):
        fields[LABEL_FIELD] = name.parent.name
    return Record(choose_columns(fields, columns), location)


def choose_columns(fields: dict[str, Any], columns: Any) -> dict[str, Any]:
    """The fields of a record, by the columns that were chosen; all of them if there is no choice."""
    if columns is None:
        return fields
    return {field: fields[column] for field, column in columns.items() if column in fields}


def note_other_file(problems: Problems, path: Path, name: str) -> None:
    """Report another file of an archive."""
    problems.note(
        "unknown extension", FileLocation(f"{path}/{name}"), "not read, because it is neither an image nor a sound"
    )
