"""The lines that `qkv run` works on: what it is given, or stdin, a stretch at a time.

A stretch is answered and written before the next one is read. So a file of any length takes little memory, a run that
is broken off has written what it had, and at a terminal each line is answered as it comes.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from qkv.errors import QkvError
from qkv.progress import OnProgress
from qkv.render.progress import progress_bar

BATCHES_PER_CHUNK = 64
"""How many batches make a stretch: enough lines that each can be run with others of its length."""


class InputLines:
    """Stretches of lines; texts that are given are one."""

    def __init__(self, texts: Sequence[str], batch_size: int) -> None:
        self.texts, self.batch_size = texts, batch_size
        self.done, self.total = 0, len(texts)  # 0: not known

    def __iter__(self) -> Iterator[list[str]]:
        if self.texts:
            yield list(self.texts)
            return
        if sys.stdin is None:
            raise QkvError("stdin is closed; give texts, or lines on stdin")
        if self.is_interactive:
            print("reading lines; Ctrl-D ends them", file=sys.stderr)
        self.total = _count_stdin_lines()
        size = 1 if self.is_interactive or self.batch_size == 1 else BATCHES_PER_CHUNK * self.batch_size
        stretch: list[str] = []
        try:
            for line in _read_stdin():
                stretch.append(line)
                if len(stretch) == size:
                    yield stretch
                    self.done += size
                    stretch = []
        except QkvError:  # what was read before the bad line is answered first
            if stretch:
                yield stretch
            raise
        if stretch:
            yield stretch

    @property
    def is_interactive(self) -> bool:
        """Whether somebody looks at each answer as it comes: to a single text, or to lines that are typed."""
        return len(self.texts) == 1 or (not self.texts and sys.stdin is not None and sys.stdin.isatty())

    @contextmanager
    def show_progress(self) -> Iterator[OnProgress | None]:
        """Shows how far all of it is, while one stretch is answered."""
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
    """How many lines stdin has, where it is a file; 0 where nobody can know."""
    if not (sys.stderr.isatty() and sys.stdin.buffer.seekable()):  # nobody looks, or nobody knows
        return 0
    here, count = sys.stdin.buffer.tell(), 0
    while block := sys.stdin.buffer.read(1 << 20):
        count += block.count(b"\n")
    sys.stdin.buffer.seek(here)
    return count
