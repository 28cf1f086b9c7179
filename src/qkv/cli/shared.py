"""What the verbs share: the app they hang from, the screen, and how results and notes are printed."""

import json as json_format
import math
import sys
from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.console import Console

from qkv import __version__

HELP = """The whole Transformer in one readable toolkit.

Train a model, in two minutes:      qkv train dates
See what qkv sees in your files:    qkv data pairs.tsv
Write a recipe for them:            qkv init translate pairs.tsv
Run a model:                        qkv run runs/dates "Dienstag, 4. Mai 2021"
Look at a published model:          qkv info gpt2
"""

app = App(
    name="qkv",
    help=HELP,
    version=__version__,
    help_format="plaintext",
)
Json = Annotated[bool, Parameter(name="--json", negative=(), help="Print JSON for machines instead of a table.")]

Int8 = Annotated[bool, Parameter(name="--int8", negative=())]
StringList = Annotated[list[str] | None, Parameter(negative=())]


class StdoutConsole(Console):
    """A console that ends quietly when the reader of our output has gone, as with `| head`."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def print_notes(what: str, notes: Sequence[str]) -> None:
    for note in notes:
        print(f"{what}: {note}", file=sys.stderr)


def print_result(json: bool, text: str, values: dict[str, Any]) -> None:
    if json:
        print_json(values)
    else:
        print(text)


def print_json(values: Any) -> None:
    print(json_format.dumps(replace_nonfinite(values), indent=2, ensure_ascii=False, default=str, allow_nan=False))


def replace_nonfinite(values: Any) -> Any:
    """The same with null for numbers that JSON does not know: NaN, infinities.

    >>> replace_nonfinite({"loss": float("nan"), "each": [1.5, float("inf")]})
    {'loss': None, 'each': [1.5, None]}
    """
    if isinstance(values, float):
        return values if math.isfinite(values) else None
    if isinstance(values, dict):
        return {name: replace_nonfinite(value) for name, value in values.items()}
    return [replace_nonfinite(value) for value in values] if isinstance(values, list | tuple) else values
