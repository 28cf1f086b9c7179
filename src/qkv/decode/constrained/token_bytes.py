"""The bytes of each token, at the start of a text and after other tokens.

A byte-level tokenizer gives a token the same bytes in both cases. A tokenizer that marks the beginning of words, such
as SentencePiece, may drop the space before the first word. So for all other tokenizers both are computed.
"""

from collections.abc import Sequence

from qkv.errors import UsageError
from qkv.text import Tokenizer
from qkv.text.stream_decoder import BYTE_TOKEN, StreamPlan, token_bytes

REPLACEMENT_CHARACTER = "\ufffd"


class TokenBytes:
    """The bytes of every token of a tokenizer. They are empty for special tokens and for ids without a token."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        backend, plan = tokenizer.backend, StreamPlan.for_backend(tokenizer.backend)
        if plan.mode == "whole":
            raise UsageError(
                "constraints do not support this tokenizer, because its decoder changes earlier text when tokens are "
                "added; leave out constraint, or use a byte-level or SentencePiece tokenizer"
            )
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
                (self.later_bytes, [plan.context_token], len(plan.context_text)),
            ):
                texts = backend.decode_batch([[*lead, number] for number in plain])
                for (number, token), text in zip(plain.items(), texts, strict=True):
                    # A byte token that is only a part of a UTF-8 character cannot be decoded alone.
                    is_part = text[skip:] == REPLACEMENT_CHARACTER and BYTE_TOKEN.fullmatch(token)
                    out[number] = bytes([int(token[3:5], 16)]) if is_part else text[skip:].encode()
        self._max_bytes = max(map(len, self.later_bytes), default=1)
        self._by_bytes, self._by_first_bytes = ids_by_bytes(self.later_bytes), ids_by_bytes(self.first_bytes)

    @property
    def is_same_at_start(self) -> bool:
        """Whether one table serves for both cases, because the tokenizer is byte-level."""
        return self.first_bytes is self.later_bytes

    def tokenize(self, data: bytes, *, at_start: bool) -> list[int]:
        """Return tokens whose bytes are `data`: the tokenizer's own encoding if it is exact, else the longest matches.

        Where no token matches, one byte becomes the id `len(self.later_bytes)` plus its value, outside the vocabulary.
        """
        try:
            ids = self.tokenizer.encode(data.decode(), add_special_tokens=False)
        except UnicodeDecodeError:
            ids = []
        if self.to_bytes(ids, at_start=at_start) == data:
            return ids
        out: list[int] = []
        position = 0
        while position < len(data):
            known = self._by_first_bytes if at_start and not out else self._by_bytes
            ends = range(min(len(data), position + self._max_bytes), position, -1)
            found = next((end for end in ends if data[position:end] in known), None)
            out.append(len(self.later_bytes) + data[position] if found is None else known[data[position:found]])
            position = position + 1 if found is None else found
        return out

    def to_bytes(self, ids: Sequence[int], *, at_start: bool) -> bytes:
        """Return the bytes of a sequence of tokens."""
        parts = [self.later_bytes[token] if token < len(self.later_bytes) else b"" for token in ids]
        if at_start and ids and ids[0] < len(self.first_bytes):
            parts[0] = self.first_bytes[ids[0]]
        return b"".join(parts)


def ids_by_bytes(token_bytes: Sequence[bytes]) -> dict[bytes, int]:
    """Return a table from bytes to the token with these bytes. If there are several, it is the token with the smallest
    id.
    """
    return {text: number for number, text in reversed(list(enumerate(token_bytes))) if text}
