"""A file's bytes, decompressed, in blocks of bounded size.

The first bytes of a file, not its name, decide whether it is compressed. Decompressors receive small blocks, which
bounds the memory of one call. Reading raises an error if the file ends early (zstd's own stream reader does not), or if
it expands without end.
"""

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

from qkv.data.readers.options import MiB, OnBytes, ReadContext, ReadLimits
from qkv.data.records import FileLocation
from qkv.errors import QkvError, suggest_path
from qkv.files import describe_os_error, open_file

BLOCK_BYTES = MiB
MAX_WINDOW_BYTES = 128 * MiB  # of a decompressor; the default limit of the zstd and xz programs

COMPRESSION_BY_EXTENSION = {
    ".gz": "gzip",
    ".gzip": "gzip",
    ".zst": "zstd",
    ".zstd": "zstd",
    ".xz": "xz",
    ".bz2": "bzip2",
}


def open_data_file(path: Path) -> BufferedReader:
    """Open a regular file for reading; if there is none, the error suggests a similar name."""
    if "\0" not in str(path) and not path.exists() and not path.is_symlink():
        raise QkvError(f"no such file: {path}{_similar_name_hint(path)}")
    return open_file(path)


def read_blocks(path: Path, context: ReadContext) -> Iterator[bytes]:
    """The decompressed bytes of a file, in blocks of at most `BLOCK_BYTES` (and at most the longest line allowed).

    Damage ends the iteration and is reported as a broken file.
    """
    limits = context.options.limits
    size = min(BLOCK_BYTES, limits.max_line_bytes)
    with open_data_file(path) as raw:
        try:
            compression = _detect_compression(raw.read(10))
            raw.seek(0)
            expected = COMPRESSION_BY_EXTENSION.get(path.suffix.lower())
            if expected and compression is None and path.stat().st_size:
                reason = f"the name says {expected}, but the content is not {expected}; if it is plain, rename it to "
                raise _DamagedFile("not compressed", f"{reason}{path.stem}")
            if compression is None:
                blocks = _raw_blocks(raw, size, context.on_bytes)
            else:
                blocks = _decompress(raw, compression, limits, context.on_bytes)
            for block in blocks:
                if len(block) <= size:
                    yield block
                else:
                    yield from (block[start : start + size] for start in range(0, len(block), size))
        except _DamagedFile as damage:
            context.problems.broken_file(damage.category, FileLocation(str(path)), damage.reason)
        except OSError as error:
            reason = f"reading failed: {describe_os_error(error)}"
            context.problems.broken_file("read error", FileLocation(str(path)), reason)


class _DamagedFile(Exception):
    def __init__(self, category: str, reason: str):
        super().__init__(reason)
        self.category, self.reason = category, reason


def _raw_blocks(raw: BufferedReader, size: int, on_bytes: OnBytes | None) -> Iterator[bytes]:
    while block := raw.read(size):
        if on_bytes:
            on_bytes(len(block))
        yield block


def _decompress(raw: BufferedReader, compression: str, limits: ReadLimits, on_bytes: OnBytes | None) -> Iterator[bytes]:
    """Decompress one or several concatenated members, which gzip, zstd and xz all allow."""
    make_decompressor, failures, feed_bytes = _decompressor_for(compression)
    member = None  # the decompressor of the current member
    bytes_in = bytes_out = 0
    pending: list[bytes] = []  # decompressed, not yielded yet
    pending_bytes = 0
    for block in _raw_blocks(raw, feed_bytes, on_bytes):
        bytes_in += len(block)
        while block:
            if member is None:
                block = block.lstrip(b"\0")  # members may be padded with zeros
                if not block:
                    break
                member = make_decompressor()
            try:
                for expanded in _expand(member, block):
                    bytes_out += len(expanded)
                    pending_bytes += len(expanded)
                    pending.append(expanded)
                    if bytes_out > limits.expansion_check_bytes and bytes_out > limits.max_expansion * bytes_in:
                        reason = (
                            f"{bytes_in:,} bytes of {compression} have grown to {bytes_out:,}, more than "
                            f"{limits.max_expansion} times as many"
                        )
                        raise _DamagedFile(f"{compression} expands without end", reason)
                    if pending_bytes >= BLOCK_BYTES // 4:
                        yield b"".join(pending)
                        pending, pending_bytes = [], 0
            except failures as error:
                reason = f"the {compression} data is damaged after {bytes_out:,} bytes: {error}"
                raise _DamagedFile(f"damaged {compression}", reason) from None
            block = member.unused_data if member.eof else b""
            member = None if member.eof else member
    yield b"".join(pending)
    if member is not None:
        reason = f"the {compression} data ends early, after {bytes_out:,} bytes of text"
        raise _DamagedFile(f"{compression} ends early", reason)


def _expand(member: Any, block: bytes) -> Iterator[bytes]:
    """Decompress a block in pieces. Blocks of bzip2 can expand to gigabytes; blocks of gzip and zstd cannot."""
    if not hasattr(member, "needs_input"):
        yield member.decompress(block)
        return
    yield member.decompress(block, BLOCK_BYTES)
    while not (member.eof or member.needs_input):
        yield member.decompress(b"", BLOCK_BYTES)


def _decompressor_for(compression: str) -> tuple[Callable[[], Any], tuple[type[Exception], ...], int]:
    """How to make a decompressor, what it raises, and how many bytes to feed it at a time.

    With so few bytes the output of one call is at most a few tens of MiB: deflate expands at most 1,032-fold, a
    4-byte zstd block to 128 KiB.
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
    """The compression format with this signature."""
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
    """A hint for a file that does not exist."""
    if not path.parent.is_dir():
        return f" (the folder {path.parent} does not exist either)"
    working_directory = "" if path.is_absolute() else f" (relative paths start at the working directory, {Path.cwd()})"
    return suggest_path(path) or working_directory


class DecompressedFile:
    """The decompressed bytes of a file, to be read from its start to its end. A damaged file ends early."""

    def __init__(self, path: Path, context: ReadContext) -> None:
        self.blocks, self.rest = read_blocks(path, context), b""

    def read(self, size: int) -> bytes:
        """The next `size` bytes, or fewer at the end."""
        parts, missing = [], size
        while missing > 0:
            self.rest = self.rest or next(self.blocks, b"")
            if not self.rest:
                break
            part, self.rest = self.rest[:missing], self.rest[missing:]
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)
