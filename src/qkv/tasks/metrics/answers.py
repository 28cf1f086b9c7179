"""SQuAD's two metrics for answers (Rajpurkar et al. 2016): exact match, and the F1 of their words.

Case, punctuation, articles (a, an, the) and extra spaces are ignored. A question without an answer has no references,
and an empty text is its right answer.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

from qkv.tasks.metrics.text import References

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized_words(text: str) -> list[str]:
    """The words of a text without case, punctuation and articles.

    >>> normalized_words("The  Norman-French,  an old one.")
    ['normanfrench', 'old', 'one']
    """
    return ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split()


def answer_exact_match(predictions: Sequence[str], references: References) -> float:
    """The fraction of answers that equal one of their references.

    >>> answer_exact_match(["the Seine", ""], [["Seine", "river Seine"], []])
    1.0
    """
    right = [
        _best_reference_score(text, several, lambda a, b: float(a == b))
        for text, several in zip(predictions, references, strict=True)
    ]
    return sum(right) / len(right) if right else 0.0


def answer_f1(predictions: Sequence[str], references: References) -> float:
    """The mean over answers of the F1 of their words, against the best of each answer's references.

    >>> answer_f1(["in Paris"], [["Paris, France", "Paris"]])
    0.6666666666666666
    """
    scores = [
        _best_reference_score(text, several, _word_f1) for text, several in zip(predictions, references, strict=True)
    ]
    return sum(scores) / len(scores) if scores else 0.0


def _best_reference_score(text: str, several: Sequence[str], compare: Callable[[list[str], list[str]], float]) -> float:
    words = normalized_words(text)
    usable = [found for found in map(normalized_words, several) if found] or [[]]  # some have no words left
    return max(compare(words, reference) for reference in usable)


def _word_f1(said: list[str], expected: list[str]) -> float:
    if not said or not expected:
        return float(said == expected)
    shared = (Counter(said) & Counter(expected)).total()
    return 2 * shared / (len(said) + len(expected))
