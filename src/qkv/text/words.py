"""Split a text into words with exact character spans. Combining marks and emoji sequences stay with their word."""

import re
from unicodedata import category

# A word consists of letters and digits, with punctuation inside it; any other sign is a separate word.
WORD_PATTERN = re.compile(r"\w+(?:[-'’.]\w+)*|[^\w\s]")
JOINER = "\u200d"  # joins emoji to one picture
MARKS = ("Mn", "Mc", "Me", "Cf")
ZERO_WIDTH_SPACE = "\u200b"  # separates words, although its category is Cf
MAX_MARKS = 16  # combining marks of one character; more are ignored
SKIN_TONES = range(0x1F3FB, 0x1F400)


def split_words(text: str) -> list[tuple[int, int]]:
    """The (start, end) characters of each word and each sign.

    >>> text = "Anna's dog-house, 3.5 km!"
    >>> [text[start:end] for start, end in split_words(text)]
    ["Anna's", 'dog-house', ',', '3.5', 'km', '!']
    """
    spans: list[tuple[int, int]] = []
    for match in WORD_PATTERN.finditer(text):
        start, end = match.span()
        if spans and spans[-1][1] == start and _is_joined(text, spans[-1][0], start):
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    return spans


def split_residues(text: str) -> list[tuple[int, int]]:
    """The (start, end) characters of each residue of a protein.

    >>> split_residues("MK T")
    [(0, 1), (1, 2), (3, 4)]
    """
    return [(start, start + 1) for start, character in enumerate(text) if not character.isspace()]


def include_marks(text: str, start: int, end: int) -> tuple[int, int]:
    """Extend a span so that it does not begin or end between a character and its combining marks.

    >>> include_marks("Zoe\u0301 ran", 0, 3)
    (0, 4)
    """
    earliest = max(0, start - MAX_MARKS)
    while earliest < start < end and category(text[start]) in MARKS:
        start -= 1
    limit = min(len(text), end + MAX_MARKS)
    while end < limit and (category(text[end]) in MARKS or ord(text[end]) in SKIN_TONES):
        end += 1
    return start, end


def _is_joined(text: str, word_start: int, position: int) -> bool:
    """Whether the character at `position` continues the word before it."""
    before, after = text[position - 1], text[position]
    if ZERO_WIDTH_SPACE in (before, after):
        return False
    if before == JOINER or category(after) in MARKS or ord(after) in SKIN_TONES:
        return True
    return category(before) in MARKS and text[word_start].isalnum() and after.isalnum()
