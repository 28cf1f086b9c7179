"""The arguments of every reader besides the files: options, limits, and where to report problems and progress."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from qkv.data.problems import Problems
from qkv.errors import UsageError

MiB = 2**20

TextUnit = Literal["line", "paragraph", "document"]
OnBytes = Callable[[int], None]  # called with the number of bytes that were just read from disk


@dataclass(frozen=True)
class ReadLimits:
    """What the readers accept; a line or a file beyond it is invalid data."""

    max_line_bytes: int = 16 * MiB  # a longer line is counted and skipped, and never held in memory
    max_expansion: int = 200  # a compressed file may expand by this factor …
    expansion_check_bytes: int = 64 * MiB  # … which is checked once it has expanded to this many bytes
    max_json_bytes: int = 1024 * MiB  # a JSON document, which must be held in memory
    document_chunk_bytes: int = MiB  # a longer text document becomes several records, cut at line ends

    def __post_init__(self) -> None:
        if self.max_line_bytes < 1024:
            raise UsageError(f"max_line_bytes must be at least 1024, not {self.max_line_bytes}")


@dataclass(frozen=True)
class ReadOptions:
    """How files are read. None means the format's default."""

    columns: dict[str, str | int] | None = None  # field → column, or several: "title + body"; None reads all
    optional: tuple[str, ...] = ()  # json, datasets, parquet: fields of `columns` that a record may lack
    # csv, tsv: whether the first row names the columns; default: yes, unless `columns` are chosen by number or, without
    # `columns`, the row looks like data
    header: bool | None = None
    delimiter: str | None = None  # csv, tsv: one character; default: detected in the first line (csv), a tab (tsv)
    quote: bool | None = None  # csv, tsv: whether fields may be quoted as in RFC 4180; default: yes for csv, no for tsv
    unit: TextUnit = "line"  # text: the unit of a record
    comments: bool | None = None  # conll: whether lines that start with # are comments; default: in CoNLL-U only
    records_key: str | None = None  # json: where in the document the list of records is
    split: str | None = None  # datasets: which split
    config: str | None = None  # datasets: which configuration
    encoding: str | None = None  # default: by the byte-order mark or the characters, else UTF-8
    limits: ReadLimits = field(default_factory=ReadLimits)


@dataclass
class ReadContext:
    """One pass over the files."""

    options: ReadOptions
    problems: Problems
    on_bytes: OnBytes | None = None
