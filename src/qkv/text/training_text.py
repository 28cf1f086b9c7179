"""The text a tokenizer is trained on: files in blocks, or strings from anywhere, checked and counted as they pass."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sized
from pathlib import Path
from typing import Any, TextIO

from qkv.errors import QkvError, UsageError

BLOCK_CHARS = 1 << 20  # characters of a file handed on at once
MAX_WORD_CHARS = 1000  # characters; a longer run without a space is no word of any language
LONG_WORD = re.compile(rf"\S{{{MAX_WORD_CHARS},}}|\s{{{MAX_WORD_CHARS},}}")


class TrainingTexts:
    """The strings of a source, in order; `progress` is called as they pass."""

    def __init__(self, source: Any, progress: Callable[[int, int], None] | None = None) -> None:
        self.files: list[Path] | None = list_files(source)
        self.source: Iterable[str] = () if self.files is not None else source
        self.progress = progress or (lambda done, total: None)
        if self.files is not None:
            self.total = sum(file.stat().st_size for file in self.files)
        else:
            self.total = len(source) if isinstance(source, Sized) else 0
        self.done = 0
        self.empty = True
        self.source_error: Exception | None = None

    def __iter__(self) -> Iterator[str]:
        strings = self.read_files() if self.files is not None else self.read_strings()
        try:
            for text in strings:
                self.empty = self.empty and not text
                yield from split_long_words(text)
        except Exception as error:  # kept, because the trainer that pulls us wraps it in an error of its own
            self.source_error = error
            raise

    def read_strings(self) -> Iterator[str]:
        for number, text in enumerate(self.source):
            check_text(text, f"text {number}")
            yield text
            self.done += 1
            self.progress(self.done, self.total)

    def read_files(self) -> Iterator[str]:
        for file in self.files or ():
            before = self.done
            try:
                with file.open(encoding="utf-8-sig") as handle:
                    yield from self.read_blocks(handle, before)
            except UnicodeDecodeError as error:
                raise QkvError(
                    f"{file}: not UTF-8 text ({error.reason}, byte 0x{error.object[error.start]:02x}); convert it, "
                    "or read it with qkv.data and pass the strings"
                ) from None
            except OSError as error:
                raise QkvError(f"{file}: cannot be read ({error.strerror})") from None
            self.done = before + file.stat().st_size

    def read_blocks(self, handle: TextIO, bytes_before: int) -> Iterator[str]:
        """Blocks that end at the end of a line, so that no word is cut; a line longer than a block is cut."""
        while text := handle.read(BLOCK_CHARS):
            if not text.endswith("\n"):
                text += handle.readline(BLOCK_CHARS)
            yield text
            self.done = bytes_before + handle.buffer.tell()
            self.progress(self.done, self.total)

    def finish(self) -> None:
        """The last report; a source without any text is an error here."""
        if self.empty:
            raise QkvError("there is no text to train a tokenizer on: every file or string given is empty")
        self.progress(self.done, self.total or self.done)


def split_long_words(text: str) -> Iterator[str]:
    """The text, in parts where it holds a run of `LONG` characters with no change between white space and other.

    The library's trainers take a time that grows with the square of a word's length: a megabyte without a space would
    take them hours. Such a run is no word, so it is learnt from in slices; any other text passes as it is.

    >>> [len(part) for part in split_long_words("a b " + "c" * 2500 + " d")]
    [4, 1000, 1000, 500, 2]
    """
    blocks = (
        text[place : place + MAX_WORD_CHARS] for place in range(0, len(text) - MAX_WORD_CHARS + 1, MAX_WORD_CHARS // 2)
    )
    if not any(block.isspace() or len(block.split(None, 1)[0]) == len(block) for block in blocks):
        yield text
        return
    place = 0
    for run in LONG_WORD.finditer(text):
        if run.start() > place:
            yield text[place : run.start()]
        for place in range(run.start(), run.end(), MAX_WORD_CHARS):
            yield text[place : min(place + MAX_WORD_CHARS, run.end())]
        place = run.end()
    if place < len(text):
        yield text[place:]


def list_files(source: Any) -> list[Path] | None:
    """The files a source names, None where it is the text itself. A list or a tuple is always one of files."""
    if isinstance(source, str | os.PathLike):
        source = [source]
    if not isinstance(source, list | tuple):
        if not isinstance(source, Iterable):
            raise UsageError(f"a tokenizer is trained on files or on strings, not on a {type(source).__name__}")
        return None
    if not source:
        raise UsageError("there are no files to train a tokenizer on: the list is empty")
    for name in source:
        if not isinstance(name, str | os.PathLike):
            raise UsageError(f"a list of files to train a tokenizer on holds a {type(name).__name__}")
        if not os.path.isfile(name):  # which a text that is no possible path does not upset
            shown = str(name) if len(str(name)) <= 200 else str(name)[:200] + "…"
            raise UsageError(f"{shown}: no such file; to train on strings instead of files, pass iter(strings)")
    return [Path(name) for name in source]


def check_text(text: Any, what: str) -> None:
    """Raise the error that says why `text` cannot be tokenised, if it cannot."""
    if not isinstance(text, str):
        raise UsageError(f"{what} is of type {type(text).__name__}, not a string")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise QkvError(
            f"{what} holds a lone surrogate, U+{code:04X}, at character {error.start}: half of a character, which "
            "UTF-8 cannot write. Read the file with errors='replace', or repair it"
        ) from None
