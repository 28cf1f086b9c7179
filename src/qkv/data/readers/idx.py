"""IDX files, the format of MNIST: an array of images, and an array of labels in a second file beside it.

train-images-idx3-ubyte.gz and train-labels-idx1-ubyte.gz      the second is found by its name
"""

import struct
from collections.abc import Iterator
from pathlib import Path

from qkv.data.readers.contents import LABEL_FIELD
from qkv.data.readers.decompress import DecompressedFile
from qkv.data.readers.find_files import FileGroup
from qkv.data.readers.options import ReadContext
from qkv.data.records import FileLocation, Record
from qkv.errors import QkvError

UNSIGNED_BYTES = 8  # the code of the only type of numbers that is read


def read_idx(group: FileGroup, context: ReadContext) -> Iterator[Record]:
    """The images of an IDX file, each as the bytes of a PGM or PPM file, with their labels."""
    path = group.paths[0]
    file, columns = str(path), context.options.columns
    images = DecompressedFile(path, context)
    count, *shape = read_header(images, path)
    if len(shape) not in (2, 3) or (len(shape) == 3 and shape[2] != 3):
        raise QkvError(f"{path}: an array of shape {(count, *shape)} does not hold images; name the file of images")
    labels = read_labels(group.paths[1], count, context) if len(group.paths) > 1 else None
    height, width = shape[:2]
    header = f"P{5 if len(shape) == 2 else 6} {width} {height} 255\n".encode()
    size = height * width * (3 if len(shape) == 3 else 1)
    for number in range(count):
        content = images.read(size)
        if len(content) < size:
            location = FileLocation(file, number + 1)
            context.problems.broken_file("damaged IDX", location, f"the file ends before image {number + 1}")
            break
        context.problems.num_seen += 1
        fields = {"image": header + content, **({} if labels is None else {LABEL_FIELD: str(labels[number])})}
        if columns is not None:
            fields = {field: fields[str(column)] for field, column in columns.items() if column in fields}
        yield Record(fields, FileLocation(file, number + 1))


def read_header(file: DecompressedFile, path: Path) -> list[int]:
    """The shape of the array in an IDX file."""
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] != UNSIGNED_BYTES or not 1 <= magic[3] <= 4:
        raise QkvError(f"{path} is not an IDX file of bytes: it begins with {magic!r}; name a file such as MNIST's")
    sizes = file.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise QkvError(f"{path}: the file ends inside of its header; get the whole file")
    return list(struct.unpack(f">{magic[3]}I", sizes))


def read_labels(path: Path, count: int, context: ReadContext) -> bytes:
    """The labels of `count` images, one byte each."""
    file = DecompressedFile(path, context)
    shape = read_header(file, path)
    labels = file.read(count)
    if shape != [count] or len(labels) < count:
        raise QkvError(f"{path} has {shape[0]:,} labels for {count:,} images; name files that belong together")
    return labels
