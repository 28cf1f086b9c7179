"""Metrics of generated texts: exact match and word error rate.

A text may have several references; it is compared with the best one.
"""

from collections.abc import Hashable, Sequence

from qkv.tasks.metrics.score import Score, mean_score, ratio_score

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
    errors, lengths = [], []
    for text, several in zip(predictions, references, strict=True):
        predicted = text.split()
        counted = [(edit_distance(predicted, words), len(words)) for words in (one.split() for one in several)]
        wrong, length = min(counted, key=lambda pair: (pair[0] / max(pair[1], 1), -pair[1]))
        errors.append(wrong)
        lengths.append(length)
    return ratio_score(errors, lengths if any(lengths) else [1] * len(lengths))


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
