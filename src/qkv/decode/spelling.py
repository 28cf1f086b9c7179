"""What each token writes, as bytes: at the beginning of a text, and after other tokens.

Most tokenizers write the same in both places; those that mark the beginning of words drop the first word's space.
"""

from collections.abc import Sequence

from qkv.errors import UsageError
from qkv.text import Tokenizer
from qkv.text.stream import BYTE_TOKEN, Plan, token_bytes

UNREADABLE = "\ufffd"


class Spelling:
    """The bytes of every token of a tokenizer; none for special tokens and for ids without one."""

    def __init__(self, tokenizer: Tokenizer, vocab: int) -> None:
        backend, plan = tokenizer.backend, Plan.of(tokenizer.backend)
        if plan.mode == "whole":
            raise UsageError("this tokenizer's decoder changes earlier text later, so no constraint can follow it")
        self.tokenizer = tokenizer
        self.later = [b""] * vocab
        ids = (number for number in range(min(vocab, tokenizer.size)) if number not in plan.special)
        plain = {number: token for number in ids if (token := tokenizer.token(number))}
        if plan.mode == "byte":
            for number, token in plain.items():
                self.later[number] = token_bytes(token)
            self.first = self.later
        else:
            self.first = list(self.later)
            for out, lead, skip in ((self.first, [], 0), (self.later, [plan.anchor], len(plan.anchor_text))):
                texts = backend.decode_batch([[*lead, number] for number in plain])
                for (number, token), text in zip(plain.items(), texts, strict=True):
                    # A byte that is no character by itself: the decoder joins it with its neighbours.
                    half = text[skip:] == UNREADABLE and BYTE_TOKEN.fullmatch(token)
                    out[number] = bytes([int(token[3:5], 16)]) if half else text[skip:].encode()
        self._longest = max(map(len, self.later), default=1)
        self._by_bytes, self._by_first_bytes = by_bytes(self.later), by_bytes(self.first)

    @property
    def alike(self) -> bool:
        """Whether tokens write the same at the beginning and later."""
        return self.first is self.later

    def cut(self, data: bytes, *, beginning: bool) -> list[int]:
        """Tokens that write these bytes: as the tokenizer itself cuts them where it can, else the longest first.

        A byte that no token writes is `len(self.later)` plus its value: an id that no model has.
        """
        try:
            ids = self.tokenizer.encode(data.decode(), special=False)
        except UnicodeDecodeError:
            ids = []
        if self.write(ids, beginning=beginning) == data:
            return ids
        out: list[int] = []
        place = 0
        while place < len(data):
            known = self._by_first_bytes if beginning and not out else self._by_bytes
            ends = range(min(len(data), place + self._longest), place, -1)
            found = next((end for end in ends if data[place:end] in known), None)
            out.append(len(self.later) + data[place] if found is None else known[data[place:found]])
            place = place + 1 if found is None else found
        return out

    def write(self, ids: Sequence[int], *, beginning: bool) -> bytes:
        """The bytes that tokens write, one after the other."""
        spelt = [self.later[number] if number < len(self.later) else b"" for number in ids]
        if beginning and ids and ids[0] < len(self.first):
            spelt[0] = self.first[ids[0]]
        return b"".join(spelt)


def by_bytes(spelt: Sequence[bytes]) -> dict[bytes, int]:
    """Which token writes what; where several write the same, the first of them."""
    return {text: number for number, text in reversed(list(enumerate(spelt))) if text}
