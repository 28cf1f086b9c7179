"""Plugins: commands and tables that other packages add to qkv, found by their entry points in `pyproject.toml`.

    [project.entry-points."qkv.commands"]
    lab = "qkv_lab.command:lab"

    [project.entry-points."qkv.plugins"]
    reverse = "my_package.reverse"

A command is a function with type hints and a docstring, like the functions of the other files in this folder. Its
module is imported only when the command is called or when qkv lists all commands. It should import torch inside the
function, so that `qkv --help` is fast.

A module of the group `qkv.plugins` registers tasks, objectives and other parts. Every command of qkv imports it first.
`qkv COMMAND --import mypkg` imports a module that is not installed, such as a file in the working directory. Child
processes import the plugins of their parent.
"""

import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points

from cyclopts import App

from qkv.errors import QkvError, UsageError

GROUP, MODULES = "qkv.commands", "qkv.plugins"
NO_PLUGINS = "no command of another package is found; for qkv bench and qkv lab, install qkv with pip"


def register_plugins(app: App, arguments: Sequence[str]) -> None:
    """Register the plugin that is called; for `qkv --help` and for an unknown command, register all plugins.

    If the called plugin cannot be imported, this is an error. In a list of commands, such a plugin is left out, with a
    note. The commands of qkv itself cannot be replaced.
    """
    name = next((argument for argument in arguments if not argument.startswith("-")), "")
    if name in app or "--version" in arguments:
        return
    found = entry_points(group=GROUP)
    if name and not found:
        print(f"qkv: {NO_PLUGINS}", file=sys.stderr)
    for entry in found.select(name=name) or found:
        if entry.name in app:
            continue
        try:
            app.command(entry.load(), name=entry.name)
        except (ImportError, AttributeError) as error:
            message = f"qkv {entry.name}: {describe_failure(entry, error)}"
            if entry.name == name:
                raise QkvError(message) from error
            print(f"qkv: {message}", file=sys.stderr)


IMPORT = "--import"


def take_imports(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Remove `--import MODULE` from the arguments of a command; return the other arguments, and the modules.

    >>> take_imports(["run", "--import", "mypkg", "models/a", "--import=other"])
    (['run', 'models/a'], ['mypkg', 'other'])
    """
    kept: list[str] = []
    modules: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument == "--":
            return [*kept, argument, *rest], modules
        name, equals, value = argument.partition("=")
        if name != IMPORT:
            kept.append(argument)
        elif equals or (value := next(rest, "")):
            modules.append(value)
        else:
            raise UsageError("--import needs the name of a module, such as --import mypkg")
    return kept, modules


def import_installed_plugins() -> None:
    """Import the modules that register parts. A module that cannot be imported is left out, with a note."""
    for entry in entry_points(group=MODULES):
        try:
            entry.load()
        except (ImportError, AttributeError) as error:
            print(f"qkv: plugin {entry.name}: {describe_failure(entry, error)}", file=sys.stderr)


def describe_failure(entry: EntryPoint, error: Exception) -> str:
    """Why a plugin cannot be imported, and what to do."""
    package = "its package" if entry.dist is None else entry.dist.name
    return f"cannot import {entry.value} ({error}); install {package} again"
