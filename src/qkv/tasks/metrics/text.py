"""Metrics of generated texts: exact match, word error rate, ROUGE and the metrics of SQuAD.

A text may have several references; the most similar reference counts.

ROUGE (Lin 2004) counts the n-grams and subsequences that a summary shares with a reference, by the package rouge-score:
`rouge1` and `rouge2` are the F1 of single words and of pairs of words, `rougeL` the F1 of the longest common
subsequence. Words are in lower case and stemmed.

SQuAD has two metrics for answers (Rajpurkar et al. 2016): exact match, and the F1 of their words. Case, punctuation,
articles (a, an, the) and extra spaces are ignored. A question without an answer has no references, and the right
prediction for it is an empty text.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from qkv.errors import UsageError
from qkv.tasks.metrics.bootstrap import Score, mean_score, ratio_score

References = Sequence[Sequence[str]]
"""The references of each text."""


def exact_match(predictions: Sequence[str], references: References) -> Score:
    """The fraction of texts that equal one of their references; spaces around a text are ignored.

    >>> exact_match(["2021-05-04", "2021-05-05"], [["2021-05-04"], ["2021-05-06"]])
    0.5
    """
    pairs = zip(predictions, references, strict=True)
    return mean_score([float(text.strip() in {one.strip() for one in several}) for text, several in pairs])


def word_error_rate(predictions: Sequence[str], references: References) -> Score:
    """The number of inserted, deleted or replaced words, divided by the number of words of the references.

    Each text is compared with its nearest reference. The rate exceeds 1 if texts are much too long.

    >>> word_error_rate(["EY T R", "B IY"], [["EY T R AH", "AE T R AH"], ["B IY"]])
    0.16666666666666666
    """
    return ratio_score(*count_errors(predictions, references, str.split))


def word_accuracy(predictions: Sequence[str], references: References) -> Score:
    """1 − the word error rate; it is negative if texts are much too long.

    >>> word_accuracy(["EY T R", "B IY"], [["EY T R AH", "AE T R AH"], ["B IY"]])
    0.8333333333333334
    """
    errors, lengths = count_errors(predictions, references, str.split)
    return ratio_score([length - wrong for wrong, length in zip(errors, lengths, strict=True)], lengths)


def character_error_rate(predictions: Sequence[str], references: References) -> Score:
    """The number of inserted, deleted or replaced characters, divided by the number of characters of the references.

    >>> character_error_rate(["nin", "six"], [["nine"], ["six"]])
    0.14285714285714285
    """
    return ratio_score(*count_errors(predictions, references, lambda text: " ".join(text.split())))


def count_errors(
    predictions: Sequence[str], references: References, split: Callable[[str], Sequence[str]]
) -> tuple[list[int], list[int]]:
    """The edit distance of each text to its nearest reference, and the length of this reference, in parts of texts."""
    errors, lengths = [], []
    for text, several in zip(predictions, references, strict=True):
        predicted = split(text)
        counted = [(edit_distance(predicted, parts), len(parts)) for parts in map(split, several)]
        wrong, length = min(counted, key=lambda pair: (pair[0] / max(pair[1], 1), -pair[1]))
        errors.append(wrong)
        lengths.append(length)
    return errors, lengths if any(lengths) else [1] * len(lengths)


def edit_distance(one: Sequence[Hashable], two: Sequence[Hashable]) -> int:
    """The fewest insertions, deletions and replacements that turn one sequence into the other (Levenshtein).

    >>> edit_distance("kitten", "sitting")
    3
    """
    if len(one) < len(two):
        one, two = two, one
    before = list(range(len(two) + 1))  # the cost of reaching each prefix of `two` from the words of `one` so far
    for row, a in enumerate(one, 1):
        now = [row]
        for column, b in enumerate(two, 1):
            now.append(min(before[column] + 1, now[-1] + 1, before[column - 1] + (a != b)))
        before = now
    return before[-1]


ROUGE_NAMES = ("rouge1", "rouge2", "rougeL")


def has_rouge() -> bool:
    """Whether the package rouge-score is installed."""
    return find_spec("rouge_score") is not None


def rouge1(predictions: Sequence[str], references: References) -> Score:
    """F1 of words."""
    return _rouge("rouge1", predictions, references)


def rouge2(predictions: Sequence[str], references: References) -> Score:
    """F1 of pairs of neighbouring words."""
    return _rouge("rouge2", predictions, references)


def rougeL(predictions: Sequence[str], references: References) -> Score:
    """F1 of the longest common subsequence of words."""
    return _rouge("rougeL", predictions, references)


def rouge_signatures(names: Sequence[str]) -> dict[str, str]:
    """How the ROUGE scores among these metrics were computed."""
    chosen = [name for name in names if name in ROUGE_NAMES]
    return {name: f"F1|stemmed:yes|rouge-score:{version('rouge_score')}" for name in chosen}


def _rouge(name: str, predictions: Sequence[str], references: References) -> Score:
    if not has_rouge():
        raise UsageError(f"{name} needs the package rouge-score; install it with: pip install 'qkv[rouge]'")
    scorer: Any = import_module("rouge_score.rouge_scorer").RougeScorer([name], use_stemmer=True)
    pairs = zip(predictions, references, strict=True)
    return mean_score([scorer.score_multi(list(several), text)[name].fmeasure for text, several in pairs])


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
