"""A baseline for text classifiers: TF-IDF features of words and pairs of words, and a linear SVM.

It takes seconds to train and is hard to beat with little data, so a classifier's score is best read beside it. It needs
scikit-learn (the extra `baseline`) and the data that the run was trained on.
"""

from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from typing import Any

from qkv.data import Problems, Record
from qkv.tasks import metrics
from qkv.tasks.prepare.sources import open_sources, sample_records
from qkv.tasks.run.classify import METRICS, record_text
from qkv.tasks.run.example_batches import TextOrPair
from qkv.tasks.task import select_usable
from qkv.text.bm25 import normalized_words
from qkv.train.recipe.schema import Recipe

MAX_TRAINING_RECORDS = 50_000  # more are sampled, so that the baseline takes seconds
BASELINE_NAME = "TF-IDF + linear SVM"


def evaluate_baseline(recipe: Recipe, records: Sequence[Record], names: Sequence[str]) -> dict[str, float]:
    """Train the baseline on the training data of a classifier's recipe, and evaluate it on records with these metrics.

    Returns {} if the model is no classifier of labelled texts, or if scikit-learn is not installed.
    """
    is_classifier = recipe.objective.kind == "classification" and set(names) <= set(METRICS["label"])
    if not is_classifier or find_spec("sklearn") is None:
        return {}
    sources = open_sources(recipe).train.values()
    unread = Problems(max_invalid_fraction=1)
    training = sample_records(chain.from_iterable(source.records(unread) for source in sources), MAX_TRAINING_RECORDS)
    train_texts, train_labels = _split_labels(training)
    texts, labels = _split_labels(records)
    predictions = predict_svm(train_texts, train_labels, texts)
    return {name: getattr(metrics, name)(predictions, labels) for name in names}


def predict_svm(training: Sequence[str], labels: Sequence[str], texts: Sequence[str]) -> list[str]:
    """Train on texts with labels, and predict the labels of other texts. It needs scikit-learn.

    If the training texts have only one label or no words, the most frequent label is predicted.
    """
    if len(set(labels)) < 2 or not any(map(normalized_words, training)):
        return [Counter(labels).most_common(1)[0][0] if labels else ""] * len(texts)
    features: Any = import_module("sklearn.feature_extraction.text")
    vectorizer = features.TfidfVectorizer(
        tokenizer=normalized_words, token_pattern=None, lowercase=False, ngram_range=(1, 2), sublinear_tf=True
    )
    classifier: Any = import_module("sklearn.svm").LinearSVC(random_state=0)
    classifier.fit(vectorizer.fit_transform(training), labels)
    predictions: list[str] = classifier.predict(vectorizer.transform(texts)).tolist()
    return predictions


def _split_labels(records: Sequence[Record]) -> tuple[list[str], list[str]]:
    """The texts (a pair as one text) and labels of the records that have both."""
    usable, _ = select_usable(records, text=str, label=(str, int))
    return [_join(record_text(record)) for record in usable], [str(record.fields["label"]) for record in usable]


def _join(text: TextOrPair) -> str:
    return text if isinstance(text, str) else "\n".join(text)
