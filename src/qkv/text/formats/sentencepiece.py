"""Read a SentencePiece model file: the part of protobuf's wire format that its fields need.

The file is one message with nested messages. On the wire, a message is a sequence of (key, value). The key holds the
field number and the wire type of the value: 0 varint, 1 eight bytes, 2 length-delimited bytes, 5 four bytes. The field
numbers come from SentencePiece's public `sentencepiece_model.proto`.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qkv.errors import QkvError
from qkv.files import read_bytes

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # a piece's type
UNIGRAM, BPE = 1, 2  # a model's type
SPACE = "▁"  # U+2581, which SentencePiece writes for a space


@dataclass(frozen=True)
class Piece:
    """One entry of the vocabulary. Its id is its index."""

    text: str
    score: float = 0.0
    piece_type: int = NORMAL


@dataclass
class SentencePieceModel:
    """The fields of a SentencePiece model file that a tokenizer needs, with the format's defaults."""

    pieces: list[Piece] = field(default_factory=list)
    model_type: int = UNIGRAM
    byte_fallback: bool = False
    treat_whitespace_as_suffix: bool = False
    unk_id: int = 0
    bos_id: int = 1
    eos_id: int = 2
    pad_id: int = -1
    precompiled_charsmap: bytes = b""  # the normalizer's compiled character map
    add_dummy_prefix: bool = True  # add a space before the text
    remove_extra_whitespaces: bool = True  # strip spaces, and collapse runs of them
    escape_whitespaces: bool = True

    def role_ids(self) -> dict[str, int]:
        """The ids of the special tokens, by role."""
        ids = {"unk": self.unk_id, "bos": self.bos_id, "eos": self.eos_id, "pad": self.pad_id}
        return {
            role: piece_id
            for role, piece_id in ids.items()
            if 0 <= piece_id < len(self.pieces) and self.pieces[piece_id].piece_type in (CONTROL, UNKNOWN)
        }


class MalformedModelError(Exception):
    """The bytes are not a SentencePiece model."""


def read_model(file: Path) -> SentencePieceModel:
    """Read a SentencePiece model file."""
    try:
        return parse_model(read_bytes(file))
    except (MalformedModelError, struct.error, UnicodeDecodeError, IndexError) as error:
        raise QkvError(
            f"{file}: not a SentencePiece model ({error}); it may be truncated or from another program: fetch it again"
        ) from None


# Field number → attribute of `SentencePieceModel`, for the trainer's and the normalizer's message.
TRAINER_FIELDS = {
    3: "model_type",
    24: "treat_whitespace_as_suffix",
    35: "byte_fallback",
    40: "unk_id",
    41: "bos_id",
    42: "eos_id",
    43: "pad_id",
}
NORMALIZER_FIELDS = {
    2: "precompiled_charsmap",
    3: "add_dummy_prefix",
    4: "remove_extra_whitespaces",
    5: "escape_whitespaces",
}


def parse_model(data: bytes) -> SentencePieceModel:
    """A SentencePiece model from the bytes of its file; raises `MalformedModelError`."""
    model = SentencePieceModel()
    for number, value in read_fields(data):
        if number == 1:
            model.pieces.append(parse_piece(as_bytes(value)))
        elif number in (2, 3):
            set_fields(model, as_bytes(value), TRAINER_FIELDS if number == 2 else NORMALIZER_FIELDS)
    if not model.pieces:
        raise MalformedModelError("it has no pieces")
    if not any(piece.piece_type == UNKNOWN for piece in model.pieces):
        raise MalformedModelError("it has no unk piece")
    return model


def parse_piece(data: bytes) -> Piece:
    """A piece from the bytes of its message."""
    fields = dict(read_fields(data))
    text, score = as_bytes(fields.get(1, b"")).decode(), struct.unpack("<f", as_bytes(fields.get(2, bytes(4))))[0]
    return Piece(text, score, as_int(fields.get(3, NORMAL)))


def set_fields(model: SentencePieceModel, data: bytes, names: dict[int, str]) -> None:
    """Set the attributes of a model from the bytes of its trainer's or normalizer's message."""
    for number, value in read_fields(data):
        if name := names.get(number):
            convert: Any = {bool: bool, int: as_int, bytes: as_bytes}[type(getattr(model, name))]
            setattr(model, name, convert(value))


# -------------------------------------------------------------------- the wire format


def read_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a message as (number, value), where the value is an integer or raw bytes."""
    offset = 0
    while offset < len(data):
        key, offset = read_varint(data, offset)
        number, wire = key >> 3, key & 7
        value: int | bytes
        if wire == 0:
            value, offset = read_varint(data, offset)
        else:
            if wire == 2:
                length, offset = read_varint(data, offset)
            elif wire in (1, 5):
                length = 8 if wire == 1 else 4
            else:
                raise MalformedModelError(f"a field at byte {offset} has the unknown wire type {wire}")
            if offset + length > len(data):
                raise MalformedModelError(f"it ends inside a field of {length} bytes at byte {offset}")
            value, offset = data[offset : offset + length], offset + length
        yield number, value


def read_varint(data: bytes, offset: int) -> tuple[int, int]:
    """The varint at `offset` (seven bits a byte, low bits first), and the offset after it."""
    value = shift = 0
    while True:
        if offset >= len(data) or shift > 63:
            raise MalformedModelError(f"it ends inside a number at byte {offset}")
        byte = data[offset]
        value |= (byte & 0x7F) << shift
        offset, shift = offset + 1, shift + 7
        if byte < 0x80:
            return value, offset


def as_int(value: int | bytes) -> int:
    """A signed integer, which is stored as 64-bit two's complement."""
    if not isinstance(value, int):
        raise MalformedModelError("expected a number, found bytes")
    return value - (1 << 64) if value >= 1 << 63 else value


def as_bytes(value: int | bytes) -> bytes:
    """The value as bytes."""
    if not isinstance(value, bytes):
        raise MalformedModelError("expected bytes, found a number")
    return value
