"""What every reader is given beside the file: the options of the call, where to report, and how to get at lines."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from qkv.data.problems import Problems
from qkv.data.readers.decompress import ReadLimits
from qkv.data.readers.lines import read_lines

TextUnit = Literal["line", "paragraph", "document"]


@dataclass(frozen=True)
class ReadOptions:
    """How files are read. Each None means: what the format usually does."""

    columns: dict[str, str | int] | None = None  # field → column; None takes all
    header: bool | None = (
        None  # csv, tsv: the first row names the columns; usual: yes, unless they are chosen by number
    )
    delimiter: str | None = None  # csv, tsv: one character; usual: for csv what the first line has, for tsv a tab
    quote: bool | None = None  # csv, tsv: "quoted" fields as RFC 4180 has them; usual: yes for csv, no for tsv
    unit: TextUnit = "line"  # text: what one record is
    comments: bool | None = None  # conll: lines that start with # are comments; usual: in CoNLL-U only
    key: str | None = None  # json: where in the document the list of rows is
    split: str | None = None  # datasets: which split
    config: str | None = None  # datasets: which configuration
    encoding: str | None = None  # usual: UTF-8, or what the byte-order mark says
    limits: ReadLimits = field(default_factory=ReadLimits)


@dataclass
class ReadContext:
    """One pass over the files."""

    options: ReadOptions
    problems: Problems
    on_bytes: Callable[[int], None] | None = None

    def lines(self, path: Path, report_crlf: bool = True) -> Iterator[tuple[int, str | None]]:
        return read_lines(path, self.problems, self.options.limits, self.options.encoding, self.on_bytes, report_crlf)
