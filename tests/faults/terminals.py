"""Commands on a terminal."""

import os
import pty
import subprocess
import sys


def output_on_a_terminal(*arguments: str, **environment: str) -> bytes:
    """What a command writes to a terminal."""
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        settings = {**os.environ, "TERM": "xterm-256color", **environment}
        command = [sys.executable, "-m", "qkv", *arguments]
        process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=settings)
        os.close(theirs)
        written = b""
        while True:
            try:
                part = terminal.read(65536)
            except OSError:  # Linux's way to say that the other side is closed
                break
            if not part:
                break
            written += part
        process.wait()
    return written
