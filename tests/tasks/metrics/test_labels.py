"""Labels, entities and answers: worked by hand, by their properties, and against scikit-learn."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.tasks import metrics
from qkv.tasks.metrics.text import answer_words

pairs = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("abcd")), min_size=1, max_size=40)


@settings(deadline=None)
@pytest.mark.filterwarnings("ignore:A single label was found")
@given(pairs)
def test_labels_agree_with_scikit_learn(listed: list[tuple[str, str]]) -> None:
    theirs = pytest.importorskip("sklearn.metrics", reason="compared with scikit-learn where it is installed")
    said, expected = [a for a, _ in listed], [b for _, b in listed]
    assert metrics.accuracy(said, expected) == pytest.approx(theirs.accuracy_score(expected, said))
    assert metrics.macro_f1(said, expected) == pytest.approx(
        theirs.f1_score(expected, said, average="macro", zero_division=0)
    )
    assert metrics.matthews(said, expected) == pytest.approx(theirs.matthews_corrcoef(expected, said), abs=1e-12)


def test_labels_by_hand() -> None:
    said, expected = ["y", "y", "n", "n", "y"], ["y", "n", "n", "n", "n"]
    assert metrics.accuracy(said, expected) == pytest.approx(3 / 5)
    assert metrics.macro_f1(said, expected) == pytest.approx((2 * 1 / (3 + 1) + 2 * 2 / (2 + 4)) / 2)
    # tp 1, fp 2, tn 2, fn 0
    assert metrics.matthews(said, expected) == pytest.approx((1 * 2 - 2 * 0) / (3 * 1 * 4 * 2) ** 0.5)
    assert metrics.matthews(["y", "y"], ["y", "n"]) == 0.0


@given(pairs, st.permutations("abcd"), st.randoms())
def test_names_and_order_of_labels_do_not_matter(
    listed: list[tuple[str, str]], names: list[str], draw: random.Random
) -> None:
    renamed = dict(zip("abcd", names, strict=True))
    moved = [(renamed[a], renamed[b]) for a, b in listed]
    draw.shuffle(moved)
    for metric in (metrics.accuracy, metrics.macro_f1, metrics.matthews):
        scores = [metric([a for a, _ in some], [b for _, b in some]) for some in (listed, moved)]
        assert scores[0] == pytest.approx(scores[1])


# Each with the entities that CoNLL's script would count.
ENTITIES = [
    ("O O O", []),
    ("B-PER I-PER O B-LOC", [(0, 2, "PER"), (3, 4, "LOC")]),
    ("I-PER I-PER O", [(0, 2, "PER")]),  # I- after nothing begins one
    ("B-PER I-LOC", [(0, 1, "PER"), (1, 2, "LOC")]),  # another kind begins one
    ("I-PER B-PER I-PER", [(0, 1, "PER"), (1, 3, "PER")]),  # B- always begins one
    ("B-PER B-PER", [(0, 1, "PER"), (1, 2, "PER")]),
    ("B-PER O I-PER", [(0, 1, "PER"), (2, 3, "PER")]),
    ("B-PER I-PER E-PER S-LOC I-LOC", [(0, 3, "PER"), (3, 4, "LOC"), (4, 5, "LOC")]),
    ("B-a-b I-a-b", [(0, 2, "a-b")]),  # a kind may hold a hyphen
    ("", []),
]


@pytest.mark.parametrize(("tags", "expected"), ENTITIES)
def test_entities_are_those_of_conlleval(tags: str, expected: list[tuple[int, int, str]]) -> None:
    assert metrics.extract_entities(tags.split()) == expected


def test_entity_scores_by_hand() -> None:
    said = ["B-PER I-PER O B-LOC O", "B-LOC O"]
    expected = ["B-PER I-PER O B-PER O", "B-LOC B-LOC"]
    scores = metrics.entity_scores([one.split() for one in said], [one.split() for one in expected])
    # Said 3 (PER, LOC, LOC), expected 4 (PER, PER, LOC, LOC), right 2.
    assert scores == pytest.approx({"precision": 2 / 3, "recall": 2 / 4, "f1": 2 * 2 / 7, "strict_f1": 2 * 2 / 7})


tags = st.lists(st.sampled_from(["O", "B-X", "I-X", "B-Y", "I-Y"]), min_size=1, max_size=12)


@given(st.lists(tags, min_size=1, max_size=5))
def test_perfect_tags_score_one_and_a_longer_span_is_wrong(sentences: list[list[str]]) -> None:
    there = sum(len(metrics.extract_entities(one)) for one in sentences)
    assert metrics.entity_scores(sentences, sentences)["f1"] == (1.0 if there else 0.0)
    outer = metrics.entity_scores([["B-X", "I-X", "I-X"]], [["B-X", "I-X", "O"]])
    assert outer["f1"] == 0.0  # half right is not right


@given(tags)
def test_entities_cover_exactly_the_words_that_are_not_outside(sentence: list[str]) -> None:
    covered = [place for begin, end, _ in metrics.extract_entities(sentence) for place in range(begin, end)]
    assert covered == [place for place, tag in enumerate(sentence) if tag != "O"]


def test_chunked_tags_are_told_from_plain_classes() -> None:
    assert metrics.is_entity_tagging(("O", "B-LOC", "I-LOC"))
    assert not metrics.is_entity_tagging(("NOUN", "X"))
    assert not metrics.is_entity_tagging(("B-LOC", "NOUN"))


def test_answers_by_hand() -> None:
    assert answer_words("An apple, the APPLE; a Theatre!") == ["apple", "apple", "theatre"]
    references = [["Denver Broncos", "The Denver Broncos of 2015"], []]
    assert metrics.answer_exact_match(["the denver  broncos!", ""], references) == 1.0
    assert metrics.answer_exact_match(["Broncos", "x"], references) == 0.0
    # "of Denver": 1 of 2 words right against 2: 1/2; against 4 (denver broncos of 2015): 2·2/(2+4).
    assert metrics.answer_f1(["of Denver"], [references[0]]) == pytest.approx(2 / 3)
    assert metrics.answer_f1(["x", ""], [[], []]) == 0.5


@given(st.lists(st.text(max_size=12), min_size=1, max_size=5))
def test_an_answer_of_its_own_reference_is_perfect(answers: list[str]) -> None:
    references = [[text, "something else"] for text in answers]
    exact = [metrics.answer_exact_match([text], [several]) for text, several in zip(answers, references, strict=True)]
    assert exact == [1.0 if answer_words(text) else 0.0 for text in answers]
    assert metrics.answer_f1(answers, references) == pytest.approx(sum(exact) / len(exact))
