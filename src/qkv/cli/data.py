"""`qkv data`: inspect data files."""

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
    """Inspect your data files: fields, number of examples, lengths, padding, first examples, and every problem.

    Examples:
        qkv data train.tsv
        qkv data source=train.en target=train.fr --tokenizer models/mine
        qkv data reviews.csv.gz --columns text=review --columns label=stars --json

    Parameters
    ----------
    files
        Files, globs or folders; or field=file for line-aligned files.
    tokenizer
        A model folder or tokenizer.json: lengths and first examples are shown in tokens, too.
    format
        The format of the files, if their extension does not tell.
    columns
        field=column for each column to read; all columns by default.
    max_length
        The sequence length for which padding is estimated.
    examples
        The number of first examples to show.
    """
    from qkv.data.readers import DataFiles, ReadOptions
    from qkv.data.survey import survey_files
    from qkv.render import survey as picture
    from qkv.render.progress import progress_bar
    from qkv.text import Tokenizer

    if not files:
        raise UsageError("no files were given; for example: qkv data train.tsv")
    check_minimum("max-length", max_length, 2)
    check_minimum("examples", examples, 0)
    named = parse_fields(files, "line-aligned files")
    chosen = parse_fields(columns or [], "--columns", required=True)
    if not named and len({str(Path(file).resolve()) for file in files}) < len(files):
        raise UsageError("a file was given twice; give each file once")
    source = DataFiles(named if named else list(files), format, ReadOptions(columns=chosen or None))
    reader = Tokenizer.load(tokenizer) if tokenizer else None
    with progress_bar("reading") as progress:
        seen = survey_files(source, tokenizer=reader, max_length=max_length, num_previews=examples, progress=progress)
    if json:
        print_json(seen.to_dict())
    else:
        picture.print_survey(seen, StdoutConsole())


def parse_fields(words: Sequence[str], what: str, *, required: bool = False) -> dict[str, Any]:
    """Arguments `field=value` as a mapping. If any argument has this form (or it is required), all must."""
    pairs = [word.partition("=") for word in words if "=" in word and not Path(word).exists()]
    if (pairs or required) and len(pairs) != len(words):
        raise UsageError(f"{what}: give all of them as field=value{'' if required else ', or none'}")
    names = [name for name, _, _ in pairs]
    if len(set(names)) < len(names):
        raise UsageError(f"{what}: a field was given twice; give each field once")
    return {name: value for name, _, value in pairs}
