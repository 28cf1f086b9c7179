"""The log of a server: one line of JSON for each request, without its texts unless they are asked for.

A thread writes the lines, so that a slow disk or pipe does not delay requests. When lines cannot be written, because
the disk is full, they are counted and dropped.
"""

import json
import logging
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from queue import Full, Queue
from threading import Thread
from typing import IO, Any

MAX_WAITING_LINES = 10_000


class RedactingHandler(logging.Handler):
    """Sends the messages of Python's logging to the log of a server, without their texts unless they are asked for.

    A warning of a model may quote the text that it is about.
    """

    def __init__(self, log: "RequestLog", log_texts: bool) -> None:
        super().__init__(logging.WARNING)
        self.log, self.log_texts = log, log_texts

    def emit(self, record: logging.LogRecord) -> None:
        """Write the level and the place in the code, and the message if texts may be logged."""
        values = {"level": record.levelname.lower(), "place": f"{record.name}, {record.filename}:{record.lineno}"}
        if record.exc_info and record.exc_info[0]:
            values["error"] = record.exc_info[0].__name__
        if self.log_texts:
            values["message"] = record.getMessage()
        self.log.write("message", **values)


def open_private(path: Path) -> IO[str]:
    """Open a file to append to it. Only its owner can read a new one, because a log may have texts of clients."""
    return open(path, "a", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600))


class RequestLog:
    """Writes JSON lines to a file or to stderr."""

    def __init__(self, path: Path | None) -> None:
        """Opening the file may raise an error: a server with a wrong path does not start."""
        self.num_dropped = 0
        self._file: IO[str] = sys.stderr if path is None else open_private(path)
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
