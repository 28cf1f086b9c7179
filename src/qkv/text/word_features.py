"""The features of a word as numbers: what a model can know about a word that it has never seen.

A feature is a text made from the word: the word in lower case, its first or last letters, its shape. Its number is a
hash of this text, so there is no vocabulary, and no word is unknown. Different texts rarely have the same number.
"""

from functools import lru_cache
from itertools import groupby
from zlib import crc32

ANY_WORD = "[WORD]"
"""The token of every word in the vocabulary of a `hash` tokenizer."""
MAX_RUN = 4  # equal signs of a shape in a row
NUM_FEATURES = 9


def word_shape(word: str) -> str:
    """The shape of a word: X for an upper-case letter, x for another letter, d for a digit; other signs stay.

    >>> word_shape("Zürich-2026"), word_shape("Constantinople")
    ('Xxxxx-dddd', 'Xxxxx')
    """
    signs = ("d" if one.isdigit() else one if not one.isalpha() else "X" if one.isupper() else "x" for one in word)
    return "".join(sign * min(MAX_RUN, len(list(run))) for sign, run in groupby(signs))


@lru_cache(maxsize=2**17)
def hash_features(word: str) -> tuple[int, ...]:
    """The `NUM_FEATURES` numbers of a word, each from 0 to 2³¹ − 1.

    >>> house, mouse = hash_features("house"), hash_features("Mouse")
    >>> [number for number in range(NUM_FEATURES) if house[number] == mouse[number]]
    [4, 5, 6]
    """
    lower = word.lower()
    texts = (lower, lower[:1], lower[:2], lower[:3], lower[-2:], lower[-3:], lower[-4:], word_shape(word), word)
    return tuple(crc32(text.encode("utf-8", "surrogatepass"), number) >> 1 for number, text in enumerate(texts))
