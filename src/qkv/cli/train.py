"""Verbs for training: `qkv train`, `qkv init`, `qkv verify-resume`."""

import os
import shlex
import sys
import tempfile
import tomllib
from pathlib import Path

from qkv.cli.data import parse_fields
from qkv.cli.shared import Json, StdoutConsole, app, print_json, print_result
from qkv.errors import QkvError, UsageError
from qkv.train.watch import Sample

NAMED_FIELD_SUFFIXES = {".jsonl", ".json", ".parquet"}
"""Files whose every record names its fields; of others it is said how their first line is read."""


@app.command
def train(recipe: str, /, *overrides: str, dry_run: bool = False, processes: int = 1, json: Json = False) -> None:
    """Train a model as a recipe says, or go on with a run.

    What comes of it is a run's folder, which is a model folder. The same call, or the folder alone, goes on with a run
    that was stopped.

    Examples:
        qkv train dates
        qkv train my.toml run=runs/a train.minutes=10 train.lr=1e-3
        qkv train my.toml --dry-run
        qkv train runs/a

    Parameters
    ----------
    recipe
        A recipe's file, the name of a built-in one, or a run's folder.
    overrides
        key=value, as train.steps=200 or model.width=128.
    dry_run
        Show the whole recipe, the model, its memory and the first rows of data, and train nothing.
    processes
        How many processes to start on this machine, one for each GPU.
    """
    if processes < 1:
        raise UsageError(f"--processes {processes}: at least 1")
    if dry_run:
        return _dry_run(recipe, overrides, json)
    if processes > 1:
        from qkv.train.parallel.launch import launch

        code = launch(processes, ["train", recipe, *overrides, *(["--json"] if json else [])])
        if code:
            raise SystemExit(code)
        return None
    from qkv.render.learning_curves import draw_curves
    from qkv.render.progress import stages_bar
    from qkv.render.training_display import make_watcher
    from qkv.tasks.train import open_recipe
    from qkv.tasks.train import train as train_recipe

    opened = open_recipe(recipe, overrides)
    with make_watcher() as watch, stages_bar() as progress:
        trained = train_recipe(opened, watch=watch, progress=progress)
    if os.environ.get("RANK", "0") != "0":
        return None  # of several processes the first one tells
    end = trained.end
    folder = Path(end.folder)
    try:
        draw_curves({folder.name: folder}, folder / "curves.svg", title=folder.name)
        curves = f"Its curves: {folder / 'curves.svg'}"
    except QkvError as error:  # the run is whole without a picture
        curves = f"Its curves could not be drawn: {error}"
    told = [f"{end.step:,} steps", *(f"{name} {value:.4g}" for name, value in end.metrics.items())]
    print_result(
        json,
        f"{end.folder}: {', '.join(told)}\n{curves}\n"
        f"Try it: qkv run {shlex.quote(end.folder)} {example_input(watch.state.sample)}",
        {"run": end.folder, "step": end.step, "seconds": end.seconds, "reason": end.reason, "metrics": end.metrics},
    )
    return None


def example_input(sample: Sample | None) -> str:
    """A held-out text to run the model on, as it is typed; dots where there is none that is short.

    >>> example_input(Sample("3 mars 1998", "", "")), example_input(None)
    ("'3 mars 1998'", '…')
    >>> print(example_input(Sample("a ‖ b's", "", "", typed="a\\tb's")))
    $'a\\tb\\'s'
    """
    text = "" if sample is None else sample.source if sample.model_input is None else sample.model_input
    parts = text.split("\t")
    if not 0 < len(text) <= 60 or not all(part.isprintable() for part in parts):
        return "…"
    if len(parts) == 1:
        return shlex.quote(text)
    return "$'" + "\\t".join(part.replace("\\", "\\\\").replace("'", "\\'") for part in parts) + "'"


def _dry_run(recipe: str, overrides: tuple[str, ...], json: bool) -> None:
    from qkv.render import dry_run as picture
    from qkv.render.progress import stages_bar
    from qkv.tasks.describe import describe
    from qkv.tasks.train import open_recipe

    opened = open_recipe(recipe, overrides)
    with stages_bar() as progress:
        described = describe(opened, progress)
    if json:
        print_json(described.to_dict())
    else:
        picture.print_dry_run(described, StdoutConsole())


@app.command
def init(task: str, /, *files: str, out: Path | None = None, json: Json = False) -> None:
    """Write a recipe for your own files, with a comment for each choice.

    Examples:
        qkv init translate source=train.en target=train.de
        qkv init classify reviews.csv --out reviews.toml

    Parameters
    ----------
    task
        translate, summarise, language, classify, tag, answer, embed, pretrain, spans or denoise.
    files
        Your training files; field=file for files that go in step; or a dataset that comes with qkv.
    out
        Where to write the recipe; by default TASK.toml.
    """
    from qkv.tasks.starters import starter_recipe

    path = out or Path(f"{task}.toml")
    text = starter_recipe(task, parse_fields(files, "files that go in step") or files, run=f"runs/{path.stem}")
    if path.exists():
        raise QkvError(f"{path}: this file is there already; give another with --out")
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise QkvError(f"{path}: cannot be written ({error.strerror or error}); give another with --out") from error
    columns = tomllib.loads(text)["data"].get("columns", {})
    told = ""
    if columns and not json:
        listed = ", ".join(f"{name} = {column}" for name, column in columns.items())
        numbered = all(column.isdigit() for column in columns.values())
        first = f"; the first line is read as {'data' if numbered else 'names'}"
        named = any(NAMED_FIELD_SUFFIXES & set(Path(file).suffixes) for file in files)
        told = f" (columns: {listed}{'' if named else first})"
    print_result(
        json, f"wrote {path}{told}; next: qkv train {path} --dry-run", {"recipe": str(path), "columns": columns}
    )


@app.command(name="verify-resume")
def verify_resume(recipe: str, /, *overrides: str, steps: int = 12, json: Json = False) -> None:
    """Prove that a run of a recipe survives being killed: train a few steps, kill, go on, compare every bit.

    Example:
        qkv verify-resume my.toml

    Parameters
    ----------
    recipe
        A recipe's file, or the name of a built-in one.
    overrides
        key=value, as for qkv train.
    steps
        How many steps to train.
    """
    from qkv.tasks.verify_resume import verify_resume as verify

    with tempfile.TemporaryDirectory(prefix="qkv-verify-") as folder:
        found = verify(recipe, overrides, Path(folder), steps=steps, progress=lambda text: print(text, file=sys.stderr))
    if json:
        print_json(found.to_dict())
    elif found.identical:
        print(
            f"the same: {found.num_tensors} tensors and {found.num_log_lines} lines of the log after {found.steps} steps, "
            f"one run straight through, one killed after step {found.killed_after} and continued"
        )
    if not found.identical:
        raise QkvError(f"the continued run differs: {found.difference}")
