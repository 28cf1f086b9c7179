"""Shared by all commands: the console, and functions that print results, notes and JSON."""

import gc
import json as json_format
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from qkv.errors import UsageError
from qkv.files import replace_nonfinite
from qkv.render.console import NoColorConsole

if TYPE_CHECKING:
    from qkv.api import Model

HELP = """The whole Transformer in one readable toolkit.

Translate, with a bundled model: qkv run en-fr "The cat chased the mouse."
Train a model in two minutes:       qkv train dates
Inspect your data files:            qkv data pairs.tsv
Write a recipe for them:            qkv init translate pairs.tsv
Run a model:                        qkv run runs/dates "Dienstag, 4. Mai 2021"
Look inside it:                     qkv look runs/dates "Dienstag, 4. Mai 2021"
Look inside, on a web page:         qkv studio runs/dates
Search in files (after qkv index):  qkv search notes.index "renew a passport"
Serve it over HTTP:                 qkv serve runs/dates
Parameters and memory of a model:   qkv info gpt2

Every command takes --import MODULE: a module of your own that registers parts, tasks or others.
Add the output of qkv --version --verbose to a report of a problem.
"""

QUESTIONS = """Which command answers which question:

What is in my files, and is it sound?           qkv data FILE
Will this recipe work, and how big is it?       qkv train RECIPE --dry-run
Which models do I have?                         qkv models
How big is a model, and what does it cost?      qkv info MODEL
How fast is it on this machine?                 qkv bench MODEL
How good is it, as a number?                    qkv eval MODEL FILE
Is it good, and what should I do next?          qkv report RUN
Is something broken in it?                      qkv doctor MODEL
What happens inside it on this text?            qkv look MODEL TEXT
The same, live, and while a run trains?         qkv studio MODEL
"""

Json = Annotated[bool, Parameter(name="--json", negative=(), help="Print the result as JSON.")]
Int8 = Annotated[bool, Parameter(name="--int8", negative=())]
Int4 = Annotated[bool, Parameter(name="--int4", negative=())]
Device = Annotated[str, Parameter(help="Device: cpu, cuda or mps.")]
StringList = Annotated[list[str] | None, Parameter(negative=())]


class StdoutConsole(NoColorConsole):
    """A console on stdout that raises BrokenPipeError if the reader has exited, as in `qkv … | head`."""

    def on_broken_pipe(self) -> None:
        """Raise an error instead of rich's exit."""
        raise BrokenPipeError


@contextmanager
def fast_imports() -> Iterator[None]:
    """Import torch and the modules that need it without garbage collection.

    Imports create many objects and hardly any garbage, but each collection visits all of these objects: during the
    imports, in later collections, and when the process exits. This function excludes them from all three. If torch has
    been imported before, it does nothing, because other objects would be excluded as well.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def print_notes(subject: str, notes: Sequence[str]) -> None:
    """Print notes on a subject, such as a model, to stderr."""
    for note in notes:
        print(f"{subject}: {note}", file=sys.stderr)


def weight_precision(int8: bool, int4: bool) -> Literal["int8", "int4"] | None:
    """Return the precision that --int8 or --int4 chooses, or None. Both at once are an error."""
    if int8 and int4:
        raise UsageError("--int8 and --int4: the weights have one precision; leave one of them out")
    return "int8" if int8 else "int4" if int4 else None


def quantize_model(model: "Model", name: str, precision: Literal["int8", "int4"] | None) -> "Model":
    """Return a quantized copy of a model, or the model itself. Notes on the quantization are printed."""
    if precision is None:
        return model
    quantized = model.quantize(precision)
    print_notes(name, quantized.notes[len(model.notes) :])
    return quantized


def print_result(json: bool, text: str, values: dict[str, Any]) -> None:
    """Print the text, or the values as JSON."""
    if json:
        print_json(values)
    else:
        print(text)


def print_json(values: Any) -> None:
    """Print values as JSON."""
    print(json_format.dumps(replace_nonfinite(values), indent=2, ensure_ascii=False, default=str, allow_nan=False))


def check_minimum(option: str, value: int, minimum: int) -> None:
    """Raise an error if the value of an option is too small."""
    if value < minimum:
        raise UsageError(f"--{option} must be >= {minimum}, got {value}")
