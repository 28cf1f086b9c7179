"""Characters ⇄ tokens: words, sentences and answers found in a text, by the offsets that its tokens carry.

Offsets are (first character, one past the last) of each token, as `Tokenizer.encode_with_offsets` gives them. Nothing here
asks how a tokenizer spells its tokens, so it is the same for all of them.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

CharOffsets = Sequence[tuple[int, int]]

# A word is a run of letters and digits, or a single sign; an ideograph is a word of its own.
IDEOGRAPH = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
WORD_PATTERN = re.compile(f"[{IDEOGRAPH}]|[^\\W{IDEOGRAPH}]+|[^\\w\\s]")
# A sentence may begin after spaces, and begins after an ideographic full stop. Neither pattern can fail once begun, so
# the search is linear even in a megabyte of one character.
SENTENCE_GAP = re.compile(r"\s+|[。！？]+[」』）]*\s*")
SENTENCE_ENDINGS = (".", "!", "?", "…")
CLOSING_MARKS = "\"'”’»)]"


def first_nonspace_character(text: str, offset: tuple[int, int]) -> int:
    """The first character of a token that is not a space; the last character of one that is only spaces."""
    begin, end = offset
    while begin < end - 1 and text[begin].isspace():
        begin += 1
    return begin


def sentence_breaks(text: str) -> list[int]:
    """The characters at which sentences begin: after an end mark (and what closes it) and a space, or on a new line."""
    found = []
    for gap in SENTENCE_GAP.finditer(text):
        before = text[max(0, gap.start() - 4) : gap.start()].rstrip(CLOSING_MARKS)
        if not gap[0].isspace() or "\n" in gap[0] or before.endswith(SENTENCE_ENDINGS):
            found.append(gap.end())
    return found


def span_indices(starts: Sequence[int], text: str, offsets: CharOffsets) -> list[int]:
    """The number of the span that each token's first character is in; spans begin at `starts`, −1 is before them."""
    return [bisect_right(starts, first_nonspace_character(text, offset)) - 1 for offset in offsets]


def word_ids(text: str, offsets: CharOffsets) -> list[int]:
    """For each token the number of its word, counted through the text.

    >>> word_ids("re-do it", [(0, 2), (2, 3), (3, 4), (4, 5), (5, 8)])
    [0, 1, 2, 2, 3]
    """
    return [
        max(number, 0)
        for number in span_indices([found.start() for found in WORD_PATTERN.finditer(text)], text, offsets)
    ]


def sentence_starts(text: str, offsets: CharOffsets) -> list[int]:
    """The tokens with which sentences begin, the first one included.

    >>> sentence_starts("It is. Is it?", [(0, 2), (2, 5), (5, 6), (6, 9), (9, 13)])
    [0, 3]
    """
    numbers = span_indices(sentence_breaks(text), text, offsets)
    return [token for token, number in enumerate(numbers) if token == 0 or number != numbers[token - 1]]


def char_span_to_tokens(offsets: CharOffsets, start: int, end: int) -> tuple[int, int] | None:
    """The first and the last token that touch the characters begin … end − 1; None where none does.

    >>> char_span_to_tokens([(0, 3), (3, 7), (7, 9)], 4, 8)
    (1, 2)
    """
    first = bisect_right(offsets, start, key=lambda offset: offset[1])
    last = bisect_left(offsets, end, key=lambda offset: offset[0]) - 1
    return (first, last) if start < end and first <= last else None


def tokens_to_char_span(text: str, offsets: CharOffsets, first: int, last: int) -> tuple[int, int]:
    """The characters of the tokens first … last as (begin, end), without the spaces around them.

    >>> tokens_to_char_span("in Paris now", [(0, 2), (2, 8), (8, 12)], 1, 1)
    (3, 8)
    """
    begin, end = offsets[first][0], offsets[last][1]
    while begin < end and text[begin].isspace():
        begin += 1
    while begin < end and text[end - 1].isspace():
        end -= 1
    return begin, end
