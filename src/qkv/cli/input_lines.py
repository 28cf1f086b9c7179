"""The input of `qkv run`: texts from the command line, or lines from stdin in chunks.

The results of a chunk are printed before the next chunk is read. So a file of any size needs little memory, and an
interrupted command has printed its results so far. On a terminal, a chunk is one line.
"""

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from qkv.errors import QkvError
from qkv.progress import OnProgress
from qkv.render.progress import progress_bar

BATCHES_PER_CHUNK = 64
"""A chunk has many batches, so that a batch can be made of lines of similar length."""


class InputLines:
    """The input lines, in chunks. The texts of a command line are one chunk."""

    def __init__(self, texts: Sequence[str], batch_size: int) -> None:
        self.texts, self.batch_size = texts, batch_size
        self.done, self.total = 0, len(texts)  # in lines; a total of 0 is unknown

    def __iter__(self) -> Iterator[list[str]]:
        if self.texts:
            for text in filter(os.path.isfile, self.texts):
                name = shlex.quote(text)
                note = "is a file, but its name was used as the input text; to run on its lines, use qkv run MODEL <"
                print(f"qkv run: {name} {note} {name}", file=sys.stderr)
            yield list(self.texts)
            return
        if sys.stdin is None:
            raise QkvError("there is no input: stdin is closed; give texts as arguments, or lines on stdin")
        if self.is_interactive:
            print("reading lines from the terminal; end with Ctrl-D", file=sys.stderr)
        self.total = _count_stdin_lines()
        size = 1 if self.is_interactive or self.batch_size == 1 else BATCHES_PER_CHUNK * self.batch_size
        chunk: list[str] = []
        try:
            for line in _read_stdin():
                chunk.append(line)
                if len(chunk) == size:
                    yield chunk
                    self.done += size
                    chunk = []
        except QkvError:  # first process the lines before the invalid one
            if chunk:
                yield chunk
            raise
        if chunk:
            yield chunk

    @property
    def is_interactive(self) -> bool:
        """Whether a person waits for each result: the input is a single text, or lines that are typed."""
        return len(self.texts) == 1 or (not self.texts and sys.stdin is not None and sys.stdin.isatty())

    @contextmanager
    def show_progress(self) -> Iterator[OnProgress | None]:
        """Show the progress over all chunks while one of them is processed."""
        with progress_bar("running") as report:
            if report is None:
                yield None
            else:
                yield lambda done, _: report(self.done + done, self.total)


def _read_stdin() -> Iterator[str]:
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise QkvError(
                f"stdin, line {number}: not UTF-8 ({error.reason} at byte {error.start}); convert the input to UTF-8"
            ) from error


def _count_stdin_lines() -> int:
    """The number of lines on stdin if it is a file; 0 if that is unknown, or if no progress is shown."""
    if not (sys.stderr.isatty() and sys.stdin.buffer.seekable()):
        return 0
    start, count = sys.stdin.buffer.tell(), 0
    while block := sys.stdin.buffer.read(1 << 20):
        count += block.count(b"\n")
    sys.stdin.buffer.seek(start)
    return count
