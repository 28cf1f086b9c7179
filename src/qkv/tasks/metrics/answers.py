"""SQuAD's two metrics for answers (Rajpurkar et al. 2016): exact match, and the F1 of their words.

Case, punctuation, articles (a, an, the) and extra spaces are ignored. A question without an answer has no references,
and the right prediction for it is an empty text.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

from qkv.tasks.metrics.score import Score, mean_score
from qkv.tasks.metrics.text import References

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def answer_words(text: str) -> list[str]:
    """The words of a text without case, punctuation and articles.

    >>> answer_words("The  Norman-French,  an old one.")
    ['normanfrench', 'old', 'one']
    """
    return ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split()


def answer_exact_match(predictions: Sequence[str], references: References) -> Score:
    """The fraction of answers that equal one of their references.

    >>> answer_exact_match(["the Seine", ""], [["Seine", "river Seine"], []])
    1.0
    """
    return _mean_of_best(predictions, references, lambda a, b: float(a == b))


def answer_f1(predictions: Sequence[str], references: References) -> Score:
    """The mean F1 of the words of an answer, each compared with the best of its references.

    >>> answer_f1(["in Paris"], [["Paris, France", "Paris"]])
    0.6666666666666666
    """
    return _mean_of_best(predictions, references, _word_f1)


def _mean_of_best(
    predictions: Sequence[str], references: References, compare: Callable[[list[str], list[str]], float]
) -> Score:
    best = []
    for text, expected in zip(predictions, references, strict=True):
        words = answer_words(text)
        # A reference without words after normalization does not count, unless all references are like that.
        usable = [reference for reference in map(answer_words, expected) if reference] or [[]]
        best.append(max(compare(words, reference) for reference in usable))
    return mean_score(best)


def _word_f1(predicted: list[str], expected: list[str]) -> float:
    if not predicted or not expected:
        return float(predicted == expected)
    shared = (Counter(predicted) & Counter(expected)).total()
    return 2 * shared / (len(predicted) + len(expected))
