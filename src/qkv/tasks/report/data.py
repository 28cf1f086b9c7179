"""The data of a run for a report: evaluation records, training records, and what training truncated or left out."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np

from qkv.data import FileLocation, Problems, Record
from qkv.data.builtin import DATASETS
from qkv.errors import QkvError
from qkv.progress import OnStage
from qkv.tasks.prepare.prepare import PreparedRun, prepare
from qkv.tasks.prepare.sources import DataSource, FileSource, open_source, open_sources, sample_records
from qkv.tasks.task import Task
from qkv.tasks.train import split_long_texts
from qkv.text import Tokenizer
from qkv.train.recipe.schema import Recipe

MAX_EVALUATION_RECORDS = 20_000  # read, to sample from and to compare with the training data
MAX_TRAINING_RECORDS = 50_000  # for baselines; leakage is searched in all records
MAX_TEXT_CHARS = 20_000_000  # characters of all training documents that are read
MAX_LENGTH_SAMPLE = 2000  # records whose tokens are counted
MIN_LINE_WORDS = 8


@dataclass
class RunRecords:
    """The records of a run. The evaluation records are the validation data or, if there is none, the test data."""

    recipe: Recipe
    task: Task
    evaluation: list[Record]
    evaluation_sources: Sequence[DataSource]
    training_sources: list[DataSource]
    split: str = "validation"  # the split of the evaluation records: validation or test
    test: list[Record] = field(default_factory=list)  # only for leakage, if `evaluation` is the validation data
    problems: Problems = field(default_factory=lambda: Problems(max_invalid_fraction=1))

    @property
    def name(self) -> str:
        """Where the evaluation records are from."""
        return f"{self.split} data ({', '.join(one.description for one in self.evaluation_sources)})"

    @property
    def unit(self) -> str:
        """The word for one record of this data: "document" or "record"."""
        is_text = self.task.reads_documents and any("text" in record.fields for record in self.evaluation)
        return "document" if is_text else "record"

    def training(self) -> Iterator[Record]:
        """All training records."""
        return chain.from_iterable(source.records(Problems(max_invalid_fraction=1)) for source in self.training_sources)

    def sample_training(self, count: int = MAX_TRAINING_RECORDS) -> list[Record]:
        """A fixed sample of the training records; if they are documents, excerpts of the first ones."""
        records = self.training_documents() if self.task.reads_documents else self.training()
        return split_long_texts(sample_records(records, count), self.task)[:count]

    def training_documents(self) -> Iterator[Record]:
        """The first training documents, up to `MAX_TEXT_CHARS` characters."""
        return limit_text(self.training())


def read_data(recipe: Recipe, task: Task) -> RunRecords:
    """Read the evaluation records of a run, and open its training data."""
    sources = open_sources(recipe)
    problems = Problems(max_invalid_fraction=1)
    files = recipe.data.train
    test_files = recipe.data.test or (files if isinstance(files, str) and files in DATASETS else "")
    test = [open_source(recipe, recipe.data, test_files, "test")] if test_files else []

    def read(parts: Sequence[DataSource]) -> list[Record]:
        records = chain.from_iterable(source.records(problems) for source in parts)
        return sample_records(limit_text(records) if task.reads_documents else records, MAX_EVALUATION_RECORDS)

    valid, tested = read(sources.valid), read(test)
    if not (valid or tested):
        raise QkvError(
            f"{recipe.run}: this run has neither validation nor test data, so there is nothing to report on; set "
            "data.valid, data.valid_fraction or data.test and train again"
        )
    training = [*sources.train.values()]
    if not valid:
        return RunRecords(recipe, task, tested, test, training, "test", problems=problems)
    return RunRecords(recipe, task, valid, sources.valid, training, test=tested, problems=problems)


def limit_text(records: Iterator[Record]) -> Iterator[Record]:
    """The first documents, up to `MAX_TEXT_CHARS` characters in all; the last document is truncated."""
    room = MAX_TEXT_CHARS
    for record in records:
        text = record.fields.get("text")
        if isinstance(text, str):
            record = replace(record, fields={**record.fields, "text": text[:room]})
            room -= len(text)
        yield record
        if room <= 0:
            return


def read_lines(sources: Iterable[DataSource]) -> Iterator[Record]:
    """The lines of documents, each as a record, because a whole document rarely occurs twice.

    A line of a text file has its own location. A line of any other file has the location of its document.
    """
    for source in sources:
        is_text = isinstance(source, FileSource) and all(
            group.format == "text" for group in source.files.find_groups(Problems(max_invalid_fraction=1))
        )
        before = count_lines_before(source) if is_text else {}
        for record in source.records(Problems(max_invalid_fraction=1)):
            location = record.location
            first = location.line + before.get(location, 0)
            for number, line in enumerate(str(record.fields.get("text", "")).split("\n"), first):
                if len(line.split()) >= MIN_LINE_WORDS:
                    yield Record({"text": line}, replace(location, line=number) if is_text else location)


def count_lines_before(source: DataSource) -> dict[FileLocation, int]:
    """For each document whose end is held out, the number of its lines in the training data."""
    if not isinstance(source, FileSource) or source.split is None or source.split_name != "validation":
        return {}
    training = replace(source, split_name="train").records(Problems(max_invalid_fraction=1))
    return {record.location: str(record.fields.get("text", "")).count("\n") for record in training}


@dataclass(frozen=True)
class RecordCounts:
    """How many training records were used, truncated or left out."""

    records: int
    tokens: int  # in an epoch
    truncated: int
    skipped: int  # too long
    empty: int
    invalid: int  # could not be read or encoded
    max_length: int
    suggested_length: int  # holds 99 % of the records
    is_source: bool = False  # whether it is the source that is too long: max_source_length
    classes: dict[str, int] = field(default_factory=dict)  # how often each class occurs in a sample
    problems: dict[str, Any] = field(default_factory=dict)
    unit: str = "record"  # what was counted

    @property
    def cut_fraction(self) -> float:
        """The fraction of records that were truncated or left out because they are too long."""
        return (self.truncated + self.skipped) / max(1, self.records)

    @property
    def unusable_fraction(self) -> float:
        """The fraction of records that could not be used."""
        return (self.invalid + self.empty) / max(1, self.records + self.invalid)

    def to_dict(self) -> dict[str, Any]:
        """The counts for JSON."""
        return asdict(self)


def count_records(
    data: RunRecords, tokenizer: Tokenizer, classes: dict[str, int], progress: OnStage | None = None
) -> tuple[RecordCounts, PreparedRun]:
    """Count what training used; the token cache of the run makes this fast."""
    prepared = prepare(data.recipe, progress, tokenizer=tokenizer)
    all_counts = [objective.counts for objective in prepared.train_data.objectives]
    lengths = token_lengths(data, tokenizer)
    sides = prepared.train_data.max_lengths  # (max_length,), or (max_length, max_source_length)
    wanted = [round_up(length) for length in lengths]
    is_source = len(sides) == 2 and len(wanted) == 2 and wanted[1] - sides[1] > wanted[0] - sides[0]
    return (
        RecordCounts(
            sum(counts.records for counts in all_counts),
            sum(counts.tokens for counts in all_counts),
            sum(counts.truncated for counts in all_counts),
            sum(counts.skipped for counts in all_counts),
            sum(counts.empty for counts in all_counts),
            prepared.problems.num_invalid,
            sides[1] if is_source else sides[0],
            wanted[1] if is_source else wanted[0],
            is_source,
            classes,
            prepared.problems.summary().to_dict(),
            data.unit,
        ),
        prepared,
    )


def token_lengths(data: RunRecords, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The 99th percentile of the lengths of a sample: per record or, for pairs, of the targets and of the sources."""
    sample = data.sample_training(MAX_LENGTH_SAMPLE)
    names = [("target",), ("source",)] if any("source" in one.fields for one in sample) else [("",)]

    def length(record: Record, wanted: tuple[str, ...]) -> int:
        chosen = [value for name, value in record.fields.items() if name in wanted or wanted == ("",)]
        texts = [" ".join(map(str, one)) if isinstance(one, list) else one for one in chosen]
        return sum(len(tokenizer.encode(text)) for text in texts if isinstance(text, str))

    return tuple(int(np.quantile([length(one, side) for one in sample] or [0], 0.99)) for side in names)


def round_up(length: int, multiple: int = 8) -> int:
    """A length with room for special tokens, rounded up.

    >>> round_up(13)
    24
    """
    return -(-(length + 4) // multiple) * multiple
