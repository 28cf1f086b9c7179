"""Scorers and baselines of all tasks: right predictions score 1, baselines are scorerd like the model."""

from itertools import pairwise
from typing import Any

import pytest
from task_models import TEXT, decoder, encoder, parts_of, records, seq2seq

import qkv
from qkv.tasks.baselines import applicable_baselines, predict_svm, unigram_scores
from qkv.tasks.evaluate import evaluate
from qkv.tasks.report.errors import list_errors
from qkv.tasks.report.score import add_baselines, find_scorer, group_lengths, make_score_report, predict_and_score
from qkv.tasks.text_model import TextModel

WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "the",
    "lazy",
    "dog",
    "and",
    "runs",
    "in",
    "Paris",
    "with",
    "Anna",
]
SENTENCES = [" ".join(TEXT.split()[i : i + 6]) for i in range(9)]


def head(**values: Any) -> qkv.HeadConfig:
    return qkv.HeadConfig(**values)


def listed(make: Any) -> list[dict[str, Any]]:
    return [make(i, SENTENCES[i % 9]) for i in range(12)]


CASES: dict[str, tuple[Any, list[dict[str, Any]], str]] = {
    "label": (
        lambda: encoder(head(kind="classify", labels=("a", "b", "c"))),
        listed(lambda i, text: {"text": text, "label": "abc"[i % 3]}),
        "accuracy",
    ),
    "labels": (
        lambda: encoder(head(kind="classify", labels=("a", "b", "c"), multi_label=True)),
        listed(lambda i, text: {"text": text, "label": ["a", "b"][: i % 3]}),
        "micro_f1",
    ),
    "number": (
        lambda: encoder(head(kind="classify", outputs=1)),
        listed(lambda i, text: {"text": text, "second": text, "score": i}),
        "spearman",
    ),
    "entities": (
        lambda: encoder(head(kind="tag", labels=("O", "B-PER", "I-PER"))),
        listed(lambda i, text: {"tokens": text.split(), "tags": ["B-PER", "I-PER", "O", "O", "O", "O"]}),
        "f1",
    ),
    "words": (
        lambda: encoder(head(kind="tag", labels=("NOUN", "VERB"))),
        listed(lambda i, text: {"tokens": text.split(), "tags": ["NOUN", "VERB"] * 3}),
        "accuracy",
    ),
    "text": (seq2seq, listed(lambda i, text: {"source": text, "target": text[::-1]}), "bleu"),
    "short text": (decoder, listed(lambda i, text: {"source": text, "target": text[:2]}), "exact_match"),
    "answer": (
        lambda: encoder(head(kind="span", outputs=2)),
        listed(lambda i, text: {"question": "the fox?", "context": f"{text}. no.", "answers": [text], "starts": [0]}),
        "f1",
    ),
    "similarity": (
        lambda: encoder(head(kind="embed")),
        listed(lambda i, text: {"first": text, "second": text[::-1], "score": i}),
        "spearman",
    ),
    "retrieval": (
        lambda: encoder(head(kind="embed")),
        listed(lambda i, text: {"first": text, "second": f"{text} {i}"}),
        "retrieval_accuracy",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_predictions_of_each_task_are_scored_beside_baselines(name: str) -> None:
    make, rows, metric = CASES[name]
    model, found = TextModel(*parts_of(make())), records(rows)
    if name == "short text":  # a decoder's task is language modelling, so its scorer is made for text to text
        model = TextModel(*parts_of(seq2seq()))
    scorer = find_scorer(model.config, found)
    assert scorer.metric == metric
    expected = [scorer.expected(one) for one in found]
    right = [one[0] if name == "answer" else one for one in expected]
    assert scorer.score_each(right, expected) == pytest.approx([1.0] * 12)
    best = 100 if metric == "bleu" else 1
    assert scorer.measure(right, expected) == pytest.approx(best)
    predictions = predict_and_score(scorer, model, found, max_seconds=60, max_records=8)
    assert len(predictions.records) == len(predictions.predicted) == 8
    add_baselines(predictions, found)
    assert predictions.baseline_predictions.keys() == applicable_baselines(scorer, found).keys()
    report = make_score_report(predictions, 12, 12, None)
    assert [one.value for one in report.baselines] == sorted(one.value for one in report.baselines)
    assert bool(report.classes) == scorer.has_classes
    errors = list_errors(predictions)
    assert all(one.score < 0.5 for one in (*errors.worst, *errors.most_confident))
    assert all(scorer.show(value) for value in (*predictions.predicted[:1], *expected[:1])) or name in (
        "text",
        "short text",
    )


@pytest.mark.parametrize("metric", ["", "accuracy", "macro_f1", "matthews"])
def test_the_score_is_that_of_an_evaluation(metric: str) -> None:
    make, rows, _ = CASES["label"]
    model, found = TextModel(*parts_of(make())), records(rows)
    scorer = find_scorer(model.config, found, metric=metric)
    made = predict_and_score(scorer, model, found, 60, 100)
    chosen = [metric] if metric else []
    whole = evaluate(model.network, model.tokenizer, model.config, found, metrics=chosen).metrics[metric or "accuracy"]
    assert scorer.measure(made.predicted, made.expected) == pytest.approx(whole)


def test_spaces_around_a_short_text_are_no_error() -> None:
    scorer = find_scorer(seq2seq().config, records([{"source": "a", "target": "b "}]))
    assert scorer.measure(["b", "c"], ["b ", "b "]) == 0.5
    assert scorer.score_each(["b", "c"], ["b ", "b "]) == [1.0, 0.0]


def test_the_metric_of_the_recipe_is_reported() -> None:
    pytest.importorskip("rouge_score", reason='computes ROUGE; pip install "qkv[rouge]"')
    asked = records([{"source": "The cat sat. It slept.", "target": "a cat that sat on the mat and slept"}])
    config = seq2seq().config
    usual, chosen = find_scorer(config, asked), find_scorer(config, asked, metric="rougeL")
    assert (usual.metric, chosen.metric) == ("bleu", "rougeL")
    assert chosen.measure(["the cat sat"], ["the cat sat down"]) == pytest.approx(6 / 7)  # precision 1, recall 3/4
    assert "first sentence of the source" not in applicable_baselines(usual, asked)
    lead = applicable_baselines(chosen, asked)["first sentence of the source"]
    assert lead.predict(chosen, [], asked) == ["The cat sat."]
    unknown = find_scorer(config, asked, metric="ter")  # lower is better
    assert unknown.metric == "bleu"


def test_texts_without_words_have_an_svm_baseline() -> None:
    pytest.importorskip("sklearn", reason='trains a linear SVM; pip install "qkv[baseline]"')
    assert predict_svm(["!!!", "???", "..."], ["a", "b", "b"], ["x", "!"]) == ["b", "b"]
    assert predict_svm(["!!!", "red", "blue"], ["a", "a", "b"], ["red", "blue"]) == ["a", "b"]  # a negative control


def test_vowel_signs_tell_words_apart_in_the_svm_baseline() -> None:
    pytest.importorskip("sklearn", reason='trains a linear SVM; pip install "qkv[baseline]"')
    assert predict_svm(["दिन", "दान", "दान"], ["day", "gift", "gift"], ["दिन", "दान"]) == ["day", "gift"]


def test_baselines_predict_what_they_say() -> None:
    training = records(
        [{"text": "red rose", "label": "a"}, {"text": "blue sea", "label": "b"}, {"text": "x", "label": "b"}]
    )
    asked = records([{"text": "a rose", "label": "a"}, {"text": "the sea", "label": "b"}])
    config = encoder(head(kind="classify", labels=("a", "b"))).config
    scorer = find_scorer(config, asked)
    every = scorer.baselines
    assert every["most frequent class"].predict(scorer, training, asked) == ["b", "b"]
    assert every["nearest text (BM25)"].predict(scorer, training, asked) == ["a", "b"]
    pairs = records([{"source": "ein Haus", "target": "a house"}, {"source": "ein Hund", "target": "a dog"}])
    text = find_scorer(seq2seq().config, pairs)
    every = text.baselines
    assert every["copy of the source"].predict(text, pairs, pairs) == ["ein Haus", "ein Hund"]
    assert every["nearest source's target (BM25)"].predict(text, pairs, pairs[::-1]) == ["a dog", "a house"]
    tagged = records([{"tokens": ["Anna", "runs"], "tags": ["B-PER", "O"]}, {"tokens": ["Anna"], "tags": ["B-PER"]}])
    tags = find_scorer(encoder(head(kind="tag", labels=("O", "B-PER"))).config, tagged)
    new = records([{"tokens": ["anna", "sings"], "tags": ["O", "O"]}])
    assert tags.baselines["most frequent tag of each word"].predict(tags, tagged, new) == [("B-PER", "O")]


def test_a_unigram_model_is_better_on_frequent_tokens() -> None:
    tokenizer = decoder().tokenizer
    assert tokenizer is not None
    common, rare = (unigram_scores(tokenizer, ["aaaab" * 20], [text])[0] for text in ("aaaa", "bbbb"))
    assert 0 < common < rare


def test_lengths_are_grouped_only_if_there_are_enough_records() -> None:
    make, _, _ = CASES["label"]
    model = TextModel(*parts_of(make()))
    many = records([{"text": " ".join(["fox"] * (1 + i % 20)), "label": "a"} for i in range(60)])
    scorer = find_scorer(model.config, many)
    assert scorer is not None
    groups = group_lengths(predict_and_score(scorer, model, many, 60, 100))
    assert sum(one.records for one in groups) == 60
    assert all(one.longest < two.shortest for one, two in pairwise(groups))
    assert group_lengths(predict_and_score(scorer, model, many[:20], 60, 100)) == ()


def test_language_models_have_no_scorer() -> None:
    assert find_scorer(decoder().config, records([{"text": "a fox"}])) is None
    assert find_scorer(seq2seq().config, records([{"text": "a fox"}])) is None
