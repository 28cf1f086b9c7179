"""`qkv data`: inspect data files."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qkv.cli.shared import Json, StdoutConsole, StringList, check_minimum, print_json, print_result
from qkv.data.builtin import DATASETS, find_dataset
from qkv.errors import UsageError
from qkv.files import to_path

SHEET_EXAMPLES = 24


def data(
    *files: str,
    valid: StringList = None,
    test: StringList = None,
    tokenizer: Path | None = None,
    format: str | None = None,
    columns: StringList = None,
    records_key: str | None = None,
    encoding: str | None = None,
    max_length: int = 512,
    examples: int = 3,
    split: str = "train",
    picture: Path | None = None,
    json: Json = False,
) -> None:
    """Inspect data files: fields, number of examples, lengths, padding, first examples, and problems.

    The name of a built-in dataset shows its first examples.

    Examples:
        qkv data train.tsv
        qkv data scenes --picture sheet.png
        qkv data source=train.en target=train.fr --tokenizer models/mine
        qkv data train.jsonl --valid valid.jsonl --test test.jsonl
        qkv data reviews.csv.gz --columns text=review label=stars --json

    Parameters
    ----------
    files
        Files, globs or folders; for line-aligned files, field=file for each file.
    valid
        A validation file, shown after the other files. Repeat the option for several files.
    test
        A test file, shown last. Repeat the option for several files.
    tokenizer
        A model folder or tokenizer.json. Lengths and first examples are then also shown in tokens.
    format
        Format of the files. Default: detected from the extension and the first lines.
    columns
        field=column for each column to read. Default: all columns.
    records_key
        Path of the list of records in a JSON document, such as data.train.
    encoding
        Encoding of text files, such as latin-1. Default: recognised.
    max_length
        Sequence length for which to estimate the padding.
    examples
        Number of examples to show.
    split
        The split of a built-in dataset to show.
    picture
        A PNG file to write: a sheet of the first pictures of a built-in dataset.
    """
    from qkv.data.dataset_stats import compute_stats
    from qkv.data.readers import DataFiles
    from qkv.render.dataset_stats import print_dataset_stats
    from qkv.render.progress import progress_bar
    from qkv.text import Tokenizer

    files, chosen = take_columns(files, columns)
    if not files:
        raise UsageError("no files to inspect; name at least one, for example: qkv data train.tsv")
    check_minimum("max-length", max_length, 2)
    check_minimum("examples", examples, 0)
    if len(files) == 1 and files[0] in DATASETS:
        return show_builtin(files[0], split, examples, picture, json)
    if picture is not None:
        raise UsageError(f"--picture is for a built-in dataset ({', '.join(DATASETS)}), not for files; leave it out")
    splits = {"train": files, "valid": valid or (), "test": test or ()}
    sources = {
        name: DataFiles.from_options(
            parse_files(given), format, columns=chosen or None, records_key=records_key, encoding=encoding
        )
        for name, given in splits.items()
        if given
    }
    loaded_tokenizer = Tokenizer.load(tokenizer) if tokenizer else None
    all_stats = {}
    for name, source in sources.items():
        with progress_bar("reading") as progress:
            all_stats[name] = compute_stats(
                source, tokenizer=loaded_tokenizer, max_length=max_length, num_previews=examples, progress=progress
            )
    if json:
        values = {name: stats.to_dict() for name, stats in all_stats.items()}
        print_json(values if len(values) > 1 else values["train"])
        return
    for number, stats in enumerate(all_stats.values()):
        if number:
            print()
        print_dataset_stats(stats, StdoutConsole())


def show_builtin(name: str, split: str, count: int, picture: Path | None, json: bool) -> None:
    """Print the first examples of a built-in dataset, or write a sheet of its pictures."""
    dataset = find_dataset(name)
    listed = [dict(dataset.example(split, number).items()) for number in range(SHEET_EXAMPLES if picture else count)]
    if picture is not None:
        from qkv.render.picture_sheet import write_sheet

        if not any(isinstance(value, bytes) for value in listed[0].values()):
            raise UsageError(f"{name} has no pictures; leave --picture out")
        write_sheet(picture, listed)
        print_result(json, f"wrote {picture}", {"picture": str(picture), "examples": len(listed)})
        return
    shown = [{field: show_field(value) for field, value in example.items()} for example in listed]
    lines = [f"{name}: {dataset.description}", f"splits: {', '.join(dataset.splits)}"]
    for example in shown:
        lines += ["", *(f"{field:<14}{value}" for field, value in example.items())]
    print_result(json, "\n".join(lines), {"name": name, "splits": dataset.splits, "examples": shown})


def show_field(value: Any) -> str:
    """A value of an example as text."""
    return f"a file of {len(value):,} bytes" if isinstance(value, bytes) else str(value)


def parse_files(arguments: Sequence[str]) -> list[str] | dict[str, str]:
    """Files as a list, or by field if they are given as field=file. Raises an error if a file is given twice."""
    if named := parse_fields(arguments, "line-aligned files"):
        return named
    paths: set[str] = set()
    for file in arguments:
        path = os.path.realpath(to_path(file))
        if path in paths:
            raise UsageError(f"{file}: this file is named twice; name each file once")
        paths.add(path)
    return list(arguments)


def take_columns(files: Sequence[str], columns: Sequence[str] | None) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The files of a command line, and the columns, several of which may follow one `--columns`.

    >>> take_columns(["news.csv", "label=topic"], ["text=body"])
    (('news.csv',), {'text': 'body', 'label': 'topic'})
    >>> take_columns(["source=a.en", "target=a.de"], None)
    (('source=a.en', 'target=a.de'), {})
    """
    more = [file for file in files if columns and "=" in file and not is_file_argument(file)]
    chosen = parse_fields([*(columns or ()), *more], "--columns", required=True)
    return tuple(file for file in files if file not in more), chosen


def is_file_argument(argument: str) -> bool:
    """Whether an argument is an existing file, or field=file with one."""
    return Path(argument).exists() or Path(argument.partition("=")[2]).is_file()


def parse_fields(arguments: Sequence[str], description: str, *, required: bool = False) -> dict[str, Any]:
    """Parse arguments `field=value`. If one of them has this form, or it is `required`, all must have it."""
    plain = [argument for argument in arguments if "=" not in argument or Path(argument).exists()]
    if plain and (required or len(plain) < len(arguments)):
        choice = "" if required else ", or none"
        raise UsageError(f"{description}: {plain[0]!r} is not of the form field=value; write all in this form{choice}")
    pairs = [argument.partition("=") for argument in arguments if not plain]
    names = [name for name, _, _ in pairs]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"{description}: the field {repeated[0]!r} is named twice; name each field once")
    return {name: value for name, _, value in pairs}
