"""`qkv train`, `qkv init` and `qkv verify-resume`."""

import math
import os
import shlex
import sys
import tempfile
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from qkv.cli.data import parse_files, take_columns
from qkv.cli.init_questions import ask_task_and_files
from qkv.cli.shared import Json, StdoutConsole, StringList, check_minimum, fast_imports, print_json, print_result
from qkv.errors import QkvError, UsageError, count_nouns
from qkv.files import report_write_errors

if TYPE_CHECKING:
    from qkv.tasks.train import TrainingResult
    from qkv.train.watch import Sample

NAMED_FIELD_SUFFIXES = {".jsonl", ".json", ".parquet", ".fasta", ".fa", ".faa", ".fas"}
"""Formats in which every record names its fields. For other formats, `qkv init` prints how it reads the first line."""


def train(
    recipe: str,
    /,
    *overrides: str,
    minutes: float = 0.0,
    dry_run: bool = False,
    processes: int = 1,
    json: Json = False,
) -> None:
    """Train a model from a recipe, or resume a run.

    The trained model is in the folder of the run. To resume an interrupted run, repeat the command, or name the folder
    of the run.

    Examples:
        qkv train dates
        qkv train my.toml run=runs/a train.minutes=10 train.lr=1e-3
        qkv train my.toml --minutes 3
        qkv train my.toml --dry-run
        qkv train runs/a

    Parameters
    ----------
    recipe
        A recipe file, the name of a built-in recipe, or the folder of a run.
    overrides
        Changes to the recipe: key=value, for example train.steps=200 or model.width=128.
    minutes
        Training time: the same as train.minutes=…. Default: as in the recipe.
    dry_run
        Do not train; show the full recipe, the model, its memory and the first examples.
    processes
        Number of processes to start on this machine, usually one per GPU.
    """
    check_minimum("processes", processes, 1)
    if not (math.isfinite(minutes) and minutes >= 0):
        raise UsageError(f"--minutes must be >= 0, got {minutes:g}")
    if minutes:
        overrides = (*overrides, f"train.minutes={minutes:g}")
    if dry_run:
        return _dry_run(recipe, overrides, json)
    if processes > 1:
        from qkv.train.parallel.launch import launch

        code = launch(processes, ["train", recipe, *overrides, *(["--json"] if json else [])])
        if code:
            raise SystemExit(code)
        return None
    with fast_imports():
        from qkv.render.learning_curves import draw_curves
        from qkv.render.progress import stages_bar
        from qkv.render.training_display import make_watcher
        from qkv.tasks.train import format_interval, open_recipe
        from qkv.tasks.train import train as train_recipe

    opened = open_recipe(recipe, overrides)
    with make_watcher() as watcher, stages_bar() as progress:
        trained = train_recipe(opened, watch=watcher, progress=progress)
    if os.environ.get("RANK", "0") != "0":
        return None  # only rank 0 prints
    end = trained.run_end
    folder = Path(end.folder)
    try:
        draw_curves({folder.name: folder}, folder / "curves.svg", title=folder.name)
        curves = f"Learning curves: {folder / 'curves.svg'}"
    except QkvError as error:  # the run is complete even without the picture
        curves = f"The learning curves could not be drawn: {error}"
    report, what = report_lines(end.folder)
    scores = [f"{name} {value:.4g}{format_interval(end, name)}" for name, value in end.metrics.items()]
    summary = [count_nouns(end.step, "step"), *scores]
    if end.final is not None:
        summary.append(f"{count_nouns(end.final.num_examples, 'example')}, 95 % intervals in brackets")
    lines = [
        f"{end.folder}: {', '.join(summary)}" + (f" ({end.subset})" if end.subset else ""),
        *report,
        curves,
        f"Try it: {example_command(trained, watcher.state.sample)}",
        f"{what} next? The whole report: qkv report {shlex.quote(end.folder)}",
    ]
    values = {"run": end.folder, "step": end.step, "seconds": end.seconds, "reason": end.reason, "metrics": end.metrics}
    final = None if end.final is None else asdict(end.final)
    print_result(json, "\n".join(lines), {**values, "subset": end.subset, "final": final, "report": report})
    return None


def report_lines(run: str) -> tuple[list[str], str]:
    """Write a quick report on a run that has just ended, and return its summary and the words before "next?".

    The summary is the score with a baseline, the most important advice, and the path of the page. If a baseline is
    better than the model, the last line says so.
    """
    from qkv.files import read_json_object
    from qkv.render.report import name_better_baseline, summarise_report
    from qkv.tasks.report import ReportOptions, make_report

    try:
        device = str(read_json_object(Path(run) / "env.json")["device"])  # the device of the training
        report = make_report(run, ReportOptions(quick=True, device=device))
        report.save(path := Path(run) / "report.html")
    except Exception as error:  # whatever happens here, the run is complete
        return [f"No report was made: {error}"], "Is it good, and what"
    problem = name_better_baseline(report)
    lines = [*summarise_report(report), f"First report: {path}"]
    return lines, f"{problem} What" if problem else "Is it good, and what"


def example_command(trained: "TrainingResult", sample: "Sample | None") -> str:
    """The command that tries a new model: a chat, or a run on a text that resembles its training data."""
    from qkv.data.modalities import reads_files
    from qkv.tasks.table import find_task

    folder, task = shlex.quote(trained.run_end.folder), find_task(trained.config)
    folder += "".join(f" --import {plugin}" for plugin in trained.recipe.plugins)
    if "messages" in trained.fields:
        return f"qkv chat {folder}"
    if reads_files(trained.config) and sample is not None and not Path(sample.source).is_file():
        sample = None  # a picture that is not a file, such as one that was generated
    return f"qkv run {folder} {example_input(sample, task.example_line(trained.fields))}"


def example_input(sample: "Sample | None", fallback: str = "") -> str:
    """A validation text to try the model on, quoted for a shell, or a placeholder if no text is short enough.

    >>> from qkv.train.watch import Sample
    >>> example_input(Sample("3 mars 1998", "", "")), example_input(None)
    ("'3 mars 1998'", "'your text'")
    """
    text = "" if sample is None else sample.source if sample.model_input is None else sample.model_input
    is_short = 0 < len(text) <= 60 and all(part.isprintable() for part in text.split("\t"))
    return quote_text(text if is_short else fallback or "your text")


def quote_text(text: str) -> str:
    """Quote a text for a shell; tabs and line breaks stay visible.

    >>> print(quote_text("two words"), quote_text("a\\tb's"))
    'two words' $'a\\tb\\'s'
    """
    if text.isprintable():
        return shlex.quote(text)
    for character, escape in (("\\", "\\\\"), ("'", "\\'"), ("\t", "\\t"), ("\n", "\\n")):
        text = text.replace(character, escape)
    return f"$'{text}'"


def _dry_run(recipe: str, overrides: tuple[str, ...], json: bool) -> None:
    from qkv.render.dry_run import print_dry_run
    from qkv.render.progress import stages_bar
    from qkv.tasks.describe import describe
    from qkv.tasks.train import open_recipe

    opened = open_recipe(recipe, overrides)
    with stages_bar() as progress:
        described = describe(opened, progress)
    if json:
        print_json(described.to_dict())
    else:
        print_dry_run(described, StdoutConsole())


def init(
    task: str = "",
    /,
    *files: str,
    valid: StringList = None,
    test: StringList = None,
    format: str = "",
    columns: StringList = None,
    records_key: str = "",
    encoding: str = "",
    modality: Literal["", "text", "protein"] = "",
    from_: Annotated[str, Parameter(name="--from")] = "",
    shape: Literal["modern", "exportable"] = "modern",
    minutes: float = 0.0,
    out: Path | None = None,
    json: Json = False,
) -> None:
    """Write a recipe for your own files, with a comment on each setting.

    The sizes in the recipe depend on your data, this machine and the training time. Without arguments, it asks.

    Examples:
        qkv init
        qkv init translate source=train.en target=train.de
        qkv init classify reviews.csv --out reviews.toml
        qkv init embed pairs.tsv --columns first=0 second=1 score=2 --test test.tsv
        qkv init classify reviews.csv --from sentence-transformers/all-MiniLM-L6-v2 --minutes 5

    Parameters
    ----------
    task
        One of translate, summarise, language, classify, tag, answer, embed, pretrain, spans and denoise; or another
        word for it, such as ner, chat, sentiment or intent.
    files
        Training files; for line-aligned files, field=file for each file; or a built-in dataset.
    valid
        Validation file. Repeat the option for several files. Default: hold out a part of the training files.
    test
        Test file. Repeat the option for several files.
    format
        Format of the files. Default: detected from the extension and the first lines.
    columns
        field=column for each column to read; text="title + body" joins two. Default: by names, then by values.
    records_key
        Path of the list of records in a JSON document, such as data.train.
    encoding
        Encoding of text files, such as latin-1. Default: recognised.
    modality
        What the texts are: text, or protein (sequences of residues). Default: recognised by their letters.
    from_
        Model folder or hub id to fine-tune. Default: train a new model.
    shape
        Architecture of a new model: modern, or exportable: a published architecture that transformers can load.
    minutes
        Available training time. Default: 10 minutes for little data, an hour for more.
    out
        Recipe file to write. Default: TASK.toml.
    """
    if not (math.isfinite(minutes) and minutes >= 0):
        raise UsageError(f"--minutes must be >= 0, got {minutes:g}")
    if from_ and shape != "modern":
        raise UsageError(
            f"--shape {shape} is for new models, but --from {from_} already has an architecture; leave one of them out"
        )
    from qkv.tasks.prepare.guess_columns import AmbiguousColumns
    from qkv.tasks.starters.recipe import starter_recipe
    from qkv.train.recipe.schema import DataSection

    asked = not task
    if asked:
        task, files = ask_task_and_files()
    path = out or Path(f"{task}.toml")
    files, given_columns = take_columns(files, columns)
    notes: list[str] = []

    def write(chosen: dict[str, str]) -> str:
        return starter_recipe(
            task,
            parse_files(files),
            run=f"runs/{path.stem}",
            valid=parse_files(valid or ()),
            test=parse_files(test or ()),
            reading=DataSection(
                format=format, columns=chosen, records_key=records_key, encoding=encoding, modality=modality
            ),
            base_model=from_,
            shape=shape,
            minutes=minutes,
            notes=notes,
        )

    try:
        text = write(given_columns)
    except AmbiguousColumns as error:
        if json or not sys.stdin.isatty():
            raise
        print(error, file=sys.stderr)
        text = write(error.readings[ask_number(len(error.readings)) - 1])
    if path.exists():
        raise QkvError(f"{path}: this file already exists, and qkv does not overwrite it; choose another with --out")
    with report_write_errors(path, "choose another file with --out"):
        path.write_text(text, encoding="utf-8")
    written = tomllib.loads(text)["data"].get("columns", {})
    detail = ""
    if written and not json:
        listed = ", ".join(f"{name} = {column}" for name, column in written.items())
        if not any(NAMED_FIELD_SUFFIXES & set(Path(file).suffixes) for file in files):
            is_data = all(column.isdigit() for column in written.values())
            listed += f"; the first line is read as {'data' if is_data else 'column names'}"
        detail = f" (columns: {listed})"
    said = "".join(f"; {note}" for note in notes)
    if asked:
        print(f"\n{text}")
    print_result(
        json,
        f"wrote {path}{detail}{said}; next: qkv train {path} --dry-run",
        {"recipe": str(path), "columns": written, "notes": notes},
    )


def ask_number(highest: int) -> int:
    """Ask the user for a number from 1 to `highest` until one is given."""
    while True:
        answer = input(f"Which one (1 to {highest})? ").strip()
        if answer.isdecimal() and 1 <= int(answer) <= highest:
            return int(answer)


def verify_resume(recipe: str, /, *overrides: str, steps: int = 12, json: Json = False) -> None:
    """Check that a killed run resumes bit for bit: train a few steps, kill the process, resume it, and compare.

    Example:
        qkv verify-resume my.toml

    Parameters
    ----------
    recipe
        A recipe file, or the name of a built-in recipe.
    overrides
        Changes to the recipe: key=value, as in qkv train.
    steps
        Number of steps to train.
    """
    from qkv.tasks.verify_resume import verify_resume as verify

    with tempfile.TemporaryDirectory(prefix="qkv-verify-") as folder:
        result = verify(
            recipe, overrides, Path(folder), steps=steps, progress=lambda text: print(text, file=sys.stderr)
        )
    if json:
        print_json(asdict(result))
    elif result.identical:
        print(
            f"identical: {result.num_tensors} tensors and {result.num_log_lines} log lines after {result.steps} steps, "
            f"in an uninterrupted run and in one that was killed after step {result.killed_after} and resumed"
        )
    if not result.identical:
        raise QkvError(f"the resumed run differs: {result.difference}; please report this with the recipe")
