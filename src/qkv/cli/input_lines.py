"""The input of `qkv run`, and the notes after its results.

The input is texts from the command line, or lines from stdin in chunks. The results of a chunk are printed before the
next chunk is read. So a file of any size needs little memory, and an interrupted command has printed its results so
far. On a terminal, a chunk is one line.
"""

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from qkv.data.modalities import reads_files
from qkv.errors import QkvError
from qkv.progress import OnProgress

if TYPE_CHECKING:
    from qkv.api import Model

BATCHES_PER_CHUNK = 64
"""A chunk has many batches, so that a batch can be made of lines of similar length."""


class InputLines:
    """The input lines, in chunks. The texts of a command line are one chunk."""

    def __init__(self, texts: Sequence[str], batch_size: int, names_files: bool = False) -> None:
        """With `names_files`, a text may be the path of a file, such as an image."""
        self.texts, self.batch_size, self.names_files = texts, batch_size, names_files
        self.done, self.total = 0, len(texts)  # in lines; a total of 0 is unknown

    def __iter__(self) -> Iterator[list[str]]:
        if self.texts:
            for text in filter(os.path.isfile, () if self.names_files else self.texts):
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
        from qkv.render.progress import progress_bar

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


WHY_SENTENCES = "each sentence is read on its own; --no-sentences reads a text in one piece"
WHY_LONG_PARTS = "they are too long for this model; --too-long truncate reads their beginning only"


class RunNotes:
    """Counts outputs that were cut off and texts with unknown tokens, for notes after the results.

    With `why_parts`, it also counts the texts that were read in several parts, and says why.
    """

    def __init__(self, model: "Model", max_tokens: int, why_parts: str = "") -> None:
        self.model, self.max_tokens, self.why_parts = model, max_tokens, why_parts
        self.num_lines = self.num_truncated = self.num_with_unknown = self.num_in_parts = 0
        self.first_with_unknown = ""

    def add(self, lines: list[str], results: Sequence[Any]) -> None:
        """Count the lines of a chunk."""
        self.num_lines += len(lines)
        if self.model.config.family == "seq2seq":  # a decoder-only model usually stops only at max_tokens
            self.num_truncated += sum(result.finish_reason == "length" for result in results)
        self.num_in_parts += sum(bool(result.parts) for result in results) if self.why_parts else 0
        tokenizer = self.model.tokenizer
        if tokenizer is None or tokenizer.special_tokens.unk is None or reads_files(self.model.config):
            return
        unk = tokenizer.special_tokens.unk
        with_unknown = [line for line, ids in zip(lines, tokenizer.encode_batch(lines), strict=True) if unk in ids]
        self.first_with_unknown = self.first_with_unknown or next(iter(with_unknown), "")
        self.num_with_unknown += len(with_unknown)

    def messages(self) -> list[str]:
        """The notes on all lines so far."""
        notes = []
        if self.num_truncated:
            notes.append(
                f"{self.num_truncated} of {self.num_lines} outputs were cut off"
                f"{f' after {self.max_tokens} tokens' if self.max_tokens else ''}; "
                "raise --max-tokens for longer ones"
            )
        if self.num_in_parts:
            notes.append(
                f"{self.num_in_parts} of {self.num_lines} texts were read in several parts, because {self.why_parts}"
            )
        if self.num_with_unknown:
            notes.append(
                f"{self.num_with_unknown} of {self.num_lines} texts have characters or words that are not in the "
                f"vocabulary; the first is {self.first_with_unknown[:60]!r}"
            )
        return notes
