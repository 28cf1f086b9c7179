"""The `qkv` program; `python -m qkv` is the same. It handles Ctrl-C from its first moment, before the imports."""

import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Run the command line."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not in the background of a shell
        signal.signal(signal.SIGINT, interrupt)
    try:
        from qkv.cli import main as run_command_line

        run_command_line()
    except KeyboardInterrupt:
        print("qkv: interrupted", file=sys.stderr)
        sys.exit(130)
    finally:  # from here on, Ctrl-C ends the process at once, without a traceback from the interpreter's shutdown
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt. During an import, end the process: an exception inside a C++ module would abort it."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os.write(2, b"qkv: interrupted\n")
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
