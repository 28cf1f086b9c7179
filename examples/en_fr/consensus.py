"""Choose the translation that agrees best with all others: minimum Bayes risk.

A sentence has several good translations. The candidates of several teachers, weighted by their probabilities, and the
human translations are votes. The consensus is the candidate with the largest expected similarity to the votes. It makes
the same choices again and again (tu or vous, which tense), so a small student learns it more easily than the data.
"""

import re
from collections.abc import Mapping, Sequence

MAX_NGRAM = 4


def ngram_sets(text: str) -> list[set[tuple[str, ...]]]:
    """The n-grams of words and punctuation marks, for n from 1 to 4."""
    words = re.findall(r"\w+|[^\w\s]", text)
    return [{tuple(words[i : i + n]) for i in range(len(words) - n + 1)} for n in range(1, MAX_NGRAM + 1)]


def similarity(a: Sequence[set[tuple[str, ...]]], b: Sequence[set[tuple[str, ...]]]) -> float:
    """The fraction of n-grams that two texts share (Dice), averaged over n.

    >>> similarity(ngram_sets("le chat dort"), ngram_sets("le chat dort"))
    1.0
    >>> round(similarity(ngram_sets("le chat dort"), ngram_sets("le chien dort")), 2)
    0.22
    """
    shared = [2 * len(x & y) / (len(x) + len(y)) for x, y in zip(a, b, strict=True) if x or y]
    return sum(shared) / len(shared) if shared else 1.0


def choose_consensus(votes: Mapping[str, float]) -> str:
    """The text with the largest expected similarity to all texts, given the weight of each.

    >>> choose_consensus({"tu dors": 0.4, "vous dormez": 0.35, "tu dors bien": 0.25})
    'tu dors'
    """
    sets = {text: ngram_sets(text) for text in votes}
    return max(votes, key=lambda text: sum(w * similarity(sets[text], sets[other]) for other, w in votes.items()))


def collect_votes(
    candidates: Sequence[Sequence[tuple[str, float]]], human: Sequence[str], human_weight: float = 0.5
) -> dict[str, float]:
    """The weight of each text: teachers' candidates with their probabilities, and human translations.

    Each teacher has one vote, divided among its candidates; all human translations together have `human_weight`.
    """
    votes: dict[str, float] = {}
    share = (1 - human_weight if human else 1.0) / max(1, len(candidates))
    for several in candidates:
        total = sum(probability for _, probability in several)
        for text, probability in several:
            votes[text] = votes.get(text, 0.0) + share * probability / total
    for text in human:
        votes[text] = votes.get(text, 0.0) + human_weight / len(human)
    return votes
