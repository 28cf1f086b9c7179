"""The text that a tokenizer is trained on: files, read in blocks, or any iterable of strings."""

import os
import re
from collections.abc import Iterable, Iterator, Sized
from pathlib import Path
from typing import Any, TextIO

from qkv.errors import QkvError, UsageError
from qkv.progress import OnProgress

BLOCK_CHARS = 1 << 20  # size of a block of a file
PIECE_CHARS = 1 << 16  # longer texts are cut: the library holds 256 texts in memory, and works on each in one thread
CUT = re.compile(r"(?<=\S)\n(?=\S)|(?<=\S)(?= \S)")  # between two words, after a line end or before a space
MAX_WORD_CHARS = 1000  # a longer run without a space is split
LONG_WORD = re.compile(rf"\S{{{MAX_WORD_CHARS},}}|\s{{{MAX_WORD_CHARS},}}")


class TrainingTexts:
    """The strings of a source, in order, checked. `progress` is called with bytes of files or a number of strings."""

    def __init__(self, source: Any, progress: OnProgress | None = None) -> None:
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
                for part in split_long_words(text):
                    yield from cut_pieces(part)
        except Exception as error:  # the trainer that iterates over this wraps the error in its own
            self.source_error = error
            raise

    def read_strings(self) -> Iterator[str]:
        """Yield the strings of an iterable."""
        for number, text in enumerate(self.source):
            check_text(text, f"text {number}")
            yield text
            self.done += 1
            self.progress(self.done, self.total)

    def read_files(self) -> Iterator[str]:
        """Yield blocks of the files."""
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
        """Yield blocks that end at a line end. Only a line longer than a block is split."""
        while text := handle.read(BLOCK_CHARS):
            if not text.endswith("\n"):
                text += handle.readline(BLOCK_CHARS)
            yield text
            self.done = bytes_before + handle.buffer.tell()
            self.progress(self.done, self.total)

    def finish(self) -> None:
        """Report the end, and raise an error if the source had no text."""
        if self.empty:
            raise QkvError(
                "cannot train a tokenizer, because the training text is empty; add files or strings with text"
            )
        self.progress(self.done, self.total or self.done)


def cut_pieces(text: str) -> Iterator[str]:
    """Cut a text into pieces of about `PIECE_CHARS`, at places where a tokenizer learns the same words as without cuts.

    >>> [len(piece) for piece in cut_pieces("word " * 30_000)]
    [65539, 65540, 18921]
    """
    start = 0
    while len(text) - start > PIECE_CHARS:
        cut = CUT.search(text, start + PIECE_CHARS)
        if cut is None:
            break
        yield text[start : cut.end()]
        start = cut.end()
    yield text[start:]


def split_long_words(text: str) -> Iterator[str]:
    """Split runs of at least `MAX_WORD_CHARS` characters that contain no white space, or only white space.

    The trainers of `tokenizers` take time quadratic in the length of a word, so a megabyte without a space would take
    hours. Such a run is no real word, and is split into slices. Any other text is yielded unchanged.

    >>> [len(part) for part in split_long_words("a b " + "c" * 2500 + " d")]
    [4, 1000, 1000, 500, 2]
    """
    # A cheap test first: any such run covers at least one of these half-overlapping windows.
    windows = (
        text[start : start + MAX_WORD_CHARS] for start in range(0, len(text) - MAX_WORD_CHARS + 1, MAX_WORD_CHARS // 2)
    )
    if not any(window.isspace() or len(window.split(None, 1)[0]) == len(window) for window in windows):
        yield text
        return
    end = 0
    for run in LONG_WORD.finditer(text):
        if run.start() > end:
            yield text[end : run.start()]
        for start in range(run.start(), run.end(), MAX_WORD_CHARS):
            yield text[start : min(start + MAX_WORD_CHARS, run.end())]
        end = run.end()
    if end < len(text):
        yield text[end:]


def list_files(source: Any) -> list[Path] | None:
    """The files of a source, or None if it is an iterable of strings. A list or a tuple always has paths."""
    if isinstance(source, str | os.PathLike):
        source = [source]
    if not isinstance(source, list | tuple):
        if not isinstance(source, Iterable):
            raise UsageError(
                f"a tokenizer is trained on files or on an iterable of strings, not on a {type(source).__name__}"
            )
        return None
    if not source:
        raise UsageError("cannot train a tokenizer: the list of files is empty")
    for name in source:
        if not isinstance(name, str | os.PathLike):
            raise UsageError(f"a list of training files must hold paths, found a {type(name).__name__}")
        if not os.path.isfile(name):  # unlike Path.is_file, this accepts any string
            shown = str(name) if len(str(name)) <= 200 else str(name)[:200] + "…"
            raise UsageError(f"{shown}: no such file; to train on strings instead of files, pass iter(strings)")
    return [Path(name) for name in source]


def check_text(text: Any, what: str) -> None:
    """Raise an error if `text` cannot be encoded. `what` is its name in the message."""
    if not isinstance(text, str):
        raise UsageError(f"{what} must be a string, not {type(text).__name__}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise QkvError(
            f"{what} has a lone surrogate, U+{code:04X}, at character {error.start}, which UTF-8 cannot encode; "
            "read the file with errors='replace', or repair it"
        ) from None
