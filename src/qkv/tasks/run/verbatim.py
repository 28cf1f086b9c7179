"""What a translator copies as it is: URLs, markers of lists, and symbols that its tokenizer has never seen.

A tokenizer that splits text into bytes can encode every symbol, such as an emoji or a curly quotation mark. But if its
training text did not have the symbol, the model has learned nothing about these bytes and may write anything for the
whole sentence. The text on each side of such a symbol is translated by itself.
"""

import re
from collections.abc import Callable, Iterator
from unicodedata import category

from qkv.text import Tokenizer
from qkv.text.sentences import MONTHS, OPENING_MARKS, CharSpan, strip_span

URL = re.compile(r"(?<!\w)(?:https?://|www\.\w)[^\s<>\"]*[^\s<>\"'.,;:!?)\]»”…]", re.IGNORECASE)
BULLET = re.compile(r"[-*•·]\s+")
ITEM_NUMBER = re.compile(r"\(?\d{1,3}[.)]\s+(?=([^\W\d_]+))")
MIN_SYMBOL_BYTES = 3  # in UTF-8; the usual signs of European languages have fewer
NUM_BYTES = 256
MAX_SPECIAL_TOKENS = 32
JOINERS = "\ufe0f\u200d"  # they belong to the emoji before them


def symbol_check(tokenizer: Tokenizer) -> Callable[[str], bool]:
    """A function that returns whether a character is a symbol, not a letter or digit, that the tokenizer never saw.

    A symbol that was seen is one token. A tokenizer of single bytes cannot tell, so it has no unseen symbols.
    """
    tells_nothing = tokenizer.vocab_size <= NUM_BYTES + MAX_SPECIAL_TOKENS and tokenizer.special_tokens.unk is None
    unseen: dict[str, bool] = {}

    def is_unseen(character: str) -> bool:
        size = len(character.encode("utf-8", "replace"))
        if tells_nothing or size < MIN_SYMBOL_BYTES or category(character)[0] in "LMNZ":
            return False
        if character not in unseen:
            several = [tokenizer.encode(text, add_special_tokens=False) for text in (character, f" {character}")]
            unk = tokenizer.special_tokens.unk
            unseen[character] = all(len(ids) > 1 or unk in ids for ids in several)
        return unseen[character]

    return is_unseen


def translatable_spans(text: str, span: CharSpan, is_unseen: Callable[[str], bool]) -> list[CharSpan]:
    """The parts of a sentence that are translated. A symbol inside a word does not split it.

    >>> text = "- Look at https://example.org, I ♥ it ☃!"
    >>> [text[start:end] for start, end in translatable_spans(text, (0, len(text)), "♥☃".__contains__)]
    ['Look at', 'I', 'it']
    """
    start, end = span
    number = ITEM_NUMBER.match(text, start, end)
    if number and number[1].lower() not in MONTHS:
        start = number.end()
    elif bullet := BULLET.match(text, start, end):
        start = bullet.end()
    parts, is_first = [], True
    for first, last in [*kept_spans(text, (start, end), is_unseen), (end, end)]:
        part = strip_span(text, (start, first)) if is_first else skip_marks(text, (start, first))
        if any(character.isalnum() for character in text[part[0] : part[1]]):
            parts.append(part)
        start, is_first = last, False
    return parts


def skip_marks(text: str, span: CharSpan) -> CharSpan:
    """The span from its first letter, digit or opening mark, without white space at its end."""
    start, end = span
    while start < end and not (text[start].isalnum() or text[start] in OPENING_MARKS):
        start += 1
    return strip_span(text, (start, end))


def kept_spans(text: str, span: CharSpan, is_unseen: Callable[[str], bool]) -> Iterator[CharSpan]:
    """The spans of URLs and of unseen symbols, in order."""
    position, end = span
    while position < end:
        url = URL.match(text, position, end)
        if url:
            closes = url[0].count("(") > url[0].count(")") and text[url.end() : url.end() + 1] == ")"
            yield position, url.end() + closes
            position = url.end() + closes
        elif is_unseen(text[position]):
            first = position
            while position < end and (is_unseen(text[position]) or text[position] in JOINERS):
                position += 1
            inside_word = text[first - 1 : first].isalpha() and text[position : position + 1].isalpha()
            if not inside_word:
                yield first, position
        else:
            position += 1
