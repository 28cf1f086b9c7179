"""A file's bytes, decompressed, in blocks of bounded size.

The first bytes of a file say whether it is compressed, not its name. Every decompressor is fed small pieces, so what
one piece can grow to is bounded; a file that ends early is noticed (zstd's own stream reader says nothing), and one
that grows beyond all reason is given up.
"""

import bz2
import lzma
import stat
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from qkv.data.problems import Problems
from qkv.data.records import FileLocation
from qkv.errors import QkvError, UsageError, suggest_name

MiB = 2**20
BLOCK_BYTES = MiB  # bytes handed on at a time
MAX_WINDOW_BYTES = (
    128 * MiB
)  # what a decompressor may hold as its window; the default limit of the zstd and xz programs

COMPRESSION_BY_EXTENSION = {
    ".gz": "gzip",
    ".gzip": "gzip",
    ".zst": "zstd",
    ".zstd": "zstd",
    ".xz": "xz",
    ".bz2": "bzip2",
}


@dataclass(frozen=True)
class ReadLimits:
    """What the readers accept; beyond it a line, or a file, is bad data."""

    max_line_bytes: int = 16 * MiB  # a longer line is counted and skipped, and never held whole
    max_expansion: int = 200  # a compressed file may grow by this factor …
    expansion_check_bytes: int = 64 * MiB  # … judged once it has given this many bytes
    max_json_bytes: int = 1024 * MiB  # a JSON document, which has to be held whole
    document_chunk_bytes: int = MiB  # a text document is handed on in pieces of about this size, cut at line ends

    def __post_init__(self) -> None:
        if self.max_line_bytes < 1024:
            raise UsageError(f"the limit of a line's length is at least 1024 bytes, not {self.max_line_bytes}")


def open_file(path: Path) -> BinaryIO:
    """The file, opened for reading, or an error that says what is in its place."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise QkvError(f"{path} is a folder; a file is needed here")
        if not stat.S_ISREG(mode):
            raise QkvError(f"{path} is not a plain file (a pipe or a device cannot be read twice)")
        return path.open("rb")
    except FileNotFoundError:
        raise QkvError(f"no such file: {path}{_similar_name_hint(path)}") from None
    except OSError as error:
        raise QkvError(f"cannot read {path}: {error.strerror or error}") from None


def read_blocks(
    path: Path, problems: Problems, limits: ReadLimits, on_bytes: Callable[[int], None] | None = None
) -> Iterator[bytes]:
    """The decompressed bytes of a file, in blocks of at most `BLOCK` bytes (and never above `limits.line_bytes`).

    `on_bytes` hears of the bytes read from the disk. Damage ends the iteration and goes to `problems` as `broken`.
    """
    size = min(BLOCK_BYTES, limits.max_line_bytes)
    with open_file(path) as raw:
        try:
            kind = _detect_compression(raw.read(10))
            raw.seek(0)
            pieces = _raw_blocks(raw, size, on_bytes) if kind is None else _decompress(raw, kind, limits, on_bytes)
            claimed = COMPRESSION_BY_EXTENSION.get(path.suffix.lower())
            if claimed and kind is None and path.stat().st_size:
                raise _DamagedFile("not compressed", f"the name says {claimed}, but the content is not {claimed}")
            for piece in pieces:
                if len(piece) <= size:
                    yield piece
                else:
                    yield from (piece[start : start + size] for start in range(0, len(piece), size))
        except _DamagedFile as damage:
            problems.broken_file(damage.category, FileLocation(str(path)), damage.reason)
        except OSError as error:
            problems.broken_file("read error", FileLocation(str(path)), f"reading failed: {error.strerror or error}")


class _DamagedFile(Exception):
    def __init__(self, category: str, reason: str):
        super().__init__(reason)
        self.category, self.reason = category, reason


def _raw_blocks(raw: BinaryIO, size: int, on_bytes: Callable[[int], None] | None) -> Iterator[bytes]:
    while piece := raw.read(size):
        if on_bytes:
            on_bytes(len(piece))
        yield piece


def _decompress(
    raw: BinaryIO, compression: str, limits: ReadLimits, on_bytes: Callable[[int], None] | None
) -> Iterator[bytes]:
    """Decompress one or several members laid end to end, as gzip, zstd and xz all allow."""
    make, failures, feed = _make_decompressor(compression)
    member = None  # the decompressor of the current member
    taken = given = 0
    out: list[bytes] = []
    waiting = 0
    for piece in _raw_blocks(raw, feed, on_bytes):
        taken += len(piece)
        while piece:
            if member is None:
                piece = piece.lstrip(b"\0")  # members may be padded with zeros
                if not piece:
                    break
                member = make()
            try:
                grown = member.decompress(piece)
            except failures as error:
                raise _DamagedFile(
                    f"damaged {compression}", f"the {compression} data is damaged after {given:,} bytes: {error}"
                ) from None
            piece = member.unused_data if member.eof else b""
            member = None if member.eof else member
            given += len(grown)
            waiting += len(grown)
            out.append(grown)
        if given > limits.expansion_check_bytes and given > limits.max_expansion * taken:
            raise _DamagedFile(
                f"{compression} expands without end",
                f"{taken:,} bytes of {compression} have grown to {given:,}, more than {limits.max_expansion} times as many",
            )
        if waiting >= BLOCK_BYTES // 4:
            yield b"".join(out)
            out, waiting = [], 0
    yield b"".join(out)
    if member is not None:
        raise _DamagedFile(
            f"{compression} ends early", f"the {compression} data ends early, after {given:,} bytes of text"
        )


def _make_decompressor(compression: str) -> tuple[Callable[[], Any], tuple[type[Exception], ...], int]:
    """How to make a decompressor, what it raises, and how many bytes to feed it at a time.

    Fed so little, the worst output of one call is a few tens of MiB: deflate grows at most 1,032-fold, a 4-byte zstd
    block to 128 KiB.
    """
    if compression == "gzip":
        return lambda: zlib.decompressobj(wbits=31), (zlib.error,), 8192
    if compression == "bzip2":
        return bz2.BZ2Decompressor, (OSError, ValueError), 4096
    if compression == "xz":
        return lambda: lzma.LZMADecompressor(memlimit=MAX_WINDOW_BYTES), (lzma.LZMAError,), 4096
    try:
        import zstandard
    except ImportError:
        raise QkvError('reading zstd files needs the zstandard package: pip install "qkv[zstd]"') from None
    context = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
    return context.decompressobj, (zstandard.ZstdError,), 1024


def _detect_compression(start: bytes) -> str | None:
    """The compression whose signature these first bytes are."""
    if start.startswith(b"\x1f\x8b\x08"):
        return "gzip"
    if start.startswith(b"\x28\xb5\x2f\xfd") or (start[1:4] == b"\x2a\x4d\x18" and 0x50 <= start[0] <= 0x5F):
        return "zstd"  # the second form is a skippable frame, which pzstd writes first
    if start.startswith(b"\xfd7zXZ\x00"):
        return "xz"
    if start.startswith(b"BZh") and start[4:10] == b"1AY&SY":
        return "bzip2"
    return None


def _similar_name_hint(path: Path) -> str:
    """A hint from the names beside a file that is not there."""
    folder = path.parent
    if not folder.is_dir():
        return f" (nor is there a folder {folder})"
    try:
        hint = suggest_name(path.name, [entry.name for entry in folder.iterdir()])
    except OSError:
        return ""
    if hint.startswith("did you mean"):
        return f"; {hint}"
    return "" if path.is_absolute() else f" (looked for in {Path.cwd()}, where this was started)"
