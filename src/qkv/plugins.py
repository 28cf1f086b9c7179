"""Plugins: modules outside qkv that register rows of its tables, such as a feed-forward or an optimizer.

    import_plugins(["mypkg"])                     # from a recipe, from --import, or by a program

A config and a run name the plugins that they need. They are imported only if the user names them: reading a model
folder never imports code. Child processes import the same plugins as their parent (`child_environment`).
"""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from qkv.errors import QkvError, UsageError, shorten
from qkv.tables import REGISTERED

VARIABLE = "QKV_PLUGINS"
"""The environment variable with the plugins of a parent process, separated by commas."""
HOW_TO_IMPORT = (
    'pass --import {0} to the command, write plugins = ["{0}"] into the recipe, or import {0} in the program'
)


@dataclass(frozen=True)
class Plugin:
    """A module that registered rows: what a model folder says about it."""

    module: str
    version: str  # of its package; "" if it has none
    hash: str  # of its source file; "" if there is none
    rows: tuple[str, ...] = ()  # the rows of qkv's tables that it registered, such as "feedforward = 'moe2'"

    def __str__(self) -> str:
        return f"{self.module} {self.version or 'without a version'} (source {self.hash or 'unknown'})"


def import_plugins(modules: Iterable[str]) -> None:
    """Import modules by name, from the installed packages or the working directory. They register their rows."""
    for module in modules:
        if module in sys.modules:
            continue
        if not all(part.isidentifier() for part in module.split(".")):
            raise UsageError(f"plugin {shorten(repr(module))}: give the name of a module, such as mypkg.parts")
        if os.getcwd() not in sys.path and "" not in sys.path:
            sys.path.append(os.getcwd())
        try:
            import_module(module)
        except ImportError as error:
            raise UsageError(
                f"cannot import the plugin {module} ({error}); install its package, or start qkv in the folder that "
                "has it"
            ) from error


def check_imported(modules: Sequence[str], where: str) -> None:
    """Raise an error if a plugin that a file names is not imported. Opening a file to read it imports nothing."""
    for module in modules:
        if module not in sys.modules:
            raise QkvError(f"{where}: needs the plugin {module}: {HOW_TO_IMPORT.format(module)}")


def child_environment() -> dict[str, str]:
    """Return the environment of a child process, which imports the plugins that this process has imported."""
    modules = [module for module in dict.fromkeys(REGISTERED.values()) if module != "__main__"]
    inherited = [module for module in os.environ.get(VARIABLE, "").split(",") if module]
    return {**os.environ, VARIABLE: ",".join(dict.fromkeys([*inherited, *modules]))}


def import_inherited() -> None:
    """Import the plugins of the parent process. Without one that cannot be imported, its rows are unknown names."""
    for module in filter(None, os.environ.get(VARIABLE, "").split(",")):
        with suppress(UsageError):
            import_plugins([module])


def find_plugins(names: Iterable[tuple[str, str]]) -> list[Plugin]:
    """Return the plugins that registered rows, given the kinds and the names of the rows. Built-in rows have none."""
    rows: dict[str, list[str]] = {}
    for kind, name in dict.fromkeys(names):
        if (kind, name) in REGISTERED:
            rows.setdefault(REGISTERED[kind, name], []).append(f"{kind} = {name!r}")
    return [describe_plugin(module, tuple(listed)) for module, listed in rows.items()]


def describe_plugin(module: str, rows: tuple[str, ...] = ()) -> Plugin:
    """Describe a module that is imported."""
    package, source = module.partition(".")[0], getattr(sys.modules.get(module), "__file__", None)
    try:
        found = version(package)
    except (PackageNotFoundError, ValueError):
        found = str(getattr(sys.modules.get(package), "__version__", ""))
    try:
        digest = sha256(Path(source).read_bytes()).hexdigest()[:16] if source else ""
    except OSError:
        digest = ""
    return Plugin(module, found, digest, rows)


def plugins_to_json(plugins: Iterable[Plugin]) -> list[dict[str, Any]]:
    """Return what a model folder says about the plugins that it needs."""
    return [{**asdict(plugin), "rows": list(plugin.rows)} for plugin in plugins]


def read_plugins(values: Any) -> list[Plugin]:
    """Return the plugins of a config.json. Entries that are damaged are left out."""
    listed = values if isinstance(values, list) else []
    return [
        Plugin(str(one["module"]), str(one.get("version", "")), str(one.get("hash", "")), tuple(map(str, one["rows"])))
        for one in listed
        if isinstance(one, Mapping) and "module" in one and isinstance(one.get("rows"), list)
    ]


def describe_missing(plugins: Iterable[Plugin]) -> str:
    """Say which plugins have not registered their rows, and how to import them; "" if there are none."""
    known = {f"{kind} = {name!r}" for kind, name in REGISTERED}
    return "; ".join(
        f"needs the plugin {plugin.module}: it registers {', '.join(plugin.rows)}. qkv imports no code that a model "
        f"folder names: {_how_to_import(plugin.module)}"
        for plugin in plugins
        if not known.issuperset(plugin.rows)
    )


def _how_to_import(module: str) -> str:
    if module == "__main__":
        return "a program registered it, so load the model in a program that does the same"
    return HOW_TO_IMPORT.format(module)


def describe_changes(plugins: Iterable[Plugin]) -> list[str]:
    """Return a note for each plugin whose version or source differs from the one that a model was made with."""
    present = [(old, describe_plugin(old.module)) for old in plugins if old.module in sys.modules]
    return [
        f"the model was made with the plugin {old}, and this is {new}: results may differ"
        for old, new in present
        if (old.version, old.hash) != (new.version, new.hash) and old.module != "__main__"
    ]
