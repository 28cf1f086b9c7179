"""The command line. Each file holds a group of commands, which call the library and print what it returns.

Results go to stdout, progress and notes to stderr. Exit codes: 0 success, 1 the work failed, 2 the command was wrong,
130 interrupted. Torch is imported inside the commands that need it, so that `qkv --help` is fast. `qkv lab` and
`qkv bench` are plugins: packages of their own, found through `plugins`.
"""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from cyclopts import CycloptsError

from qkv.cli import (
    chat,
    data,
    doctor,
    evaluate,
    look,
    models,
    report,
    run,
    search,
    serve,
    studio,
    train,
)  # importing a file registers its commands
from qkv.cli.openmp import BUSY_FRACTION, fraction_in_use, limit_spinning
from qkv.cli.plugins import register_plugins
from qkv.cli.shared import app
from qkv.errors import QkvError, shorten

__all__ = [
    "app",
    "chat",
    "data",
    "doctor",
    "evaluate",
    "look",
    "main",
    "models",
    "report",
    "run",
    "run_command",
    "search",
    "serve",
    "studio",
    "train",
]


def run_command(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        register_plugins(app, arguments)
        app(arguments, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        command = " ".join(["qkv", *(error.command_chain or ())])
        print(f"qkv: {shorten(str(error), 500)}\nTry: {command} --help", file=sys.stderr)
        return 2
    except QkvError as error:
        print(f"qkv: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # the reader of our output has exited, as in `qkv … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk, a folder without permission: not a mistake in qkv
        place = f"{error.filename}: " if error.filename else ""
        print(f"qkv: {place}{error.strerror or error}; check the disk and the permissions", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("qkv: interrupted", file=sys.stderr)
        return 130
    except SystemExit as stop:  # raised by --help and --version
        if stop.code == 130:
            print("qkv: interrupted", file=sys.stderr)
        return stop.code if isinstance(stop.code, int) else 0
    return 0


def main() -> None:
    """The `qkv` program."""
    # Only a single `qkv train` measures the load: in a multi-process run the other ranks would count as load.
    trains = sys.argv[1:2] == ["train"] and "WORLD_SIZE" not in os.environ
    limit_spinning(os.environ, busy=trains and fraction_in_use() > BUSY_FRACTION)
    exit_process(run_command())


def exit_process(code: int) -> NoReturn:
    """Exit the process.

    In a multi-process run, this skips the interpreter's shutdown, in which torch's threads can crash and turn a success
    into an error code. It also skips it after a stop signal, because it can take seconds. Everything is saved by then.
    """
    if os.environ.get("WORLD_SIZE", "1") != "1" or code > 128:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
