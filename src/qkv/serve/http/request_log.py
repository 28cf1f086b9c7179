"""The log of a server: one JSON object on a line for each request, without its texts unless they are asked for.

A thread writes the lines, so that a slow disk or pipe does not delay requests. When lines cannot be written, because
the disk is full, they are counted and dropped.
"""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from queue import Full, Queue
from threading import Thread
from typing import IO, Any

MAX_WAITING_LINES = 10_000


class RequestLog:
    """Writes JSON lines to a file or to stderr."""

    def __init__(self, path: Path | None) -> None:
        """Opening the file may raise an error: a server with a wrong path does not start."""
        self.num_dropped = 0
        self._file: IO[str] = sys.stderr if path is None else path.open("a", encoding="utf-8")
        self._lines: Queue[str | None] = Queue(MAX_WAITING_LINES)
        self._thread = Thread(target=self._write_lines, name="log", daemon=True)
        self._thread.start()

    def write(self, event: str, **values: Any) -> None:
        """Write a line. It never blocks and never raises an error."""
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        try:
            self._lines.put_nowait(json.dumps({"time": time, "event": event, **values}, default=str))
        except (Full, ValueError):
            self.num_dropped += 1

    def close(self) -> None:
        """Write the lines that wait, and end the thread."""
        try:
            self._lines.put(None, timeout=1)
            self._thread.join(timeout=2)
        except Full:
            pass

    def _write_lines(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._file.write(line + "\n")
                self._file.flush()
            except (OSError, ValueError):  # a full disk; a closed file
                self.num_dropped += 1
