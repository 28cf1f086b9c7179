"""The file formats that can be read, by name: an open table of readers, and the extensions of files.

    register_reader("notes", read_notes, extensions=(".note", ".notes"))

Then `data.format = "notes"` works in a recipe, as does `--format notes`, and files with these extensions are read.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Any

from qkv.data.records import Record
from qkv.errors import UsageError
from qkv.tables import OpenTable

ReadFiles = Callable[[Any, Any], Iterator[Record]]
"""A function of a `FileGroup` and a `ReadContext` that yields the records of the group."""

FORMATS = OpenTable[ReadFiles](
    "file format",
    lazy={
        "text": "qkv.data.readers.text:read_text",
        "csv": "qkv.data.readers.delimited:read_delimited",
        "tsv": "qkv.data.readers.delimited:read_delimited",
        "jsonl": "qkv.data.readers.jsonl:read_jsonl",
        "json": "qkv.data.readers.json_document:read_json",
        "squad": "qkv.data.readers.json_document:read_json",
        "conll": "qkv.data.readers.conll:read_conll",
        "conllu": "qkv.data.readers.conll:read_conll",
        "fasta": "qkv.data.readers.fasta:read_fasta",
        "three-line": "qkv.data.readers.fasta:read_three_lines",
        "aligned": "qkv.data.readers.aligned:read_aligned",
        "parquet": "qkv.data.readers.parquet:read_parquet",
        "datasets": "qkv.data.readers.hf_datasets:read_hf_dataset",
        "images": "qkv.data.readers.contents:read_files",
        "sounds": "qkv.data.readers.contents:read_files",
        "archive": "qkv.data.readers.contents:read_archive",
        "idx": "qkv.data.readers.idx:read_idx",
        "kaldi": "qkv.data.readers.kaldi:read_kaldi",
    },
)

IMAGE_EXTENSIONS = (
    *(".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff"),
    *(".ppm", ".pgm", ".pbm", ".pnm"),
)
SOUND_EXTENSIONS = (".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aiff", ".aif", ".au", ".caf", ".sph")
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
    ".tar": "archive",
    ".tgz": "archive",
    ".zip": "archive",
    ".idx3-ubyte": "idx",
    **dict.fromkeys(IMAGE_EXTENSIONS, "images"),
    **dict.fromkeys(SOUND_EXTENSIONS, "sounds"),
    **dict.fromkeys((".fasta", ".fa", ".faa", ".fas", ".fna"), "fasta"),
    ".3line": "three-line",
    ".scp": "kaldi",
}
GROUPED_FORMATS = {"images": "image", "sounds": "audio"}
"""Formats whose files are read together, because a folder of them is one group, and the field of their content."""


def register_reader(name: str, read: ReadFiles, *, extensions: Collection[str] = (), replace: bool = False) -> None:
    """Add a file format. Each of the `extensions` is in lower case and starts with a dot."""
    for extension in extensions:
        if not extension.startswith(".") or extension != extension.lower() or len(extension) < 2:
            raise UsageError(f"{extension!r} is not an extension of files: write it in lower case, as in '.notes'")
        if FORMAT_BY_EXTENSION.get(extension, name) != name:
            raise UsageError(
                f"files that end in {extension} have the format {FORMAT_BY_EXTENSION[extension]!r}; "
                "choose another extension"
            )
    FORMATS.register(name, read, replace=replace)
    FORMAT_BY_EXTENSION.update(dict.fromkeys(extensions, name))
