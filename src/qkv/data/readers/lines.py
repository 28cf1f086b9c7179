"""The lines of a text file, decoded, one at a time.

A line ends at LF or CR LF, and at CR in a file without LF. It ends nowhere else: `str.splitlines` would also split at
form feeds and U+2028, which occur inside real sentences, and two aligned files would no longer match. UTF-8 is
expected; a byte-order mark, UTF-16 without one, and other encodings by their characters (`encodings.py`) are
recognised. They are converted to UTF-8 first, so that one fast path splits and checks all files.
"""

import codecs
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from qkv.data.problems import Problems
from qkv.data.readers.decompress import BLOCK_BYTES, read_blocks
from qkv.data.readers.encodings import recognise_encoding
from qkv.data.readers.options import ReadContext
from qkv.data.records import FileLocation
from qkv.errors import UsageError

# Longest first, because the UTF-32 mark begins with the UTF-16 mark.
BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def read_lines(path: Path, context: ReadContext, report_crlf: bool = True) -> Iterator[tuple[int, str | None]]:
    """Yield (line number from 1, text without its line end).

    An unusable line (invalid UTF-8, NUL, too long) is reported, and its text is None. So aligned files stay aligned,
    and the CoNLL reader notices that a line of a sentence is missing. `report_crlf` notes CR LF line ends.
    """
    for number, block in read_line_blocks(path, context, report_crlf):
        yield from enumerate(block.split("\n") if isinstance(block, str) else block, start=number)


def read_line_blocks(
    path: Path, context: ReadContext, report_crlf: bool = True
) -> Iterator[tuple[int, str | list[str | None]]]:
    """Yield (number of its first line, block of lines): one text if all lines are usable, else a list."""
    name, problems = str(path), context.problems
    max_bytes = context.options.limits.max_line_bytes
    number = 1
    num_crlf = 0
    for block in _blocks_of_lines(utf8_blocks(path, context), max_bytes):
        if isinstance(block, int):
            reason = f"the line is {block:,} bytes long; the limit is {max_bytes:,}"
            problems.skip("line too long", FileLocation(name, number), reason)
            yield number, [None]
            number += 1
            continue
        try:
            text = block.decode()
        except UnicodeDecodeError:
            text = None
        if text is not None and "\r" in text:
            at_ends = text.count("\r\n") + text.endswith("\r")  # the block ends without its last LF
            if at_ends == text.count("\r"):  # otherwise a CR is inside a line, and every line is checked below
                num_crlf += at_ends
                text = text.replace("\r\n", "\n").removesuffix("\r")
        if text is not None and "\r" not in text and "\0" not in text:
            yield number, text
            number += text.count("\n") + 1
            continue
        lines = []
        for index, raw in enumerate(block.split(b"\n")):
            num_crlf += raw.endswith(b"\r")
            lines.append(_decode_line(raw.removesuffix(b"\r"), FileLocation(name, number + index), problems))
        yield number, lines
        number += len(lines)
    if num_crlf and report_crlf:
        problems.note("CR LF line ends", FileLocation(name), "Windows line ends were removed", num_crlf)
    if number == 1:
        problems.note_empty_file(FileLocation(name))


def utf8_blocks(path: Path, context: ReadContext) -> Iterator[bytes]:
    """The file's bytes as UTF-8 without a byte-order mark; undecodable bytes stay invalid UTF-8."""
    blocks = read_blocks(path, context)
    first = next(blocks, b"")
    location, encoding = FileLocation(str(path)), context.options.encoding
    try:
        codec = codecs.lookup(encoding).name if encoding else None
    except LookupError:
        raise UsageError(
            f"unknown encoding {encoding!r}; common ones: utf-8, utf-16, latin-1, cp1252, shift_jis"
        ) from None
    for mark, marked in BYTE_ORDER_MARKS:
        if first.startswith(mark) and codec in (None, marked):
            context.problems.note("byte-order mark", location, f"read as {marked.upper()}")
            first, codec = first[len(mark) :], marked
            break
    else:
        utf16 = None if codec else _detect_utf16(first)
        if utf16:
            reason = f"every second byte is zero: read as {utf16.upper()}"
            context.problems.note("UTF-16 without a byte-order mark", location, reason)
        recognised = "" if codec or utf16 else recognise_encoding(first)
        if recognised:
            reason = f"read as {recognised}, judged by its characters; to choose another: --encoding (data.encoding)"
            context.problems.note("not UTF-8", location, reason)
        codec = codec or utf16 or recognised or "utf-8"
    blocks = chain([first], blocks)
    if codec != "utf-8":
        blocks = _transcode(blocks, codec, context.options.limits.max_line_bytes)
    return _replace_cr_ends(blocks, location, context.problems)


def _replace_cr_ends(blocks: Iterator[bytes], location: FileLocation, problems: Problems) -> Iterator[bytes]:
    """Replace CR by LF if it ends the lines, as in files of old Macs: the first block has CR, but no LF."""
    first = next(blocks, b"")
    is_line_end = b"\r" in first[:-1] and b"\n" not in first  # the last byte may be half of a CR LF
    if is_line_end:
        problems.note("CR line ends", location, "carriage returns were read as line ends")
    for block in chain([first], blocks):
        yield block.replace(b"\r", b"\n") if is_line_end else block


def _transcode(blocks: Iterator[bytes], encoding: str, max_line_bytes: int) -> Iterator[bytes]:
    """Convert blocks to UTF-8. Undecodable bytes become a lone surrogate, which the UTF-8 check rejects later."""
    size = min(max_line_bytes, BLOCK_BYTES)
    decoder = codecs.getincrementaldecoder(encoding)("qkv_mark")
    for block in chain(blocks, [b""]):
        data = decoder.decode(block, final=not block).encode("utf-8", "surrogatepass")
        yield from (data[start : start + size] for start in range(0, len(data), size))


def _replace_undecodable(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "\udcff", error.end


codecs.register_error("qkv_mark", _replace_undecodable)


def _detect_utf16(start: bytes) -> str | None:
    """Detect UTF-16 without a byte-order mark: in mostly Latin text, every second byte is zero."""
    start = start[: len(start) & ~1][:4096]
    even, odd = start[::2].count(0), start[1::2].count(0)
    half = len(start) // 2
    if half >= 4 and even == 0 and odd > 0.6 * half:
        return "utf-16-le"
    if half >= 4 and odd == 0 and even > 0.6 * half:
        return "utf-16-be"
    return None


def _blocks_of_lines(blocks: Iterator[bytes], max_bytes: int) -> Iterator[bytes | int]:
    """Yield blocks of complete lines without the last LF, or the length (int) of a line that is too long.

    An input block is never longer than the limit, so only a line that spans several blocks can be too long. The bytes
    of such a line are dropped when it exceeds the limit.
    """
    held: list[bytes] = []
    length = 0  # bytes of the unfinished line, whether kept or dropped
    for block in blocks:
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
        reason = f"byte 0x{raw[error.start]:02x} at position {error.start + 1} is not UTF-8 ({error.reason})"
        problems.skip("invalid UTF-8", location, reason)
        return None
    if "\0" in line:
        reason = f"a NUL character at position {line.index(chr(0)) + 1}; is this a text file?"
        problems.skip("NUL character", location, reason)
        return None
    if "\r" in line:
        problems.note("CR inside a line", location, "a carriage return inside the line was kept")
    return line
