"""Image files in folders and archives: each file is a record, and its label is the name of its folder.

photos/cats/1.jpg, photos/dogs/2.jpg        image and label
photos/1.jpg                                only the image
"""

import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import IO, Any

from qkv.data.problems import Problems
from qkv.data.readers.decompress import DecompressedFile
from qkv.data.readers.find_files import FileGroup
from qkv.data.readers.formats import IMAGE_EXTENSIONS
from qkv.data.readers.options import ReadContext
from qkv.data.records import FileLocation, Record
from qkv.images.files import MAX_FILE_BYTES, read_file

LABEL_FIELD = "label"


def read_images(group: FileGroup, context: ReadContext) -> Iterator[Record]:
    """The files of a folder. `group.fields` has their paths relative to the folder that the user named."""
    choose = context.options.columns
    for path, name in zip(group.paths, group.fields or map(str, group.paths), strict=True):
        context.problems.num_seen += 1
        location = FileLocation(str(path))
        try:
            content = read_file(path)
        except OSError as error:
            context.problems.skip("unreadable file", location, f"cannot be read: {error.strerror}")
            continue
        yield make_record(content, PurePosixPath(Path(name).as_posix()), location, choose)
        if context.on_bytes:
            context.on_bytes(len(content))


def read_archive(group: FileGroup, context: ReadContext) -> Iterator[Record]:
    """The image files in a tar (also compressed) or zip archive. Nothing is written to the disk."""
    path, problems, count = group.paths[0], context.problems, 0
    try:
        for name, content in read_zip(path) if zipfile.is_zipfile(path) else read_tar(path, context):
            if PurePosixPath(name).suffix.lower() not in IMAGE_EXTENSIONS:
                note_other_file(problems, path, name)
                continue
            count += 1
            problems.num_seen += 1
            yield make_record(content, PurePosixPath(name), FileLocation(f"{path}/{name}"), context.options.columns)
    except (tarfile.TarError, zipfile.BadZipFile, OSError, EOFError, RuntimeError, NotImplementedError) as error:
        problems.broken_file("damaged archive", FileLocation(str(path), count), f"cannot be read further: {error}")
    if not count:
        problems.note("empty file", FileLocation(str(path)), "the archive has no images")
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
    """Read at most one byte more than an image file may have, so that larger files are recognised."""
    return file.read(MAX_FILE_BYTES + 1)


def make_record(content: bytes, name: PurePosixPath, location: FileLocation, columns: Any) -> Record:
    """A record with the image and, if the file is in a folder, the name of the folder. `columns` may rename both."""
    fields: dict[str, Any] = {"image": content}
    if name.parent.name not in ("", ".", ".."):
        fields[LABEL_FIELD] = name.parent.name
    if columns is not None:
        fields = {field: fields[column] for field, column in columns.items() if column in fields}
    return Record(fields, location)


def note_other_file(problems: Problems, path: Path, name: str) -> None:
    """Report a file of an archive that is not an image."""
    problems.note("unknown extension", FileLocation(f"{path}/{name}"), "not read, because it is not an image")
