"""Inspect the user's files for a recipe: their size, their columns, the length of their texts."""

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from math import ceil
from shlex import quote
from statistics import mean
from typing import Any

from qkv.data import DataFiles, Problems, find_classes
from qkv.data.builtin import DATASETS
from qkv.data.objectives.table import OBJECTIVES
from qkv.data.readers.columns import MAX_RECORDS_SEARCHED, common_names, get_nested, is_number
from qkv.data.readers.decompress import COMPRESSION_BY_EXTENSION
from qkv.data.readers.joined_columns import split_joined
from qkv.data.records import Record
from qkv.errors import UsageError, shorten, suggest_name
from qkv.tasks.prepare.columns import check_columns, check_num_classes, field_names, find_modality, match_columns
from qkv.tasks.prepare.guess_columns import AmbiguousColumns, find_readings, left_out
from qkv.tasks.prepare.sources import find_unseen_label, open_files, open_source, pair_text_files, sample_records
from qkv.tasks.prepare.tokenizer import estimate_chars
from qkv.tasks.starters.sizes import BYTES_PER_TOKEN
from qkv.tasks.table import TASKS
from qkv.text.residues import join_letters
from qkv.train.recipe.schema import DataSection, ObjectiveSection, Recipe

EXAMPLE_BYTES = 2e7  # the assumed size of the data if the user gives no file
MAX_SCORES = 100_000  # records whose scores are read to find the largest one
MAX_LABELS = 100_000  # records whose labels are read to find two classes
SAMPLED_RECORDS = 2000  # records whose values decide the meaning of columns …
MAX_RECORDS_READ = 20_000  # … sampled from this many, because files are often sorted by label
TEXT_COMPRESSION = 3  # text is about this many times as large as its compressed file


@dataclass(frozen=True)
class FileSummary:
    """The properties of the user's data that determine the recipe."""

    files: dict[str, Any]
    bytes: float
    columns: dict[str, str] | None = None
    columns_guessed: bool = False
    left_out: tuple[str, ...] = ()  # columns that are not read
    is_given: bool = False  # whether the user gave files or a built-in dataset
    reading: DataSection = field(default_factory=DataSection)  # the format and the key that the user chose
    max_score: float = 1.0  # the number that scores are divided by
    num_images: int = 0  # of a record
    has_sounds: bool = False
    first: tuple[Record, ...] = ()  # the first records, if they have images or sounds
    mean_chars: float = float("inf")  # mean characters of a text, over the first records
    num_residues: int = 0  # of the longest protein, if nearly all have the same length, as variants of one have


def inspect_files(
    kind: str, files: Sequence[str] | Mapping[str, str], reading: DataSection, shortens: bool = False
) -> FileSummary:
    """Inspect files: their size, and the columns that match the objective's fields.

    If there are several likely ways to read the columns, `AmbiguousColumns` is raised with all of them.
    """
    if isinstance(files, Mapping):
        return inspect_aligned_files(kind, files)
    if len(files) == 1 and files[0] in DATASETS:
        return FileSummary({"train": files[0]}, EXAMPLE_BYTES, is_given=True)
    paths: Any = files[0] if len(files) == 1 else list(files)
    if not reading.format:
        paths = pair_text_files(kind, paths)
    if isinstance(paths, Mapping):
        return inspect_aligned_files(kind, paths)
    check_columns(kind, reading.columns, "--columns")
    chosen = dict(reading.columns)
    data = open_files(paths, reading)
    records = sample_records(data.records(Problems(max_invalid_fraction=1)), SAMPLED_RECORDS, MAX_RECORDS_READ)
    names = common_names(records, OBJECTIVES[kind].sparse_names)
    found = FileSummary({"train": paths}, total_bytes(data), is_given=True, reading=reading)
    if chosen:
        match_columns(kind, names, data.describe_paths())
        columns: Mapping[str, str] = chosen
    else:
        columns = read_columns(kind, names, data, records, shortens)
        is_known = columns == matched_columns(kind, names)
        found = replace(found, columns_guessed=not is_known, left_out=tuple(left_out(names, columns)))
    modality = reading.modality or find_modality(kind, records, {} if chosen else columns)
    found = replace(found, reading=replace(reading, modality=modality))
    if modality == "protein" and not chosen and "label" in columns:
        labels = [str(get_nested(one.fields, columns["label"])) for one in records]
        if all(map(is_number, labels)) and any(float(label) % 1 for label in labels):  # measured effects of mutations
            columns = {"score" if name == "label" else name: column for name, column in columns.items()}
    if modality == "protein":
        column = columns.get("text") or columns.get("first") or ""
        found = replace(found, num_residues=find_common_length([one.fields.get(column) for one in records]))
    scores = {"score": "score"} if chosen else columns
    is_pair = kind == "contrastive" and {"second", "score"} <= columns.keys()
    max_score = guess_max_score(data, scores["score"]) if is_pair else 1.0
    is_same = all(name == column for name, column in columns.items())
    parts = [str(part) for column in columns.values() for part in split_joined(column)]
    chars = mean_characters(records, columns if chosen else parts)
    fields = {one.name: one.modality for one in OBJECTIVES[kind].fields}
    modalities = [fields.get(name) for name in columns]
    if {"image", "audio"} & {*modalities}:
        source = open_source(
            Recipe(objective=ObjectiveSection(kind=kind)), replace(reading, columns=dict(columns)), paths, "train"
        )
        first = tuple(islice(source.records(Problems(max_invalid_fraction=1)), MAX_RECORDS_SEARCHED))
        num_images, has_sounds = modalities.count("image"), "audio" in modalities
        found = replace(found, num_images=num_images, has_sounds=has_sounds, first=first)
    return replace(found, columns=None if is_same else dict(columns), mean_chars=chars, max_score=max_score)


def find_common_length(sequences: Sequence[Any]) -> int:
    """The length of the longest sequence if at least nine of ten have the same length, else 0.

    >>> find_common_length(["MKT"] * 19 + ["MK"]), find_common_length(["MKT", "MK"])
    (3, 0)
    """
    lengths = [len(join_letters(one).strip()) for one in sequences if isinstance(one, str)]
    most = max((lengths.count(length) for length in set(lengths)), default=0)
    return max(lengths) if len(lengths) > 1 and most >= 0.9 * len(lengths) else 0


def matched_columns(kind: str, names: Sequence[str]) -> dict[str, str]:
    """The columns that training finds by their names alone; {} if it finds none."""
    with suppress(UsageError):
        return match_columns(kind, names, "")
    return {}


def read_columns(
    kind: str, names: Sequence[str], data: DataFiles, records: Sequence[Record], shortens: bool
) -> dict[str, str]:
    """The columns of the fields, by their names and values; an error if there are several likely readings."""
    try:
        readings = find_readings(kind, names, records, shortens)
    except UsageError:
        if {group.format for group in data.find_groups(Problems(max_invalid_fraction=1))} == {"text"}:
            raise one_column_error(kind, data, records) from None
        raise
    if len(readings) > 1:
        raise AmbiguousColumns(data.describe_paths(), readings, records)
    return readings[0]


def one_column_error(kind: str, data: DataFiles, records: Sequence[Record]) -> UsageError:
    """The error for lines of text where a table is needed, with the command that makes a table of them."""
    fields = OBJECTIVES[kind].required_fields
    problem = (
        f"{data.describe_paths()}: this is text, whose lines are one column, but {kind} needs {len(fields)} columns"
    )
    if len(fields) != 2 or OBJECTIVES[kind].head == "tag":
        return UsageError(f"{problem} ({', '.join(fields)}); give {find_example(kind)}")
    separator = guess_separator([str(record.fields["text"]) for record in records], bool(OBJECTIVES[kind].class_field))
    pattern = re.escape(separator).replace("\\ ", " ").replace("/", r"\/") or "SEPARATOR"
    script = quote(f"s/{pattern}/\\t/")
    path = next(path for group in data.find_groups(Problems(max_invalid_fraction=1)) for path in group.paths)
    program, name = COMPRESSION_BY_EXTENSION.get(path.suffix.lower()), quote(str(path))
    table = quote(f"{path.name.partition('.')[0]}-columns.tsv")
    command = f"perl -pe {script} {f'> {table}' if program else f'{name} > {table}'}"
    unknown = "" if separator else ", where SEPARATOR is the text between them now"
    return UsageError(
        f"{problem} ({', '.join(fields)}). To write a tab between the columns{unknown}:\n"
        f"    {f'{program} -dc {name} | ' if program else ''}{command}"
    )


def find_example(kind: str) -> str:
    """A description of a file with records of an objective."""
    return next(task.example_data for task in TASKS.values() if task.objective == kind)


def guess_separator(lines: Sequence[str], has_labels: bool) -> str:
    """The separator of the two columns of each line, or "": a space after labels, two spaces, or a mark such as |||.

    >>> guess_separator(["go on ||| weiter", "stop ||| halt"], False), guess_separator(["ON  AA N", "OX  AA K"], False)
    (' ||| ', '  ')
    >>> guess_separator(["1 good", "0 bad", "1 fine", "0 dull", "1 so good", "0 so bad", "1 a", "0 b"], True)
    ' '
    """
    if has_labels and 4 * len({line.split(" ")[0] for line in lines}) <= len(lines):
        return " "  # the first words are few
    marks = [word for word in lines[0].split(" ")[1:-1] if word and not any(map(str.isalnum, word))]
    candidates = ["  ", *(f" {mark} " for mark in marks)]
    return next(
        (candidate for candidate in candidates if len(lines) > 1 and all(line.count(candidate) == 1 for line in lines)),
        "",
    )


def check_classes(kind: str, summary: FileSummary) -> None:
    """Raise an error if a model cannot learn classes from the data: tags that are not lists, or a single label."""
    spec = OBJECTIVES[kind]
    if not spec.class_field:
        return
    section = replace(summary.reading, columns=summary.columns or {})
    recipe = Recipe(data=section, objective=ObjectiveSection(kind=kind))
    source = open_source(recipe, section, summary.files["train"], "train")
    if spec.class_field not in source.fields:
        return
    problems = Problems(max_invalid_fraction=1)
    records = source.records(problems)
    if spec.head == "tag":
        first = list(islice(records, MAX_RECORDS_SEARCHED))
        words_and_tags = [[one.fields.get(name) for name in spec.required_fields] for one in first]
        if not any(isinstance(a, list) and isinstance(b, list) and len(a) == len(b) for a, b in words_and_tags):
            raise UsageError(
                f"{source.description}: {kind} needs a tag for each word, but no record has as many words as tags; "
                f"give {find_example(kind)}"
            )
        return
    classes: set[str] = set()
    for record in islice(records, MAX_LABELS):
        classes.update(find_classes([record], spec.class_field))
        if len(classes) > 1:
            return
    if problems.num_seen <= MAX_LABELS:
        check_num_classes(classes, source.description, problems)


def check_texts(kind: str, summary: FileSummary) -> None:
    """Raise an error if a text field of the objective has no text in one of the files."""
    section = replace(summary.reading, columns=summary.columns or {})
    recipe = Recipe(data=section, objective=ObjectiveSection(kind=kind))
    for files in summary.files.values() if OBJECTIVES[kind].aligned_fields else ():
        source = open_source(recipe, section, files, "train")
        first = list(islice(source.records(Problems(max_invalid_fraction=1)), MAX_RECORDS_SEARCHED))
        for name in OBJECTIVES[kind].aligned_fields:
            values = [one.fields.get(name) for one in first]
            if not any(isinstance(value, str) for value in values):
                raise UsageError(
                    f"{first[0].location}: the {name} is {shorten(repr(values[0]), 60)} ({type(values[0]).__name__}), "
                    f"but {kind} reads texts; write a text there, or choose another column: --columns {name}=COLUMN"
                )


def count_tokens(kind: str, summary: FileSummary) -> float:
    """About the tokens of an epoch. A passage counts for each question about it, however often the files have it."""
    section = replace(summary.reading, columns=summary.columns or {})
    recipe = Recipe(data=section, objective=ObjectiveSection(kind=kind))
    chars = estimate_chars(open_source(recipe, section, summary.files["train"], "train")) if summary.is_given else 0.0
    return (chars or summary.bytes) / BYTES_PER_TOKEN


def add_splits(kind: str, summary: FileSummary, splits: Mapping[str, Sequence[str] | Mapping[str, str]]) -> FileSummary:
    """The summary with validation and test files, which must be readable in the same way as the training files."""
    section = replace(summary.reading, columns=summary.columns or {})
    recipe = Recipe(data=section, objective=ObjectiveSection(kind=kind))
    files = dict(summary.files)
    for name, given in splits.items():
        if given:
            paths: Any = given if isinstance(given, Mapping) else given[0] if len(given) == 1 else tuple(given)
            open_source(recipe, section, paths, "valid")
            files[name] = list(paths) if isinstance(paths, tuple) else paths
    return replace(summary, files=files)


def find_out_of_scope(kind: str, summary: FileSummary) -> str:
    """The label of the validation and test files that the training files lack, if there is exactly one; otherwise "".

    It is also "" if a text has several labels, or if there are too many training records to read all labels.
    """
    section = replace(summary.reading, columns=summary.columns or {})
    recipe = Recipe(data=section, objective=ObjectiveSection(kind=kind))
    train, *others = (open_source(recipe, section, files, "train") for files in summary.files.values())
    if not others or "out_of_scope" not in OBJECTIVES[kind].options or "label" not in train.fields:
        return ""
    classes: set[str] = set()
    for number, record in enumerate(train.records(Problems(max_invalid_fraction=1))):
        if number == MAX_LABELS or isinstance(record.fields.get("label"), list):
            return ""
        classes.update(find_classes([record], "label"))
    return find_unseen_label(others, classes)


def inspect_aligned_files(kind: str, files: Mapping[str, str]) -> FileSummary:
    """Inspect line-aligned files, given as field → file."""
    known = field_names(kind)
    for name in files:
        if name not in known:
            raise UsageError(f"{name}={files[name]}: {kind} has no field {name!r}; {suggest_name(name, known)}")
    data = DataFiles(dict(files))
    try:
        match_columns(kind, files, data.describe_paths())
    except UsageError:
        missing = OBJECTIVES[kind].describe_missing(files)
        added = " ".join(f"{name.partition(' or ')[0]}=FILE" for name in missing)
        raise UsageError(f"{kind} also needs a file for {' and '.join(missing)}; add {added} to the command") from None
    chars = mean_characters(first_records(data))
    return FileSummary({"train": dict(files)}, total_bytes(data), is_given=True, mean_chars=chars)


def first_records(data: DataFiles) -> list[Record]:
    """The first records of the data; invalid records are skipped."""
    records = data.records(Problems(max_invalid_fraction=1))
    return list(islice(records, MAX_RECORDS_SEARCHED))


def total_bytes(data: DataFiles) -> int:
    """The size of the text in all files, in bytes; for compressed files an estimate."""
    groups = data.find_groups(Problems(max_invalid_fraction=1))
    files = [path for group in groups for path in group.paths if path.is_file()]
    return sum(
        path.stat().st_size * (TEXT_COMPRESSION if path.suffix in COMPRESSION_BY_EXTENSION else 1) for path in files
    )


def mean_characters(records: Sequence[Record], columns: Collection[str] = ()) -> float:
    """The mean number of characters of a text, over all columns or the given ones."""
    named = (pair for one in records for pair in one.fields.items() if not columns or pair[0] in columns)
    texts = [text for _, text in named if not isinstance(text, bytes)]
    return mean(len(str(text)) for text in texts) if texts else float("inf")


def guess_max_score(data: DataFiles, column: str) -> float:
    """The smallest round upper bound of the scores in the first `MAX_SCORES` records, by which scores are divided."""
    highest = 0.0
    for record in islice(data.records(Problems(max_invalid_fraction=1)), MAX_SCORES):
        value = str(get_nested(record.fields, column))
        highest = max(highest, abs(float(value)) if is_number(value) else 0.0)
    return next((scale for scale in (1.0, 5.0, 10.0, 100.0) if highest <= scale), float(ceil(highest)))
