"""The lines of a text file, decoded, one at a time.

A line ends at LF or CR LF and nowhere else: `str.splitlines` would also split at form feeds and U+2028, which stand
inside real sentences, and two aligned files would lose step. UTF-8 is expected; a byte-order mark, or UTF-16 without
one, is recognised. Whatever the encoding, the bytes are brought to UTF-8 first, so that one fast path splits and
checks them all.
"""

import codecs
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

from qkv.data.problems import Problems
from qkv.data.readers.decompress import BLOCK_BYTES, ReadLimits, read_blocks
from qkv.data.records import FileLocation
from qkv.errors import UsageError

# Longest first: the UTF-32 mark begins with the UTF-16 one.
BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def read_lines(
    path: Path,
    problems: Problems,
    limits: ReadLimits,
    encoding: str | None = None,
    on_bytes: Callable[[int], None] | None = None,
    report_crlf: bool = True,
) -> Iterator[tuple[int, str | None]]:
    """Yield (line number from 1, text without its line end).

    A line that cannot be used (invalid UTF-8, NUL, too long) has been reported to `problems` and comes as None, so that
    aligned files stay aligned and a sentence of many lines knows that it lost one. `note_returns`: tell of CR LF line
    ends.
    """
    name = str(path)
    number = 0
    returns = 0  # lines that ended in CR LF
    for run in _line_runs(utf8_blocks(path, problems, limits, encoding, on_bytes), limits.max_line_bytes):
        if isinstance(run, int):
            number += 1
            reason = f"the line is {run:,} bytes long; the limit is {limits.max_line_bytes:,}"
            problems.skip("line too long", FileLocation(name, number), reason)
            yield number, None
            continue
        try:
            text = run.decode()
        except UnicodeDecodeError:
            text = None
        if text is not None and "\r" in text:
            ended = text.count("\r\n") + text.endswith("\r")  # a run lacks its last LF
            if ended == text.count("\r"):  # else some stand inside lines: look at each
                returns += ended
                text = text.replace("\r\n", "\n").removesuffix("\r")
        if text is not None and "\r" not in text and "\0" not in text:
            for line in text.split("\n"):
                number += 1
                yield number, line
            continue
        for raw in run.split(b"\n"):
            number += 1
            if raw.endswith(b"\r"):
                raw = raw[:-1]
                returns += 1
            yield number, _decode_line(raw, FileLocation(name, number), problems)
    if returns and report_crlf:
        problems.note("CR LF line ends", FileLocation(name), "Windows line ends were taken as line ends", returns)
    if number == 0:
        problems.note("empty file", FileLocation(name), "the file holds nothing")


def utf8_blocks(
    path: Path,
    problems: Problems,
    limits: ReadLimits,
    encoding: str | None = None,
    on_bytes: Callable[[int], None] | None = None,
) -> Iterator[bytes]:
    """The file's bytes as UTF-8 without a byte-order mark; what cannot be decoded stays invalid UTF-8 in its place."""
    source = read_blocks(path, problems, limits, on_bytes)
    first = next(source, b"")
    try:
        given = codecs.lookup(encoding).name if encoding else None
    except LookupError:
        raise UsageError(
            f"unknown encoding {encoding!r}; usual ones: utf-8, utf-16, latin-1, cp1252, shift_jis"
        ) from None
    for mark, marked in BYTE_ORDER_MARKS:
        if first.startswith(mark) and given in (None, marked):
            problems.note("byte-order mark", FileLocation(str(path)), f"read as {marked.upper()} by its mark")
            first, given = first[len(mark) :], marked
            break
    else:
        sixteen = None if given else _detect_utf16(first)
        if sixteen:
            reason = f"every second byte is zero: read as {sixteen.upper()}"
            problems.note("UTF-16 without a mark", FileLocation(str(path)), reason)
        given = given or sixteen or "utf-8"
    source = chain([first], source)
    return source if given == "utf-8" else _transcode(source, given, min(limits.max_line_bytes, BLOCK_BYTES))


def _transcode(source: Iterator[bytes], encoding: str, size: int) -> Iterator[bytes]:
    """To UTF-8. An undecodable place becomes a lone surrogate, whose UTF-8 form the line check then refuses."""
    decoder = codecs.getincrementaldecoder(encoding)("qkv_mark")
    for block in chain(source, [b""]):
        data = decoder.decode(block, final=not block).encode("utf-8", "surrogatepass")
        yield from (data[start : start + size] for start in range(0, len(data), size))


def _replace_undecodable(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "\udcff", error.end


codecs.register_error("qkv_mark", _replace_undecodable)


def _detect_utf16(start: bytes) -> str | None:
    """UTF-16 without a mark shows as zeros in every second byte of mostly Latin text."""
    start = start[: len(start) & ~1][:4096]
    even, odd = start[::2].count(0), start[1::2].count(0)
    half = len(start) // 2
    if half >= 4 and even == 0 and odd > 0.6 * half:
        return "utf-16-le"
    if half >= 4 and odd == 0 and even > 0.6 * half:
        return "utf-16-be"
    return None


def _line_runs(source: Iterator[bytes], max_bytes: int) -> Iterator[bytes | int]:
    """Runs of whole lines without their last LF; a number stands for one line above the limit: its length.

    No block is longer than the limit, so only a line that goes across blocks can be; its pieces are let go as soon as
    it is.
    """
    held: list[bytes] = []
    length = 0  # of the line whose end has not come yet, held or let go
    for block in source:
        end = block.rfind(b"\n")
        if end < 0:
            length += len(block)
            if length <= max_bytes:
                held.append(block)
            else:
                held.clear()
            continue
        first = block.find(b"\n")
        if length + first <= max_bytes:
            yield b"".join((*held, block[:end]))
        else:
            yield length + first
            if first < end:
                yield block[first + 1 : end]
        held = [block[end + 1 :]]
        length = len(held[0])
    if length:
        yield b"".join(held) if length <= max_bytes else length


def _decode_line(raw: bytes, location: FileLocation, problems: Problems) -> str | None:
    """One line decoded, or None once it has been reported."""
    try:
        line = raw.decode()
    except UnicodeDecodeError as error:
        byte = raw[error.start]
        problems.skip(
            "invalid UTF-8", location, f"byte 0x{byte:02x} at place {error.start + 1} is not UTF-8 ({error.reason})"
        )
        return None
    if "\0" in line:
        problems.skip(
            "NUL character", location, f"a NUL character at place {line.index(chr(0)) + 1}; is this a text file?"
        )
        return None
    if "\r" in line:
        problems.note("CR inside a line", location, "a carriage return that is no line end was kept")
    return line
