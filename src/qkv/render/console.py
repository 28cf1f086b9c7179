"""Output to a terminal: control characters in texts are escaped, and there are no escape sequences if NO_COLOR is set.

A text of a model, a file or a request may have control characters, which could change the title of a terminal, move its
cursor or hide what was printed before. `protect_terminal` makes them visible in all output of `print`, and
`NoColorConsole` in all output of rich.
"""

import io
import os
import sys
from collections.abc import Iterable
from typing import IO, Any

from rich.console import Console
from rich.segment import Segment

# Control characters are shown as Unicode control pictures. Characters that change the text direction become U+FFFD.
CONTROL_PICTURES = {code: 0x2400 + code for code in range(32)} | {0x7F: 0x2421}
CONTROL_PICTURES |= dict.fromkeys([*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD)


def escape_controls(text: str, keep: str = "") -> str:
    """Replace the control characters of a text, except those in `keep`, by visible ones.

    >>> escape_controls("a\\x1b[31m\\tb")
    'a␛[31m␉b'
    """
    return text.translate({code: picture for code, picture in CONTROL_PICTURES.items() if chr(code) not in keep})


class TerminalStream:
    """A stream to a terminal that makes control characters visible, except line breaks and tabs."""

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write a text without its control characters."""
        self.stream.write(escape_controls(text, keep="\n\t"))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def protect_terminal() -> None:
    """Make the control characters visible in everything that this process prints to a terminal.

    Where the output is not UTF-8, characters that its encoding does not have are written as \\u2026, as on stderr.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and (stream.errors == "strict" or stream.encoding.lower() != "utf-8"):
            stream.reconfigure(errors="backslashreplace")
        if stream is not None and stream.isatty() and not isinstance(stream, TerminalStream):
            setattr(sys, name, TerminalStream(stream))


class NoColorConsole(Console):
    """A rich console that writes plain text if NO_COLOR is set: no colours, no bold, no cursor movements.

    rich itself then leaves out colours only. See https://no-color.org. Control characters in texts become visible.
    """

    def __init__(self, **options: Any) -> None:
        plain = {"force_terminal": False, "color_system": None} if os.environ.get("NO_COLOR") else {}
        super().__init__(**{**options, **plain})

    def _find_file(self) -> IO[str]:
        file: IO[str] = Console.file.fget(self)  # type: ignore[attr-defined]
        return file.stream if isinstance(file, TerminalStream) else file

    file = property(_find_file, Console.file.fset)  # type: ignore[attr-defined]

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        escaped = (one if one.control else one._replace(text=escape_controls(one.text, keep="\n\t")) for one in buffer)
        return super()._render_buffer(escaped)
