"""Recognise a table or a CoNLL file by its first lines, if its name only says that it is text or tab-separated."""

import re
from pathlib import Path

from qkv.data.problems import Problems
from qkv.data.readers.lines import utf8_blocks
from qkv.data.readers.options import ReadContext, ReadOptions

SNIFFED_EXTENSIONS = {".txt", ".text", ".tsv", ".tab"}
SNIFFED_BYTES = 2**16
BINARY = re.compile(rb"[\0-\x08\x0e-\x1a]")  # control characters that no text has
JSON_LIST = re.compile(rb'\s*\[\s*[\[{"\]]')
MIN_ROWS = 2  # one line with a tab is not a table yet


def sniff_format(path: Path, format: str, options: ReadOptions) -> tuple[str, str]:
    """The format of a file whose extension means `format`; if it is a different format, also the reason.

    A file with the same number of tabs in all its first lines is a table. It is CoNLL if there are also blank lines
    between them, and no cell contains a space.
    """
    block = first_block(path, options)
    lines = block[:SNIFFED_BYTES].decode(errors="replace").replace("\r\n", "\n").split("\n")
    if len(block) > SNIFFED_BYTES:
        lines.pop()  # the last line may be incomplete
    rows = [line for line in lines if line.strip()]
    tabs = {row.count("\t") for row in rows if not row.startswith("-DOCSTART-")}
    if len(rows) < MIN_ROWS or len(tabs) != 1 or 0 in tabs:
        return format, ""
    has_gaps = "" in (line.strip() for line in "\n".join(lines).strip().split("\n"))
    if has_gaps and not any(" " in row.strip() for row in rows):
        return "conll", "columns of words, and blank lines between sentences"
    number = tabs.pop()
    return "tsv", f"{number} tab{'s' * (number > 1)} in each of its first lines"


def guess_format(path: Path, options: ReadOptions) -> str:
    """The format that the first bytes of a file look like, if its extension is unknown; "" for a binary file."""
    block = first_block(path, options)
    if not block.strip() or BINARY.search(block):
        return ""
    if JSON_LIST.match(block):
        return "json"
    return "jsonl" if block.lstrip().startswith(b"{") else sniff_format(path, "text", options)[0]


def first_block(path: Path, options: ReadOptions) -> bytes:
    """The first bytes of a file, decompressed."""
    return next(utf8_blocks(path, ReadContext(options, Problems(max_invalid_fraction=1))), b"")
