"""`qkv data`: what qkv sees in a user's files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qkv.cli.shared import Json, StdoutConsole, StringList, app, print_json
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
    max_length
        The row length that padding is worked out for.
    examples
        How many first examples to show.
    """
    from qkv.data.readers import DataFiles, ReadOptions
    from qkv.data.survey import survey_files
    from qkv.render import survey as picture
    from qkv.render.progress import progress_bar
    from qkv.text import Tokenizer

    if not files:
        raise UsageError("give one or more files, as in: qkv data train.tsv")
    if max_length < 2 or examples < 0:
        raise UsageError(
            f"--max-length {max_length} --examples {examples}: a row has at least 2 tokens, and rows cannot be fewer than 0"
        )
    named = parse_fields(files, "files that go in step")
    chosen = parse_fields(columns or [], "--columns", required=True)
    if not named and len({str(Path(file).resolve()) for file in files}) < len(files):
        raise UsageError("a file is given twice")
    source = DataFiles(named if named else list(files), format, ReadOptions(columns=chosen or None))
    reader = Tokenizer.load(tokenizer) if tokenizer else None
    with progress_bar("reading") as progress:
        seen = survey_files(source, tokenizer=reader, max_length=max_length, num_previews=examples, progress=progress)
    if json:
        print_json(seen.to_dict())
    else:
        picture.print_survey(seen, StdoutConsole())


def parse_fields(words: Sequence[str], what: str, *, required: bool = False) -> dict[str, Any]:
    """`field=value` words as a mapping; all of them or (unless needed) none."""
    pairs = [word.partition("=") for word in words if "=" in word and not Path(word).exists()]
    if (pairs or required) and len(pairs) != len(words):
        raise UsageError(f"{what}: every one as field=value{'' if required else ', or none'}")
    names = [name for name, _, _ in pairs]
    if len(set(names)) < len(names):
        raise UsageError(f"{what}: a field is given twice")
    return {name: value for name, _, value in pairs}
