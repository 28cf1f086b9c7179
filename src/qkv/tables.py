"""Open tables: rows by name, to which programs and packages outside qkv can add rows of their own.

    OPTIMIZERS = OpenTable[Maker]("optimizer", {"sgd": make_sgd}, lazy={"muon": "qkv.train.optim.muon:make_muon"})

    OPTIMIZERS.register("mine", make_mine)
    OPTIMIZERS.find("mime", "train.optimizer")   # train.optimizer = 'mime' is unknown; did you mean 'mine'?

Look a name up when it is needed, not when a module is imported: then a row that is registered later is found, too.
A row in `lazy` is imported when it is first used, and its name is known before.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TypeVar

from qkv.errors import UsageError, shorten, suggest_name

T = TypeVar("T")
NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
REGISTERED: dict[tuple[str, str], str] = {}
"""The kind and the name of each row that was registered → the module outside qkv that registered it."""


class OpenTable(Mapping[str, T]):
    """A mapping of names to rows, in the order in which they were added. `kind` says in errors what a row is."""

    def __init__(
        self, kind: str, rows: Mapping[str, T] | None = None, *, lazy: Mapping[str, str] | None = None
    ) -> None:
        self.kind = kind
        self._rows: dict[str, T | None] = {**(rows or {}), **dict.fromkeys(lazy or {})}
        self._lazy = dict(lazy or {})
        self._built_in = frozenset(self._rows)

    def add_built_in(self, name: str, path: str) -> None:
        """Add a built-in row of another layer, such as "qkv.images.config:PATCHES". It is imported when it is used."""
        self._rows.setdefault(name, None)
        self._lazy[name] = path
        self._built_in |= {name}

    def register(self, name: str, row: T, *, replace: bool = False) -> T:
        """Add a row, and return it. `replace` allows the name of a row that was registered before.

        The names of built-in rows cannot be used, because trained models and recipes refer to them.
        """
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise UsageError(
                f"{shorten(repr(name))} cannot be the name of a kind of {self.kind}: use lower-case letters, digits, "
                "_ and -, with a letter first"
            )
        if name in self._built_in:
            raise UsageError(f"the {self.kind} {name!r} is built in and cannot be replaced; choose another name")
        if not replace and name in self._rows and self._rows[name] is not row:
            raise UsageError(
                f"another {self.kind} named {name!r} is registered; choose another name, or pass replace=True"
            )
        self._rows[name] = row
        REGISTERED[self.kind, name] = find_caller()
        return row

    def unregister(self, name: str) -> None:
        """Remove a row that was registered, such as at the end of a test. Built-in rows stay."""
        if name in self._built_in:
            raise UsageError(f"the {self.kind} {name!r} is built in and cannot be removed")
        self._rows.pop(name, None)
        REGISTERED.pop((self.kind, name), None)

    def find(self, name: str, where: str = "") -> T:
        """Return the row with this name. An unknown name is a `UsageError` that starts with `where` and a suggestion.

        >>> OpenTable("colour", {"red": 1}).find("rad", "paint.colour")
        Traceback (most recent call last):
        qkv.errors.UsageError: paint.colour = 'rad' is unknown; did you mean 'red'?
        """
        if name not in self:
            raise UsageError(self.describe_unknown(name, where))
        return self[name]

    def describe_unknown(self, name: object, where: str = "") -> str:
        """Return the message about an unknown name, with a suggestion."""
        return f"{where or self.kind} = {shorten(repr(name))} is unknown; {suggest_name(str(name), self)}"

    def __getitem__(self, name: str) -> T:
        row = self._rows[name]
        if row is None:
            module, _, attribute = self._lazy[name].partition(":")
            row = self._rows[name] = getattr(import_module(module), attribute)
        return row

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._rows  # without importing the row

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._rows))

    def __len__(self) -> int:
        return len(self._rows)

    __eq__, __hash__ = object.__eq__, object.__hash__  # two tables are equal only if they are the same

    def __repr__(self) -> str:
        return f"OpenTable({self.kind!r}: {', '.join(self)})"


def find_caller() -> str:
    """Return the name of the module outside qkv that called qkv, or "__main__" for a program."""
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "qkv":
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "__main__"))
