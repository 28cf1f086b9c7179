"""What each token writes, as bytes: at the beginning of a text, and after other tokens.

Most tokenizers write the same in both places; those that mark the beginning of words drop the first word's space.
"""

from collections.abc import Sequence

from qkv.errors import UsageError
from qkv.text import Tokenizer
from qkv.text.stream_decoder import BYTE_TOKEN, StreamPlan, token_bytes

REPLACEMENT_CHARACTER = "\ufffd"


class TokenBytes:
    """The bytes of every token of a tokenizer; none for special tokens and for ids without one."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        backend, plan = tokenizer.backend, StreamPlan.for_backend(tokenizer.backend)
        if plan.mode == "whole":
            raise UsageError("this tokenizer's decoder changes earlier text later, so no constraint can follow it")
        self.tokenizer = tokenizer
        self.later_bytes = [b""] * vocab_size
        ids = (number for number in range(min(vocab_size, tokenizer.vocab_size)) if number not in plan.special)
        plain = {number: token for number in ids if (token := tokenizer.id_to_token(number))}
        if plan.mode == "byte":
            for number, token in plain.items():
                self.later_bytes[number] = token_bytes(token)
            self.first_bytes = self.later_bytes
        else:
            self.first_bytes = list(self.later_bytes)
            for out, lead, skip in (
                (self.first_bytes, [], 0),
                (self.later_bytes, [plan.anchor], len(plan.anchor_text)),
            ):
                texts = backend.decode_batch([[*lead, number] for number in plain])
                for (number, token), text in zip(plain.items(), texts, strict=True):
                    # A byte that is no character by itself: the decoder joins it with its neighbours.
                    half = text[skip:] == REPLACEMENT_CHARACTER and BYTE_TOKEN.fullmatch(token)
                    out[number] = bytes([int(token[3:5], 16)]) if half else text[skip:].encode()
        self._max_bytes = max(map(len, self.later_bytes), default=1)
        self._by_bytes, self._by_first_bytes = ids_by_bytes(self.later_bytes), ids_by_bytes(self.first_bytes)

    @property
    def is_uniform(self) -> bool:
        """Whether tokens write the same at the beginning and later."""
        return self.first_bytes is self.later_bytes

    def tokenize(self, data: bytes, *, at_start: bool) -> list[int]:
        """Tokens that write these bytes: as the tokenizer itself cuts them where it can, else the longest first.

        A byte that no token writes is `len(self.later)` plus its value: an id that no model has.
        """
        try:
            ids = self.tokenizer.encode(data.decode(), add_special_tokens=False)
        except UnicodeDecodeError:
            ids = []
        if self.to_bytes(ids, at_start=at_start) == data:
            return ids
        out: list[int] = []
        place = 0
        while place < len(data):
            known = self._by_first_bytes if at_start and not out else self._by_bytes
            ends = range(min(len(data), place + self._max_bytes), place, -1)
            found = next((end for end in ends if data[place:end] in known), None)
            out.append(len(self.later_bytes) + data[place] if found is None else known[data[place:found]])
            place = place + 1 if found is None else found
        return out

    def to_bytes(self, ids: Sequence[int], *, at_start: bool) -> bytes:
        """The bytes that tokens write, one after the other."""
        spelt = [self.later_bytes[number] if number < len(self.later_bytes) else b"" for number in ids]
        if at_start and ids and ids[0] < len(self.first_bytes):
            spelt[0] = self.first_bytes[ids[0]]
        return b"".join(spelt)


def ids_by_bytes(token_bytes: Sequence[bytes]) -> dict[bytes, int]:
    """Which token writes what; where several write the same, the first of them."""
    return {text: number for number, text in reversed(list(enumerate(token_bytes))) if text}
