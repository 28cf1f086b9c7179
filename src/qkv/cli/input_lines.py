"""The input of `qkv run`: texts from the command line, or lines from stdin in chunks.

A chunk is processed and its results are printed before the next one is read. So a file of any size needs little memory,
an interrupted run has printed its results so far, and on a terminal each line is answered at once.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from qkv.errors import QkvError
from qkv.progress import OnProgress
from qkv.render.progress import progress_bar

BATCHES_PER_CHUNK = 64
"""Large enough that each line can be batched with others of similar length."""


class InputLines:
    """Chunks of lines. Texts from the command line are one chunk."""

    def __init__(self, texts: Sequence[str], batch_size: int) -> None:
        self.texts, self.batch_size = texts, batch_size
        self.done, self.total = 0, len(texts)  # 0: unknown

    def __iter__(self) -> Iterator[list[str]]:
        if self.texts:
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
        """Whether results are read one by one: for a single text, or for lines that are typed."""
        return len(self.texts) == 1 or (not self.texts and sys.stdin is not None and sys.stdin.isatty())

    @contextmanager
    def show_progress(self) -> Iterator[OnProgress | None]:
        """Show the progress over all chunks while one is processed."""
        with progress_bar("running") as report:
            if report is None:
                yield None
            else:
                yield lambda done, _: report(self.done + done, self.total)


def _read_stdin() -> Iterator[str]:
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            yield line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise QkvError(f"stdin, line {number}: not UTF-8 ({error.reason} at byte {error.start})") from error


def _count_stdin_lines() -> int:
    """The number of lines on stdin if it is a file; 0 if it is unknown or no progress is shown."""
    if not (sys.stderr.isatty() and sys.stdin.buffer.seekable()):
        return 0
    start, count = sys.stdin.buffer.tell(), 0
    while block := sys.stdin.buffer.read(1 << 20):
        count += block.count(b"\n")
    sys.stdin.buffer.seek(start)
    return count
