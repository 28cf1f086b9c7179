"""The command line: verbs, each a thin call.

Results go to stdout, progress and notes to stderr. Exit codes: 0 done, 1 the work failed, 2 the call was wrong,
130 interrupted. Modules that need torch are imported inside the verb that needs them, so that help answers at once.
"""

import json as json_format
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter
from rich.console import Console

from qkv import __version__
from qkv.errors import QkvError, UsageError, nearest

HELP = """The whole Transformer in one readable toolkit.

Look at a published model:          qkv info gpt2
Look at a folder:                   qkv info path/to/model
Run a model:                        qkv run path/to/model "Once upon a time"
See what qkv sees in your files:    qkv data train.tsv
"""

app = App(
    name="qkv",
    help=HELP,
    version=__version__,
    help_format="plaintext",
)
Json = Annotated[bool, Parameter(name="--json", negative=(), help="Print JSON for machines instead of a table.")]

Words = Annotated[list[str] | None, Parameter(negative=())]


@app.command
def info(model: str, /, *, context: int | None = None, json: Json = False) -> None:
    """Show where a model's parameters, arithmetic and memory go.

    No weight is read or allocated: a preset of any size answers at once, and a folder is checked against its config.

    Examples:
        qkv info gpt3-175b
        qkv info bert-base --json
        qkv info path/to/model --context 4096

    Parameters
    ----------
    model
        A preset (qkv info presets lists them), a qkv or Hugging Face folder, or a hub id.
    context
        The length that arithmetic is reckoned at; by default the model's own, at most 2,048.
    """
    from qkv import store
    from qkv.models import presets
    from qkv.models.account import account
    from qkv.render import info as picture

    if model == "presets" and not Path(model).exists():
        return _show_presets(json)
    if context is not None and context < 1:
        raise UsageError(f"--context {context}: a length is at least 1")
    if model in presets.PRESETS and not Path(model).is_dir():
        config, notes = presets.find(model), []
    elif os.sep in model or Path(model).exists():
        stored = store.read(model, device="meta")
        config, notes = stored.config, stored.notes
    else:
        raise UsageError(f"{model}: neither a folder nor a preset; {nearest(model, presets.PRESETS)}")
    books = account(config, context)
    _notes(model, notes)
    if json:
        _print_json({"model": model, **books.to_dict(), "config": config.to_dict(), "notes": notes})
    else:
        picture.render(model, config, books, Screen())
    return None


def _show_presets(json: bool) -> None:
    from qkv.models import presets
    from qkv.models.account import account
    from qkv.render.info import FAMILIES, count

    books = {name: account(make()) for name, make in presets.PRESETS.items()}
    if json:
        _print_json({name: {"family": b.family, "parameters": b.total} for name, b in books.items()})
        return
    for name, b in books.items():
        print(f"{name:<18} {FAMILIES[b.family]:<16} {count(b.total):>14}")


@app.command(name="import")
def import_(model: str, folder: Path, /, *, json: Json = False) -> None:
    """Turn a Hugging Face folder or hub id into a qkv model folder.

    Example:
        qkv import path/to/huggingface/model models/mine

    Parameters
    ----------
    model
        A Hugging Face folder or hub id.
    folder
        Where to write.
    """
    from qkv import store

    _not_itself(model, folder)
    stored = store.read(model)
    _notes(model, stored.notes)
    store.write(folder, stored.config, stored.network, stored.tokenizer)
    _done(
        json, f"wrote {folder}; load it with qkv.load({str(folder)!r})", {"folder": str(folder), "notes": stored.notes}
    )


@app.command
def export(
    model: str, folder: Path, /, *, format: Literal["hf", "ctranslate2", "onnx"] = "hf", json: Json = False
) -> None:
    """Write a model as other people's code reads it.

    Example:
        qkv export models/mine exported --format hf

    Parameters
    ----------
    model
        A model folder.
    folder
        Where to write.
    format
        hf: a folder that transformers, vLLM and other readers of that layout load; ctranslate2: one for that engine;
        onnx: graphs for onnxruntime.
    """
    from qkv import store

    _not_itself(model, folder)
    stored = store.read(model)
    _notes(model, stored.notes)
    cls = store.write(folder, stored.config, stored.network, stored.tokenizer, format)
    calls = {
        "hf": f"transformers.{cls}.from_pretrained({str(folder)!r})",
        "ctranslate2": f"ctranslate2.{cls}({str(folder)!r})",
        "onnx": f"onnxruntime.InferenceSession for each of {cls}",
    }
    call = calls[format]
    _done(json, f"wrote {folder}; load it with {call}", {"folder": str(folder), "class": cls, "notes": stored.notes})


@app.command
def run(
    model: str,
    /,
    *texts: str,
    max_tokens: int = 64,
    beam: int = 1,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int | None = None,
    stop: Words = None,
    batch: int = 16,
    json: Json = False,
) -> None:
    """Run a model on texts: go on from a prompt, or answer a source.

    Without texts it reads lines from stdin and writes one line for each, in order. A single text is shown as it is
    written, where stdout is a terminal.

    Examples:
        qkv run models/mine "Once upon a time" --temperature 0.8 --seed 1
        qkv run models/translator --beam 5 < source.txt > target.txt
        qkv run models/translator "a dog runs" "two men" --json

    Parameters
    ----------
    model
        A model folder or hub id, with a language-model head and a tokenizer.
    texts
        Prompts, or sources for an encoder and decoder.
    max_tokens
        How many tokens to write at most.
    beam
        Search with so many hypotheses; 1 takes the likeliest token each time.
    temperature
        Above 0, draw tokens: flatter above 1, sharper below.
    top_k
        Draw among the k likeliest; 0: all.
    top_p
        Draw among the likeliest that together have this probability.
    seed
        The same seed gives the same text.
    stop
        A text that ends the answer; may be given several times.
    batch
        How many lines to run at a time.
    """
    from qkv.api import load
    from qkv.render.progress import progress_bar

    if batch < 1:
        raise UsageError(f"--batch {batch}: at least 1")
    loaded = load(model)
    options: dict[str, Any] = {"max_tokens": max_tokens, "beam": beam, "temperature": temperature, "top_k": top_k}
    options |= {"top_p": top_p, "seed": seed, "stop": stop}
    lines = list(texts) if texts else _lines_of_stdin()
    if len(lines) == 1 and beam == 1 and not json and sys.stdout.isatty():
        loaded.generate(lines, **options, on_text=lambda _, piece: print(piece, end="", flush=True))
        print()
        return
    with progress_bar("running") as progress:
        results = loaded.generate_lines(lines, batch=batch, progress=progress, **options)
    for line, result in zip(lines, results, strict=True):
        if json:
            row = {
                "input": line,
                "text": result.text,
                "score": result.score,
                "reason": result.reason,
                "ids": result.ids,
            }
            print(json_format.dumps(row, ensure_ascii=False))
        else:
            print(" ".join(result.text.splitlines()))  # one line for each line


@app.command
def data(
    *files: str,
    tokenizer: Path | None = None,
    format: str | None = None,
    columns: Words = None,
    row: int = 512,
    rows: int = 3,
    json: Json = False,
) -> None:
    """Show what qkv sees in your files: fields, examples, lengths, padding, the first rows, and every problem.

    Examples:
        qkv data train.tsv
        qkv data source=train.en target=train.fr --tokenizer models/mine
        qkv data reviews.csv.gz --columns text=review --columns label=stars --json

    Parameters
    ----------
    files
        Files, globs or folders; or field=file for files that go in step.
    tokenizer
        A model folder or tokenizer.json: lengths and first rows in tokens, too.
    format
        The format, where the file's ending does not tell it.
    columns
        field=column for each column to read; all of them if none is given.
    row
        The row length that padding is worked out for.
    rows
        How many first examples to show.
    """
    from qkv.data.readers import Files, Options
    from qkv.data.survey import survey
    from qkv.render import survey as picture
    from qkv.render.progress import progress_bar
    from qkv.text import Tokenizer

    if not files:
        raise UsageError("give one or more files, as in: qkv data train.tsv")
    if row < 2 or rows < 0:
        raise UsageError(f"--row {row} --rows {rows}: a row has at least 2 tokens, and rows cannot be fewer than 0")
    named = _pairs(files, "files that go in step")
    chosen = _pairs(columns or [], "--columns", needed=True)
    if not named and len({str(Path(file).resolve()) for file in files}) < len(files):
        raise UsageError("a file is given twice")
    source = Files(named if named else list(files), format, Options(columns=chosen or None))
    reader = Tokenizer.load(tokenizer) if tokenizer else None
    with progress_bar("reading") as progress:
        seen = survey(source, tokenizer=reader, row=row, first=rows, progress=progress)
    if json:
        _print_json(seen.to_dict())
    else:
        picture.render(seen, Screen())


def _pairs(words: Sequence[str], what: str, *, needed: bool = False) -> dict[str, Any]:
    """`field=value` words as a mapping; all of them or (unless needed) none."""
    pairs = [word.partition("=") for word in words if "=" in word and not Path(word).exists()]
    if (pairs or needed) and len(pairs) != len(words):
        raise UsageError(f"{what}: every one as field=value{'' if needed else ', or none'}")
    names = [name for name, _, _ in pairs]
    if len(set(names)) < len(names):
        raise UsageError(f"{what}: a field is given twice")
    return {name: value for name, _, value in pairs}


def _not_itself(model: str, folder: Path) -> None:
    """Refuse to write a model over the folder that it is read from."""
    if Path(model).is_dir() and folder.is_dir() and Path(model).samefile(folder):
        raise UsageError(f"{folder}: this is the folder that the model is read from; choose another")


def _lines_of_stdin() -> list[str]:
    lines = []
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            lines.append(line.decode("utf-8").rstrip("\r\n"))
        except UnicodeDecodeError as error:
            raise QkvError(f"stdin, line {number}: not UTF-8 ({error.reason} at byte {error.start})") from error
    return lines


class Screen(Console):
    """A console that ends quietly when the reader of our output has gone, as with `| head`."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def _notes(what: str, notes: Sequence[str]) -> None:
    for note in notes:
        print(f"{what}: {note}", file=sys.stderr)


def _done(json: bool, text: str, values: dict[str, Any]) -> None:
    if json:
        _print_json(values)
    else:
        print(text)


def _print_json(values: Any) -> None:
    print(json_format.dumps(values, indent=2, ensure_ascii=False, default=str))


def call(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    try:
        app(list(arguments) if arguments is not None else None, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        print(f"qkv: {error}\nTry: qkv --help", file=sys.stderr)
        return 2
    except QkvError as error:
        print(f"qkv: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("qkv: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has gone, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit as stop:  # help and version end the app themselves
        if stop.code == 130:
            print("qkv: interrupted", file=sys.stderr)
        return stop.code if isinstance(stop.code, int) else 0
    return 0


def main() -> None:
    sys.exit(call())
