"""Entities, summaries, answers, classes and rankings, compared with the libraries and definitions of the field."""

import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.errors import UsageError
from qkv.tasks import metrics
from qkv.tasks.metrics import retrieval

TAGS = {
    "IOB2": ["O", "B-X", "I-X", "B-Y", "I-Y"],
    "IOBES": ["O", "B-X", "I-X", "E-X", "S-X", "B-Y", "E-Y"],
    "BILOU": ["O", "B-X", "I-X", "L-X", "U-X", "B-Y", "L-Y"],
}


def tagged_pairs(tags: list[str]) -> st.SearchStrategy[list[list[tuple[str, str]]]]:
    """Sentences of (predicted, expected) tags in any order. One begins with all tags, so that the scheme is known."""
    word = st.tuples(st.sampled_from(tags), st.sampled_from(tags))
    first = [(tag, tag) for tag in tags]
    return st.lists(st.lists(word, min_size=1, max_size=8), max_size=4).map(lambda listed: [first, *listed])


def split_sides(sentences: list[list[tuple[str, str]]]) -> tuple[list[list[str]], list[list[str]]]:
    return [[one for one, _ in words] for words in sentences], [[two for _, two in words] for words in sentences]


@pytest.mark.parametrize("scheme", TAGS)
@settings(deadline=None, max_examples=40)
@given(st.data())
def test_entities_are_counted_as_seqeval_counts(scheme: str, data: st.DataObject) -> None:
    theirs = pytest.importorskip("seqeval.metrics", reason="compared with seqeval where it is installed")
    schemes = pytest.importorskip("seqeval.scheme")
    predicted, expected = split_sides(data.draw(tagged_pairs(TAGS[scheme])))
    found = metrics.entity_scores(predicted, expected)
    strict = {"mode": "strict", "scheme": getattr(schemes, scheme), "zero_division": 0}
    assert found["strict_f1"] == pytest.approx(theirs.f1_score(expected, predicted, **strict))
    if scheme == "BILOU":
        return  # seqeval's default does not know the prefixes L- and U-
    for name in ("f1", "precision", "recall"):
        reference = getattr(theirs, f"{name}_score")(expected, predicted, zero_division=0)
        assert found[name] == pytest.approx(reference), name
    report = metrics.make_class_report(metrics.entity_counts(predicted, expected)).classes
    reference = theirs.classification_report(expected, predicted, output_dict=True, zero_division=0)
    for kind, scores in report.items():
        ours = (scores.precision, scores.recall, scores.f1, scores.expected)
        assert ours == pytest.approx([reference[kind][key] for key in ("precision", "recall", "f1-score", "support")])


def test_strict_and_default_differ_where_they_should() -> None:
    """A negative control: an I- at the start is an entity by default, and not if strict; E- alone ends nothing."""
    found = metrics.entity_scores([["I-X", "O", "B-X"]], [["B-X", "O", "B-X"]])
    assert (found["f1"], found["strict_f1"]) == (1.0, pytest.approx(2 / 3))
    found = metrics.entity_scores([["B-X", "I-X", "S-Y"]], [["B-X", "E-X", "S-Y"]])
    assert (found["f1"], found["strict_f1"]) == (1.0, pytest.approx(2 / 3))


SUMMARIES = [
    ("The plan was approved on Monday.", ["The board approved the plan on Monday."]),
    ("nothing in common", ["a summary of another text"]),
    ("", ["an empty summary"]),
    ("runs running ran", ["run"]),  # stems are compared
    ("the cat sat", ["a dog ran", "the cat sat down"]),  # the best reference counts
]


def test_rouge_is_that_of_rouge_score() -> None:
    scorer = pytest.importorskip("rouge_score.rouge_scorer", reason="the extra rouge is not installed")
    written, references = [text for text, _ in SUMMARIES], [several for _, several in SUMMARIES]
    theirs = scorer.RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
    for name in ("rouge1", "rouge2", "rougeL"):
        values = [max(theirs.score(one, text)[name].fmeasure for one in several) for text, several in SUMMARIES]
        assert getattr(metrics, name)(written, references) == pytest.approx(sum(values) / len(values))


def test_rouge_by_hand() -> None:
    pytest.importorskip("rouge_score", reason="the extra rouge is not installed")
    written, references = ["the cat sat on the mat"], [["on the mat sat the cat"]]
    assert metrics.rouge1(written, references) == 1.0  # the same words
    # Pairs in common: "the cat", "on the", "the mat" of five each.
    assert metrics.rouge2(written, references) == pytest.approx(3 / 5)
    assert metrics.rougeL(written, references) == pytest.approx(3 / 6)  # "on the mat"
    assert metrics.rougeL(["mat on sat cat"], [["cat sat on mat"]]) == pytest.approx(1 / 4)  # the order counts


def test_rouge_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.tasks.metrics.text.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'qkv\[rouge\]'"):
        metrics.rouge1(["a"], [["a"]])


# Predicted answer, gold answers, exact match, F1: by the definitions of SQuAD 1.1 and 2.0.
ANSWERS = [
    ("Denver Broncos", ["Denver Broncos"], 1, 1.0),
    ("the denver   BRONCOS.", ["Denver Broncos"], 1, 1.0),  # case, articles, punctuation, white space
    ("Broncos of Denver", ["Denver Broncos"], 0, 0.8),  # 2 of 3 words right, 2 of 2 found
    ("Denver Denver", ["Denver Broncos"], 0, 0.5),  # a repeated word counts once
    ("in 1990", ["1991", "the year 1990"], 0, 0.5),  # the best gold answer: one of two words each
    ("1,000", ["1000"], 1, 1.0),  # punctuation is removed, not replaced by a space
    ("theatre", ["the atre"], 0, 0.0),  # articles are whole words
    ("a", ["the"], 1, 1.0),  # nothing remains of either
    ("", [], 1, 1.0),  # no answer, rightly
    ("something", [], 0, 0.0),
    ("", ["something"], 0, 0.0),
    ("yes", ["...", "yes"], 1, 1.0),  # a gold answer of which nothing remains does not count
    ("", ["...", "yes"], 0, 0.0),
]


@pytest.mark.parametrize(("text", "gold", "exact", "f1"), ANSWERS)
def test_answers_are_scored_as_squad_defines(text: str, gold: list[str], exact: int, f1: float) -> None:
    assert metrics.answer_exact_match([text], [gold]) == exact
    assert metrics.answer_f1([text], [gold]) == pytest.approx(f1)


pairs = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("abcd")), min_size=1, max_size=40)


@settings(deadline=None, max_examples=40)
@given(pairs)
def test_the_report_by_class_is_that_of_scikit_learn(listed: list[tuple[str, str]]) -> None:
    theirs = pytest.importorskip("sklearn.metrics", reason="compared with scikit-learn where it is installed")
    said, expected = [a for a, _ in listed], [b for _, b in listed]
    report = metrics.make_class_report(metrics.label_counts(said, expected), zip(said, expected, strict=True))
    reference = theirs.classification_report(expected, said, output_dict=True, zero_division=0)
    for label, scores in report.classes.items():
        ours = (scores.precision, scores.recall, scores.f1, scores.expected)
        assert ours == pytest.approx([reference[label][key] for key in ("precision", "recall", "f1-score", "support")])
    names = sorted(report.classes)
    matrix = [[report.confusion.get(row, {}).get(column, 0) for column in names] for row in names]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a matrix of one label
        assert matrix == theirs.confusion_matrix(expected, said, labels=names).tolist()


relevances = st.lists(st.integers(0, 3), min_size=2, max_size=12)


@settings(deadline=None, max_examples=40)
@given(relevances, st.integers(1, 12), st.randoms(use_true_random=False))
def test_ndcg_is_that_of_scikit_learn(listed: list[int], k: int, draw: object) -> None:
    theirs = pytest.importorskip("sklearn.metrics", reason="compared with scikit-learn where it is installed")
    ranking = list(range(len(listed)))
    draw.shuffle(ranking)  # type: ignore[attr-defined]
    scores = [[-ranking.index(document) for document in range(len(listed))]]
    expected = theirs.ndcg_score([listed], scores, k=k)
    assert metrics.ndcg([ranking], [dict(enumerate(map(float, listed)))], k=k) == pytest.approx(expected)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.booleans(), min_size=1, max_size=12).filter(any))
def test_average_precision_is_that_of_scikit_learn(relevant: list[bool]) -> None:
    theirs = pytest.importorskip("sklearn.metrics", reason="compared with scikit-learn where it is installed")
    scores = [-rank for rank in range(len(relevant))]
    expected = theirs.average_precision_score(relevant, scores)
    ranking = list(range(len(relevant)))
    found = metrics.mean_average_precision([ranking], [dict(enumerate(map(float, relevant)))])
    assert found == pytest.approx(expected)


def test_rankings_by_hand() -> None:
    judged = [{"a": 3.0, "b": 1.0, "c": 0.0, "d": -1.0}]
    assert metrics.mean_average_precision([["x", "a"]], judged) == pytest.approx(1 / 2 / 2)  # b was not found
    assert metrics.recall_at([["c", "d", "b", "a"]], judged, k=3) == 0.5
    assert metrics.ndcg([["c", "d"]], judged) == 0.0  # what is not relevant gains nothing, and loses nothing
    assert retrieval.mean_reciprocal_rank([["x", "b"], ["x"]], judged * 2) == 0.25
    assert metrics.ndcg([["a"]], [{}]) == metrics.recall_at([["a"]], [{}]) == 0.0
