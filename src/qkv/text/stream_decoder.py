"""Decoding ids one by one: text is given as soon as it is certain, and never half a character.

What a stream gives, joined, is exactly what `decode` gives for all the ids. Each id costs the same however many came
before. That needs to know how far the text of one token reaches, which depends on the tokenizer's decoder:

- byte-level: tokens are bytes, and a character is given once its last byte is there;
- most others: a token's text depends only on whether it is the first, so a known token is laid before it;
- with byte fallback, a run of byte tokens is read as a whole, so it is held until another token ends it;
- any other decoder may change earlier text later, so all is held until the end.
"""

import codecs
import json
import re
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer as Backend

BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
TOKENWISE_DECODERS = {"WordPiece", "Metaspace", "Replace", "ByteFallback", "Strip"}


def byte_alphabet() -> dict[str, int]:
    """Byte-level BPE's way to write bytes as visible characters: its own where there is one, else from U+0100 on."""
    visible = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(visible)]
    return {chr(byte): byte for byte in visible} | {chr(256 + place): byte for place, byte in enumerate(hidden)}


BYTE_OF_CHAR = byte_alphabet()


def token_bytes(token: str) -> bytes:
    """The bytes a byte-level token stands for; an added token, not written in that alphabet, is its own text."""
    try:
        return bytes(BYTE_OF_CHAR[character] for character in token)
    except KeyError:
        return token.encode()


class StreamDecoder:
    """Made by `Tokenizer.stream()`: `push` an id for the text it completes, `finish` for what is still held."""

    def __init__(self, backend: Backend, skip_special_tokens: bool = True, plan: "StreamPlan | None" = None) -> None:
        plan = plan if plan is not None else StreamPlan.for_backend(backend)
        self._backend = backend
        self._skip = skip_special_tokens
        self._special = plan.special if skip_special_tokens else frozenset()
        self._mode, self._anchor, self._anchor_text = plan.mode, [plan.anchor], plan.anchor_text
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._held: list[int] = []
        self._has_output = False  # whether any text was given: until then the held ids are the first ones

    def push(self, token_id: int) -> str:
        """Take the next id; give the text that is now certain, often that of this token, at times none."""
        token = self._backend.id_to_token(token_id)
        if token is None or token_id in self._special:
            return ""
        if self._mode == "byte":
            return self._utf8.decode(token_bytes(token))
        self._held.append(token_id)
        if self._mode == "whole" or BYTE_TOKEN.fullmatch(token):
            return ""
        return self._decode_held()

    def finish(self) -> str:
        """The text still held, as whole as it will get; the stream may then be used anew."""
        text = self._utf8.decode(b"", final=True) if self._mode == "byte" else self._decode_held()
        self._utf8.reset()
        self._held, self._has_output = [], False
        return text

    def _decode_held(self) -> str:
        before = self._anchor if self._has_output else []
        text = self._backend.decode(before + self._held, skip_special_tokens=self._skip)
        if self._has_output:
            text = text[len(self._anchor_text) :]
        if text or self._has_output:  # before the first text, ids without any may yet change what the next one gives
            self._held, self._has_output = [], True
        return text


@dataclass(frozen=True)
class StreamPlan:
    """How a tokenizer's ids are streamed; worked out once per tokenizer."""

    mode: str  # "byte", "token" or "whole", see `mode`
    special: frozenset[int]
    anchor: int = -1  # a plain token with text of its own, laid before tokens that are not the first
    anchor_text: str = ""

    @classmethod
    def for_backend(cls, backend: Backend) -> "StreamPlan":
        """The plan of a tokenizer."""
        special = frozenset(number for number, token in backend.get_added_tokens_decoder().items() if token.special)
        kind = stream_mode(backend)
        if kind != "token":
            return cls(kind, special)
        number, text = find_anchor(backend)
        return cls(kind, special, number, text) if text else cls("whole", special)


def stream_mode(backend: Backend) -> str:
    """How far a token's text reaches under the tokenizer's decoder: "byte", "token" or "whole" (see above)."""
    if backend.decoder is None:
        return "token"
    steps = flatten_decoder(json.loads(backend.decoder.__getstate__()))
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return "byte"
    fused = kinds.index("Fuse") if "Fuse" in kinds else len(kinds)
    by_token = TOKENWISE_DECODERS.issuperset(kinds[:fused])
    # Once fused into one string, taking characters off its front is over as soon as there is any text.
    after = steps[fused + 1 :]
    front = not after or (len(after) == 1 and after[0]["type"] == "Strip" and after[0]["stop"] == 0)
    return "token" if by_token and front else "whole"


def flatten_decoder(step: dict[str, Any]) -> list[dict[str, Any]]:
    """The decoder's steps in order, sequences inside sequences laid out."""
    if step["type"] != "Sequence":
        return [step]
    return [inner for part in step["decoders"] for inner in flatten_decoder(part)]


def find_anchor(backend: Backend) -> tuple[int, str]:
    """A plain token with text of its own, and that text; none where there is no such token."""
    added = backend.get_added_tokens_decoder()
    for number in range(backend.get_vocab_size()):
        token = backend.id_to_token(number)
        if token is None or number in added or BYTE_TOKEN.fullmatch(token):
            continue
        text = backend.decode([number])
        if text and text.isalnum():
            return number, text
    return -1, ""
