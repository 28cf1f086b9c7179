"""Find text files, and split them into passages with line numbers.

A passage is a part of a file that the model can read at once: as many whole paragraphs as fit or, if a paragraph is too
long, as many whole sentences. Passages do not overlap, and their text is unchanged.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qkv.errors import QkvError, suggest_path
from qkv.files import read_bytes, to_path
from qkv.text.sentences import CharSpan, split_sentences, split_to_fit

MAX_TEXT_BYTES = 2**24
"""A larger file is skipped, because it is rarely a text that somebody wrote."""
PICTURE_SUFFIXES = (".svg",)
"""Pictures that are written as text. Their passages would be markup and coordinates."""
PARAGRAPH_BREAK = re.compile(r"\n[^\S\n]*\n")

CountTokens = Callable[[Sequence[str]], Sequence[int]]
"""Counts the tokens of texts, without special tokens."""


@dataclass(frozen=True)
class Passage:
    """A part of a file."""

    text: str
    first_line: int  # from 1
    last_line: int


def find_files(source: str | Path, excluded: Path | None = None) -> tuple[Path, list[str]]:
    """The root folder, and the names of the files in it, relative to it and sorted. `source` is a folder or a file.

    Files and folders whose names begin with a dot are left out, and so is everything in `excluded`.
    """
    path = to_path(source)
    if path.is_file():
        return path.parent.absolute(), [path.name]
    if not path.is_dir():
        raise QkvError(f"{path}: no such file or folder; check the path{suggest_path(path)}")
    root, names = path.absolute(), []
    for folder, folders, files in os.walk(root):
        folders[:] = [
            name for name in folders if not name.startswith(".") and not (excluded and _is_same(folder, name, excluded))
        ]
        names += [Path(folder, name).relative_to(root).as_posix() for name in files if not name.startswith(".")]
    return root, sorted(names)


def _is_same(folder: str, name: str, other: Path) -> bool:
    return other.exists() and os.path.samefile(os.path.join(folder, name), other)


def read_source(path: Path, *, may_be_picture: bool = False) -> bytes:
    """The bytes of a text file. A `QkvError` says why a file cannot be indexed."""
    if path.suffix.lower() in PICTURE_SUFFIXES and not may_be_picture:
        raise QkvError("it is a picture")
    data = read_bytes(path, MAX_TEXT_BYTES)
    if b"\0" in data:
        raise QkvError("it is a binary file: it contains NUL bytes")
    return data


def decode_source(data: bytes) -> str:
    """The text of a file, with line feeds as line ends."""
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise QkvError(f"it is not UTF-8 ({error.reason} at byte {error.start})") from None


def split_passages(text: str, count_tokens: CountTokens, max_tokens: int) -> list[Passage]:
    """Split a text into passages of at most `max_tokens`."""
    sentences = split_sentences(text)
    if not sentences:
        return []
    # White space after a sentence belongs to its count, because some tokenizers have tokens for it.
    ends = [start for start, _ in sentences[1:]] + [len(text)]
    counts = count_tokens([text[start:end] for (start, _), end in zip(sentences, ends, strict=True)])
    units: list[tuple[CharSpan, int]] = []
    for paragraph in _paragraphs(text, list(zip(sentences, counts, strict=True))):
        total = sum(count for _, count in paragraph)
        whole = (paragraph[0][0][0], paragraph[-1][0][1])
        units += [(whole, total)] if total <= max_tokens else _merge(paragraph, max_tokens)
    spans = [span for span, _ in _merge(units, max_tokens)]

    def fits(part: str) -> bool:
        return count_tokens([part])[0] <= max_tokens

    lengths = count_tokens([text[start:end] for start, end in spans])
    fitting = [
        part
        for span, length in zip(spans, lengths, strict=True)
        for part in ([span] if length <= max_tokens else split_to_fit(text, span, fits))
    ]
    newlines = np.array([found.start() for found in re.finditer("\n", text)], np.int64)
    lines = np.searchsorted(newlines, np.array(fitting, np.int64).reshape(-1, 2) - [0, 1]) + 1
    return [
        Passage(text[start:end], int(first), int(last))
        for (start, end), (first, last) in zip(fitting, lines, strict=True)
    ]


def _paragraphs(text: str, sentences: list[tuple[CharSpan, int]]) -> Iterator[list[tuple[CharSpan, int]]]:
    """Group sentences by paragraph."""
    paragraph: list[tuple[CharSpan, int]] = []
    for sentence in sentences:
        if paragraph and PARAGRAPH_BREAK.search(text, paragraph[-1][0][1], sentence[0][0]):
            yield paragraph
            paragraph = []
        paragraph.append(sentence)
    if paragraph:
        yield paragraph


def _merge(units: list[tuple[CharSpan, int]], max_tokens: int) -> list[tuple[CharSpan, int]]:
    """Merge adjacent spans with their token counts into the longest that fit."""
    merged: list[tuple[CharSpan, int]] = []
    for (start, end), count in units:
        if merged and merged[-1][1] + count <= max_tokens:
            merged[-1] = ((merged[-1][0][0], end), merged[-1][1] + count)
        else:
            merged.append(((start, end), count))
    return merged
