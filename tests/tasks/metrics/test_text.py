"""Texts against references: worked by hand, by their properties, and for a known corpus."""

import math
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.tasks import metrics
from qkv.tasks.metrics.text import edit_distance
from qkv.tasks.metrics.translation import transpose_references

words = st.lists(st.sampled_from(["the", "a", "cat", "dog", "sat", "ran", "on", "mat"]), min_size=1, max_size=12)
texts = words.map(" ".join)


def one(references: list[str]) -> list[list[str]]:
    return [[text] for text in references]


def test_exact_match_counts_equal_texts_and_any_reference() -> None:
    assert metrics.exact_match(["a", "b ", "c"], [["a"], ["x", "b"], ["C"]]) == pytest.approx(2 / 3)
    assert metrics.exact_match([], []) == 0.0


@given(st.lists(st.text(max_size=4), max_size=8), st.lists(st.text(max_size=4), max_size=8))
def test_edits_equal_the_recursive_definition(a: list[str], b: list[str]) -> None:
    def slow(i: int, j: int, seen: dict[tuple[int, int], int]) -> int:
        if not i or not j:
            return i + j
        if (i, j) not in seen:
            seen[i, j] = min(
                slow(i - 1, j, seen) + 1, slow(i, j - 1, seen) + 1, slow(i - 1, j - 1, seen) + (a[i - 1] != b[j - 1])
            )
        return seen[i, j]

    assert edit_distance(a, b) == slow(len(a), len(b), {}) == edit_distance(b, a)


def test_word_error_rate_by_hand_takes_the_nearest_reference() -> None:
    # One of three words wrong against the second reference, all right in the other text: 1 / (3 + 2).
    assert metrics.word_error_rate(["a b c", "d e"], [["x y z w", "a b d"], ["d e"]]) == pytest.approx(1 / 5)
    assert metrics.word_error_rate(["a b c d"], [["a"]]) == 3.0  # it may exceed 1
    assert metrics.word_error_rate([""], [[""]]) == 0.0


def slow_bleu(written: list[str], references: list[str]) -> float:
    """The definition, one n-gram at a time, single references, words between spaces."""
    logs, hypothesis_length, reference_length = [], 0, 0
    for n in range(1, 5):
        right = total = 0
        for text, reference in zip(written, references, strict=True):
            said, left = text.split(), Counter()
            expected = reference.split()
            if n == 1:
                hypothesis_length += len(said)
                reference_length += len(expected)
            for i in range(len(expected) - n + 1):
                left[" ".join(expected[i : i + n])] += 1
            for i in range(len(said) - n + 1):
                total += 1
                gram = " ".join(said[i : i + n])
                if left[gram] > 0:
                    left[gram] -= 1
                    right += 1
        if right == 0:
            return 0.0
        logs.append(math.log(right / total))
    penalty = 1.0 if hypothesis_length > reference_length else math.exp(1 - reference_length / hypothesis_length)
    return 100 * penalty * math.exp(sum(logs) / 4)


@settings(deadline=None)  # the first call imports sacrebleu
@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=6))
def test_tokenised_bleu_equals_the_slow_definition(pairs: list[tuple[str, str]]) -> None:
    written, references = [a for a, _ in pairs], [b for _, b in pairs]
    assert metrics.tokenised_bleu(written, one(references)) == pytest.approx(slow_bleu(written, references))


def test_bleu_by_hand() -> None:
    # "the cat sat on the mat" against "the cat sat on a mat": 5/6 words, 3/5 pairs, 2/4 triples, 1/3 fours, no penalty.
    expected = 100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25
    assert metrics.tokenised_bleu(["the cat sat on the mat"], [["the cat sat on a mat"]]) == pytest.approx(expected)
    # Cut to its first four words, all n-grams are right and brevity alone costs: exp(1 − 6/4).
    short = metrics.tokenised_bleu(["the cat sat on"], [["the cat sat on a mat"]])
    assert short == pytest.approx(100 * math.exp(1 - 6 / 4))


def test_the_reference_nearest_in_length_counts_for_brevity() -> None:
    written = "a b c d e"
    assert metrics.tokenised_bleu([written], [["a b c d e", "a b c d e f g h i"]]) == pytest.approx(100)
    # Lengths 4 and 6 are as near to 5: the shorter counts, so there is no penalty.
    near = metrics.tokenised_bleu([written], [["a b c d", "a b c d e x"]])
    assert near == pytest.approx(100)


@settings(deadline=None)
@given(st.lists(words.filter(lambda listed: len(listed) >= 4).map(" ".join), min_size=1, max_size=5))
def test_a_perfect_text_scores_a_hundred(listed: list[str]) -> None:
    for metric in (metrics.bleu, metrics.tokenised_bleu, metrics.bleu_lowercase):
        assert metric(listed, one(listed)) == pytest.approx(100)
    assert metrics.exact_match(listed, one(listed)) == 1.0
    assert metrics.word_error_rate(listed, one(listed)) == 0.0


@settings(deadline=None)
@given(st.lists(st.tuples(texts, texts), min_size=2, max_size=6), st.randoms())
def test_the_order_of_texts_does_not_matter(pairs: list[tuple[str, str]], draw: random.Random) -> None:
    moved = list(pairs)
    draw.shuffle(moved)
    for metric in (metrics.bleu, metrics.tokenised_bleu, metrics.word_error_rate, metrics.exact_match):
        scores = {round(metric([a for a, _ in some], [[b] for _, b in some]), 9) for some in (pairs, moved)}
        assert len(scores) == 1


def test_readings_of_a_word_differ_where_they_should() -> None:
    written, references = ["The cat sat, and ran on."], one(["the cat sat , and ran on ."])
    assert metrics.bleu(["the cat sat, and ran on."], references) == pytest.approx(100)  # 13a cuts signs off
    assert metrics.tokenised_bleu(["the cat sat, and ran on."], references) < 90  # spaces alone do not
    assert metrics.bleu(written, references) < 100 == round(metrics.bleu_lowercase(written, references))


def test_no_matching_four_gram_is_zero() -> None:
    assert metrics.bleu(["the cat sat here"], [["the cat sat there"]]) == 0.0
    assert metrics.bleu([""], [["the cat"]]) == 0.0


def test_references_by_number_have_gaps() -> None:
    assert transpose_references([["a", "b"], ["c"], ["d", "e", "f"]]) == [
        ["a", "c", "d"],
        ["b", None, "e"],
        [None, None, "f"],
    ]


LINES = [
    ("Zwei junge, weiße Männer sind im Freien.", "Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche."),
    ('Ein Mann sagt: "Es kostet 3,50 €!"', 'Ein Mann sagt: "Das kostet 3.50 €!"'),
    ("The U.S. team won 3-2 in 2016.", "The U.S. team won by 3-2 in 2016."),
    ("a b c d e f", "a b c d e g"),
    ("&quot;x&quot; &amp; y <skipped> z", '"x" & y z'),
]


@pytest.mark.parametrize(
    ("name", "single", "double"),
    [
        ("bleu", 63.1143, 86.1),
        ("bleu_lowercase", 63.1143, 100.0),
        ("tokenised_bleu", 37.6232, 74.4657),
        ("sacrebleu", 63.1143, 86.1),
        ("chrf", 61.8247, 82.0171),
    ],
)
def test_scores_of_a_known_corpus(name: str, single: float, double: float) -> None:
    """The expected scores of BLEU were computed by an independent implementation of its definition."""
    metric, written = getattr(metrics, name), [a for a, _ in LINES]
    assert metric(written, one([b for _, b in LINES])) == pytest.approx(single, abs=5e-5)
    assert metric(written, [[b, a.lower()] for a, b in LINES]) == pytest.approx(double, abs=5e-5)


def test_smoothing_distinguishes_sacrebleu_from_bleu() -> None:
    assert metrics.sacrebleu(["the cat sat here"], [["the cat sat there"]]) == pytest.approx(59.4604, abs=5e-5)


def test_signatures_say_how_each_score_was_computed() -> None:
    found = metrics.metric_signatures(["exact_match", "bleu", "bleu_lowercase", "tokenised_bleu", "sacrebleu"])
    assert {name: text.partition("|version:")[0] for name, text in found.items()} == {
        "bleu": "nrefs:1|case:mixed|eff:no|tok:13a|smooth:none",
        "bleu_lowercase": "nrefs:1|case:lc|eff:no|tok:13a|smooth:none",
        "tokenised_bleu": "nrefs:1|case:mixed|eff:no|tok:none|smooth:none",
        "sacrebleu": "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp",
    }
