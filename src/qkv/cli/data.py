"""`qkv data`: inspect data files."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qkv.cli.shared import Json, StdoutConsole, StringList, app, check_minimum, print_json
from qkv.errors import UsageError


@app.command
def data(
    *files: str,
    tokenizer: Path | None = None,
    format: str | None = None,
    columns: StringList = None,
    max_length: int = 512,
    examples: int = 3,
    json: Json = False,
) -> None:
    """Inspect your data files: fields, number of examples, lengths, padding, first examples, and problems.

    Examples:
        qkv data train.tsv
        qkv data source=train.en target=train.fr --tokenizer models/mine
        qkv data reviews.csv.gz --columns text=review --columns label=stars --json

    Parameters
    ----------
    files
        Files, globs or folders; or field=file for each of several line-aligned files.
    tokenizer
        A model folder or tokenizer.json; with it, lengths and first examples are also shown in tokens.
    format
        The format of the files; by default it follows from their extension.
    columns
        field=column for each column to read; by default all columns are read.
    max_length
        The sequence length for which padding is estimated.
    examples
        The number of first examples to show.
    """
    from qkv.data.readers import DataFiles, ReadOptions
    from qkv.data.survey import survey_files
    from qkv.render.progress import progress_bar
    from qkv.render.survey import print_survey
    from qkv.text import Tokenizer

    if not files:
        raise UsageError("no files were given; for example: qkv data train.tsv")
    check_minimum("max-length", max_length, 2)
    check_minimum("examples", examples, 0)
    named = parse_fields(files, "line-aligned files")
    chosen = parse_fields(columns or [], "--columns", required=True)
    paths = [os.path.realpath(file) for file in files]
    if not named and (repeated := [file for file, path in zip(files, paths, strict=True) if paths.count(path) > 1]):
        raise UsageError(f"{repeated[0]}: this file was given twice; give each file once")
    source = DataFiles(named or list(files), format, ReadOptions(columns=chosen or None))
    loaded_tokenizer = Tokenizer.load(tokenizer) if tokenizer else None
    with progress_bar("reading") as progress:
        survey = survey_files(
            source, tokenizer=loaded_tokenizer, max_length=max_length, num_previews=examples, progress=progress
        )
    if json:
        print_json(survey.to_dict())
    else:
        print_survey(survey, StdoutConsole())


def parse_fields(arguments: Sequence[str], description: str, *, required: bool = False) -> dict[str, Any]:
    """Parse arguments `field=value`. If one of them has this form, or it is `required`, all must have it."""
    plain = [argument for argument in arguments if "=" not in argument or Path(argument).exists()]
    if plain and (required or len(plain) < len(arguments)):
        choice = "" if required else ", or none of them"
        raise UsageError(f"{description}: {plain[0]!r} is not field=value; give all of them as field=value{choice}")
    pairs = [argument.partition("=") for argument in arguments if not plain]
    names = [name for name, _, _ in pairs]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"{description}: the field {repeated[0]!r} was given twice; give each field once")
    return {name: value for name, _, value in pairs}
