"""Reading a SentencePiece model file: just enough of protobuf's wire format for the fields a tokenizer needs.

The file is one message of nested messages. On the wire a message is a row of (key, value); the key holds the field's
number and how its value is written: 0 a varint, 1 eight bytes, 2 a length and that many bytes, 5 four bytes.
Field numbers are those of SentencePiece's public `sentencepiece_model.proto`.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from qkv.errors import QkvError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # a piece's type
UNIGRAM, BPE = 1, 2  # a model's type
SPACE = "▁"  # SentencePiece writes a space as U+2581


@dataclass(frozen=True)
class Piece:
    """One entry of the vocabulary; its id is its place."""

    text: str
    score: float = 0.0
    kind: int = NORMAL


@dataclass
class SentencePiece:
    """What a SentencePiece model file holds, with the format's own defaults."""

    pieces: list[Piece] = field(default_factory=list)
    model: int = UNIGRAM
    byte_fallback: bool = False
    space_as_suffix: bool = False
    unknown: int = 0
    start: int = 1
    end: int = 2
    pad: int = -1
    charsmap: bytes = b""  # the normaliser's compiled table of replacements
    dummy_prefix: bool = True  # a space is laid before the text
    collapse_spaces: bool = True  # spaces at the ends go, runs inside become one
    escape_spaces: bool = True

    def role_ids(self) -> dict[str, int]:
        """The ids of the roles that the model has a piece for."""
        ids = {"unknown": self.unknown, "start": self.start, "end": self.end, "pad": self.pad}
        return {
            role: number
            for role, number in ids.items()
            if 0 <= number < len(self.pieces) and self.pieces[number].kind in (CONTROL, UNKNOWN)
        }


class Malformed(Exception):
    """The bytes are not a message."""


def read(file: Path) -> SentencePiece:
    """Read a SentencePiece model file."""
    try:
        return parse(file.read_bytes())
    except OSError as error:
        raise QkvError(f"{file}: cannot be read ({error.strerror})") from None
    except (Malformed, struct.error, UnicodeDecodeError, IndexError) as error:
        raise QkvError(
            f"{file}: not a SentencePiece model ({error}); it may be cut short or another program's: fetch it again"
        ) from None


def parse(data: bytes) -> SentencePiece:
    """A SentencePiece model from the bytes of its file; raises `Malformed`."""
    model = SentencePiece()
    for number, value in message(data):
        if number == 1:
            model.pieces.append(parse_piece(as_bytes(value)))
        elif number == 2:
            parse_trainer(as_bytes(value), model)
        elif number == 3:
            parse_normalizer(as_bytes(value), model)
    if not model.pieces:
        raise Malformed("it has no pieces")
    if not any(piece.kind == UNKNOWN for piece in model.pieces):
        raise Malformed("it has no piece for unknown text")
    return model


def parse_piece(data: bytes) -> Piece:
    text, score, kind = "", 0.0, NORMAL
    for number, value in message(data):
        if number == 1:
            text = as_bytes(value).decode()
        elif number == 2:
            score = struct.unpack("<f", as_bytes(value))[0]
        elif number == 3:
            kind = as_int(value)
    return Piece(text, score, kind)


def parse_trainer(data: bytes, model: SentencePiece) -> None:
    for number, value in message(data):
        if number == 3:
            model.model = as_int(value)
        elif number == 24:
            model.space_as_suffix = bool(value)
        elif number == 35:
            model.byte_fallback = bool(value)
        elif number == 40:
            model.unknown = as_int(value)
        elif number == 41:
            model.start = as_int(value)
        elif number == 42:
            model.end = as_int(value)
        elif number == 43:
            model.pad = as_int(value)


def parse_normalizer(data: bytes, model: SentencePiece) -> None:
    for number, value in message(data):
        if number == 2:
            model.charsmap = as_bytes(value)
        elif number == 3:
            model.dummy_prefix = bool(value)
        elif number == 4:
            model.collapse_spaces = bool(value)
        elif number == 5:
            model.escape_spaces = bool(value)


# -------------------------------------------------------------------- the wire format


def message(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message in order: (number, value), the value an integer or the raw bytes."""
    place = 0
    while place < len(data):
        key, place = varint(data, place)
        number, wire = key >> 3, key & 7
        value: int | bytes
        if wire == 0:
            value, place = varint(data, place)
        else:
            if wire == 2:
                length, place = varint(data, place)
            elif wire in (1, 5):
                length = 8 if wire == 1 else 4
            else:
                raise Malformed(f"a field at byte {place} has the unknown wire type {wire}")
            if place + length > len(data):
                raise Malformed(f"it ends inside a field of {length} bytes at byte {place}")
            value, place = data[place : place + length], place + length
        yield number, value


def varint(data: bytes, place: int) -> tuple[int, int]:
    """The integer at `place`, seven bits a byte with the low ones first, and the place after it."""
    value = shift = 0
    while True:
        if place >= len(data) or shift > 63:
            raise Malformed(f"it ends inside a number at byte {place}")
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place


def as_int(value: int | bytes) -> int:
    """A signed integer: negative ones are written as their 64-bit two's complement."""
    if not isinstance(value, int):
        raise Malformed("a number was expected where bytes are")
    return value - (1 << 64) if value >= 1 << 63 else value


def as_bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise Malformed("bytes were expected where a number is")
    return value
