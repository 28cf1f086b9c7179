"""The command line. Each file holds a group of commands, which call the library and print its results.

Results go to stdout, progress and notes to stderr. Exit codes: 0 success, 1 the work failed, 2 the command was wrong,
130 interrupted. Torch is imported inside the commands that need it, so that `qkv --help` is fast. `qkv lab` and
`qkv bench` are plugins: packages of their own, found through `plugins`.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from cyclopts import App, CycloptsError

from qkv import __version__
from qkv.cli.plugins import import_installed_plugins, register_plugins, take_imports
from qkv.cli.shared import HELP, QUESTIONS, fast_imports
from qkv.errors import QkvError, UsageError, shorten, suggest_name
from qkv.openmp import BUSY_FRACTION, fraction_in_use, limit_spinning
from qkv.plugins import import_inherited, import_plugins
from qkv.render.console import NoColorConsole, protect_terminal

COMMANDS = {
    "run": "qkv.cli.run:make_command",
    "train": "qkv.cli.train:train",
    "init": "qkv.cli.train:init",
    "data": "qkv.cli.data:data",
    "eval": "qkv.cli.evaluate:evaluate",
    "report": "qkv.cli.report:report",
    "study": "qkv.cli.study:study",
    "chat": "qkv.cli.chat:chat",
    "info": "qkv.cli.models:info",
    "models": "qkv.cli.models:list_models",
    "import": "qkv.cli.models:import_",
    "export": "qkv.cli.models:export",
    "push": "qkv.cli.models:push",
    "look": "qkv.cli.look:look",
    "doctor": "qkv.cli.doctor:doctor",
    "studio": "qkv.cli.studio:studio",
    "index": "qkv.cli.search:index",
    "search": "qkv.cli.search:search",
    "serve": "qkv.cli.serve:serve",
    "new-key": "qkv.cli.serve:new_key",
    "verify-resume": "qkv.cli.train:verify_resume",
    "recipe": "qkv.cli.recipe:recipe",
    "completion": "qkv.cli.completion:completion",
}
"""The function of each command, which is imported when the command is called or when `qkv --help` lists it.

`qkv run` has flags for the options of all tasks, so its function is made after plugins have registered theirs.
"""
RUN_SUMMARY = "Run a model on texts: generate text, classify, tag, answer, embed, or fill masks."
"""The help of `qkv run` in the list of commands: its module needs torch, which would make `qkv --help` slow."""


def make_app(arguments: Sequence[str], plugins: Sequence[str] = (), *, with_run: bool = False) -> App:
    """The app with the command that is called. Without a known command, all of them are imported, to be listed.

    `qkv run` is only imported if it is called, or with `with_run`.
    """
    app = App(
        name="qkv", help=HELP, help_epilogue=QUESTIONS, version=__version__, help_format="plaintext",
        console=NoColorConsole(),
    )  # fmt: skip
    called = next((argument for argument in arguments if not argument.startswith("-")), "")
    if called in COMMANDS:
        with fast_imports():
            import_installed_plugins()
            import_inherited()
            import_plugins(plugins)
    for name, path in COMMANDS.items():
        if name == called or (called not in COMMANDS and (name != "run" or with_run)):
            module, _, function = path.partition(":")
            with fast_imports():
                command = getattr(import_module(module), function)
            app.command(command() if function == "make_command" else command, name=name)
        else:
            app.command(path, name=name, help=RUN_SUMMARY)
    register_plugins(app, arguments)
    if called and called not in app:
        shown = shorten(repr(called), 60)
        raise UsageError(f"unknown command {shown}; {suggest_name(called, sorted(app))}. Try: qkv --help")
    return app


def run_command(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    protect_terminal()
    try:
        arguments, plugins = take_imports(arguments)
        if sorted(arguments) == ["--verbose", "--version"]:
            from qkv.cli.version import print_versions

            print_versions()
            return 0
        app = make_app(arguments, plugins)
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
