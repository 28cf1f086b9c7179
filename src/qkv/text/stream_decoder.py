"""Decode ids one by one: text is returned as soon as later ids cannot change it, and never half a character.

The concatenated output equals `decode` of all the ids, and every id takes constant time. How far one token can affect
the text around it depends on the tokenizer's decoder (`StreamPlan.mode`):

- "byte" (byte-level): a token is a run of bytes; a character is returned with its last byte.
- "token" (most others): the text of a token depends only on whether it is the first. Later tokens are decoded after a
  known token, the context token, whose text is then removed. Byte-fallback tokens are held until another token follows.
- "whole" (any other decoder): later tokens may change earlier text, so all text is held until the end.
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
    """GPT-2's printable character for each byte: the byte's own character if it is printable, else one from U+0100."""
    visible = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(visible)]
    return {chr(byte): byte for byte in visible} | {chr(256 + i): byte for i, byte in enumerate(hidden)}


BYTE_OF_CHAR = byte_alphabet()


def token_bytes(token: str) -> bytes:
    """The bytes of a byte-level token. An added token is not written in that alphabet: its bytes are its text."""
    try:
        return bytes(BYTE_OF_CHAR[character] for character in token)
    except KeyError:
        return token.encode()


class StreamDecoder:
    """Made by `Tokenizer.stream()`. `push` takes an id and returns the text it completes; `finish` returns the rest."""

    def __init__(self, backend: Backend, skip_special_tokens: bool = True, plan: "StreamPlan | None" = None) -> None:
        plan = plan if plan is not None else StreamPlan.for_backend(backend)
        self._backend = backend
        self._skip = skip_special_tokens
        self._special = plan.special if skip_special_tokens else frozenset()
        self._mode, self._context_token, self._context_text = plan.mode, [plan.context_token], plan.context_text
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._held: list[int] = []
        self._has_output = False  # whether any text has been returned

    def push(self, token_id: int) -> str:
        """Take the next id and return the text that is now final: often the text of this token, sometimes no text."""
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
        """Return the text that is still held, and reset the stream for another use."""
        text = self._utf8.decode(b"", final=True) if self._mode == "byte" else self._decode_held()
        self._utf8.reset()
        self._held, self._has_output = [], False
        return text

    def _decode_held(self) -> str:
        context = self._context_token if self._has_output else []
        text = self._backend.decode(context + self._held, skip_special_tokens=self._skip)
        if self._has_output:
            text = text[len(self._context_text) :]
        if text or self._has_output:  # before the first text, ids without text may affect the next token
            self._held, self._has_output = [], True
        return text


@dataclass(frozen=True)
class StreamPlan:
    """How a tokenizer's ids are streamed, computed once for each tokenizer."""

    mode: str  # "byte", "token" or "whole", see the module's docstring
    special: frozenset[int]
    context_token: int = -1  # a token with text, decoded in front of tokens that are not the first
    context_text: str = ""

    @classmethod
    def for_backend(cls, backend: Backend) -> "StreamPlan":
        """The plan of a tokenizer."""
        special = frozenset(i for i, token in backend.get_added_tokens_decoder().items() if token.special)
        mode = stream_mode(backend)
        if mode != "token":
            return cls(mode, special)
        context, text = find_context_token(backend)
        return cls(mode, special, context, text) if text else cls("whole", special)


def stream_mode(backend: Backend) -> str:
    """The mode for the tokenizer's decoder: "byte", "token" or "whole" (see the module's docstring)."""
    if backend.decoder is None:
        return "token"
    steps = flatten_decoder(json.loads(backend.decoder.__getstate__()))
    types = [step["type"] for step in steps]
    if types == ["ByteLevel"]:
        return "byte"
    fused = types.index("Fuse") if "Fuse" in types else len(types)
    is_tokenwise = TOKENWISE_DECODERS.issuperset(types[:fused])
    # After Fuse there is one string. A Strip that only strips the start affects only the first text.
    after = steps[fused + 1 :]
    strips_front_only = not after or (len(after) == 1 and after[0]["type"] == "Strip" and after[0]["stop"] == 0)
    return "token" if is_tokenwise and strips_front_only else "whole"


def flatten_decoder(step: dict[str, Any]) -> list[dict[str, Any]]:
    """The decoder's steps in order, with nested sequences flattened."""
    if step["type"] != "Sequence":
        return [step]
    return [inner for part in step["decoders"] for inner in flatten_decoder(part)]


def find_context_token(backend: Backend) -> tuple[int, str]:
    """The id of an ordinary token with alphanumeric text, and that text; (-1, "") if there is none."""
    added = backend.get_added_tokens_decoder()
    for token_id in range(backend.get_vocab_size()):
        token = backend.id_to_token(token_id)
        if token is None or token_id in added or BYTE_TOKEN.fullmatch(token):
            continue
        text = backend.decode([token_id])
        if text and text.isalnum():
            return token_id, text
    return -1, ""
