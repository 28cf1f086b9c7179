"""Recognise the format of a file by its first lines, if its name says little: tables, JSON, CoNLL, or proteins.

An extension such as `.txt`, or an unknown extension, only says that a file is text. Files `.json` are often JSON Lines.
"""

import re
from collections import Counter
from collections.abc import Sequence
from json import JSONDecodeError, loads
from pathlib import Path

from qkv.data.problems import Problems
from qkv.data.readers.lines import utf8_blocks
from qkv.data.readers.options import ReadContext, ReadOptions
from qkv.text.residues import RESIDUES

SNIFFED_EXTENSIONS = {".txt", ".text", ".tsv", ".tab", ".json", ".jsonl", ".ndjson", ".fasta", ".fa", ".faa", ".fas"}
SNIFFED_BYTES = 2**16
BINARY = re.compile(rb"[\0-\x08\x0e-\x1a]")  # control characters that no text has
JSON_LIST = re.compile(r'\s*\[\s*[\[{"\]]')
MIN_ROWS = 2  # one line with a tab is not a table yet
MIN_REGULAR = 0.9  # fraction of the lines with the usual number of columns; the others are titles or broken lines
TAG = re.compile(r"[BIOESLU]|[BIESLU]-\S+|[A-Z]{2,5}\$?|[.,:;'`\"()#$-]{1,2}")
"""What the tags of words look like."""
MAX_TAG_FRACTION = 0.2  # a column with more different values, as a fraction of its words, has no tags


def sniff_format(path: Path, format: str, options: ReadOptions) -> tuple[str, str]:
    """The format of a file whose extension means `format`, and the reason if it is a different format."""
    block = first_block(path, options)
    text = block[:SNIFFED_BYTES].decode(errors="replace").replace("\r\n", "\n")
    if len(block) > SNIFFED_BYTES:
        text = text.rpartition("\n")[0]  # the last line may be incomplete
    if found := _sniff_json(text, format):
        return found, "" if found == format else "JSON in its first lines"
    if format in ("json", "jsonl"):
        return format, ""
    lines = text.split("\n")
    found, reason = sniff_sequences(lines)
    return (found, reason) if found else _sniff_table(lines, format)


def guess_format(path: Path, options: ReadOptions) -> str:
    """The format that the first bytes of a file look like, if its extension is unknown; "" for a binary file."""
    block = first_block(path, options)
    if not block.strip() or BINARY.search(block):
        return ""
    return sniff_format(path, "text", options)[0]


def first_block(path: Path, options: ReadOptions) -> bytes:
    """The first bytes of a file, decompressed."""
    return next(utf8_blocks(path, ReadContext(options, Problems(max_invalid_fraction=1))), b"")


def _sniff_json(text: str, format: str) -> str:
    """`jsonl` for an object in each line, `json` for a list or one object of many lines; "" for other texts."""
    if JSON_LIST.match(text):
        return "json"
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines or not lines[0].lstrip().startswith("{"):
        return ""
    if len(lines) == 1:
        return format if format in ("json", "jsonl") else "jsonl" if _is_object(lines[0]) else ""
    if any(map(_is_object, lines[:MIN_ROWS])):
        return "jsonl"
    return "json" if lines[0].strip() == "{" and lines[1].lstrip().startswith('"') else ""


def _is_object(line: str) -> bool:
    try:
        return isinstance(loads(line), dict)
    except (JSONDecodeError, RecursionError, ValueError):
        return False


def _sniff_table(lines: list[str], format: str) -> tuple[str, str]:
    """A table or CoNLL, if nearly all lines have the same number of columns.

    Columns of CoNLL are separated by tabs or spaces, and there are blank lines between sentences.
    """
    rows = [line for line in lines if line.strip() and not line.startswith("-DOCSTART-")]
    has_gaps = "" in (line.strip() for line in "\n".join(lines).strip().split("\n"))
    number = _regular_number([row.count("\t") for row in rows])
    if number:
        if has_gaps and not any(" " in row.strip() for row in rows):
            return "conll", "columns of words, and blank lines between sentences"
        return "tsv", f"{number} tab{'s' * (number > 1)} in {_all_or_most(rows, number)} of its first lines"
    words = [row.split() for row in rows if "\t" not in row]
    number = _regular_number([len(row) - 1 for row in words])
    if number and has_gaps and len(words) == len(rows):
        tags = [row[-1] for row in words]
        if all(map(TAG.fullmatch, tags)) or len(set(tags)) <= MAX_TAG_FRACTION * len(tags):
            return "conll", "columns of words, and blank lines between sentences"
    return format, ""


def _regular_number(numbers: list[int]) -> int:
    """The number that nearly all lines have; 0 if there is none."""
    if len(numbers) < MIN_ROWS:
        return 0
    number, count = Counter(numbers).most_common(1)[0]
    return number if count >= MIN_REGULAR * len(numbers) else 0


def _all_or_most(rows: list[str], number: int) -> str:
    return "each" if all(row.count("\t") == number for row in rows) else "most"


def sniff_sequences(lines: Sequence[str]) -> tuple[str, str]:
    """The format of a file of proteins by its first lines, and the reason; empty if it has no proteins."""
    rows = [line.strip() for line in lines if line.strip()]
    headers = [number for number, row in enumerate(rows) if row.startswith(">")]
    if headers[:1] == [0]:
        ends = [*headers[1:], len(rows)]
        entries = [rows[start + 1 : end] for start, end in zip(headers, ends, strict=True)]
    else:
        entries = [rows[start + 1 : start + 3] for start in range(0, len(rows) - 2, 3)]
    if len(entries) > 1:
        entries.pop()  # it may be cut
    if entries and all(len(entry) == 2 and are_labels(*entry) for entry in entries):
        return "three-line", "a header, a sequence and a label for each residue"
    return ("fasta", "a header with > before each sequence") if headers[:1] == [0] else ("", "")


def are_labels(sequence: str, labels: str) -> bool:
    """Whether a line has a label for each residue of the line above it: few different ones.

    >>> are_labels("MKTAYIAKQR", "CCHHHHHHCC"), are_labels("MKTAYIAKQR", "QISFVKSHFS")
    (True, False)
    """
    is_sequence = len(sequence) > 1 and RESIDUES.issuperset(sequence)
    return is_sequence and len(sequence) == len(labels) and 2 * len(set(labels)) <= len(set(sequence))
