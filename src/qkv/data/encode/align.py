"""Align characters with tokens: find the words, sentences and answers of a text by the offsets of its tokens.

The offsets of a token are (first character, last character + 1), as `Tokenizer.encode_with_offsets` returns them. The
spelling of tokens in the vocabulary is not used.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from qkv.text.sentences import sentence_breaks

CharOffsets = Sequence[tuple[int, int]]

# A word is a run of letters and digits, a single punctuation mark, or a single ideograph.
IDEOGRAPH = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
WORD_PATTERN = re.compile(f"[{IDEOGRAPH}]|[^\\W{IDEOGRAPH}]+|[^\\w\\s]")


def first_nonspace_character(text: str, offset: tuple[int, int]) -> int:
    """The index of the first character of a token that is not white space; if all are, of its last character."""
    start, end = offset
    while start < end - 1 and text[start].isspace():
        start += 1
    return start


def span_indices(starts: Sequence[int], text: str, offsets: CharOffsets) -> list[int]:
    """For each token, the index of the last of `starts` at or before its first character; −1 if there is none."""
    return [bisect_right(starts, first_nonspace_character(text, offset)) - 1 for offset in offsets]


def word_indices(text: str, offsets: CharOffsets) -> list[int]:
    """For each token, the index of its word in the text.

    >>> word_indices("re-do it", [(0, 2), (2, 3), (3, 4), (4, 5), (5, 8)])
    [0, 1, 2, 2, 3]
    """
    starts = [word.start() for word in WORD_PATTERN.finditer(text)]
    return [max(index, 0) for index in span_indices(starts, text, offsets)]


def sentence_starts(text: str, offsets: CharOffsets) -> list[int]:
    """The indices of the tokens that begin a sentence, including the first token.

    >>> sentence_starts("It is. Is it?", [(0, 2), (2, 5), (5, 6), (6, 9), (9, 13)])
    [0, 3]
    """
    sentences = span_indices(sentence_breaks(text), text, offsets)
    return [token for token, index in enumerate(sentences) if token == 0 or index != sentences[token - 1]]


def char_span_to_tokens(offsets: CharOffsets, start: int, end: int) -> tuple[int, int] | None:
    """The first and last token that overlap the characters start … end − 1; None if no token does.

    >>> char_span_to_tokens([(0, 3), (3, 7), (7, 9)], 4, 8)
    (1, 2)
    """
    first = bisect_right(offsets, start, key=lambda offset: offset[1])
    last = bisect_left(offsets, end, key=lambda offset: offset[0]) - 1
    return (first, last) if start < end and first <= last else None
