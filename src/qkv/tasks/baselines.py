"""Simple predictions to compare a model with: if the model is hardly better, it has learned little.

| task               | baselines                                                                                     |
|--------------------|-----------------------------------------------------------------------------------------------|
| one class          | the most frequent class; the nearest training text's class; TF-IDF with a linear SVM           |
| class of an image  | the most frequent class; the class of the training image with the nearest pixels               |
| several labels     | the most frequent labels; the nearest training text's labels                                   |
| a score            | the nearest training text's score; for pairs, the words in common                             |
| tags               | the most frequent tag of each word                                                             |
| text to text       | a copy of the source, or its first sentence for a summary; the target of the nearest source    |
| answers            | the sentence that shares most words with the question                                          |
| embeddings         | the words in common; the rank by BM25                                                          |
| language modelling | a unigram model of the tokens                                                                  |

The nearest text is the one with the highest BM25 score. The linear SVM needs scikit-learn (the extra `baseline`). The
SVM trains in seconds and is hard to beat with little data, so compare the score of a classifier with it.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.data.problems import Problems
from qkv.data.records import Record
from qkv.text import Tokenizer
from qkv.text.bm25 import BM25, InvertedIndexBuilder, normalized_words
from qkv.text.sentences import split_sentences

if TYPE_CHECKING:
    from qkv.tasks.scorer import Baseline, TaskScorer
    from qkv.train.recipe.schema import Recipe

MAX_LINEAR_WORK = 5_000_000
"""The largest product of records and classes that the SVM is trained on."""
MAX_TRAINING_RECORDS = 50_000  # more are sampled, so that a baseline takes seconds
BASELINE_NAME = "TF-IDF + linear SVM"


def predict_most_frequent(scorer: "TaskScorer", training: Sequence[Record], records: Sequence[Record]) -> list[Any]:
    """Predict the most frequent class (or set of labels) of the training data."""
    (best, _), *_ = Counter(map(scorer.expected, training)).most_common(1)
    return [best] * len(records)


def predict_nearest(scorer: "TaskScorer", training: Sequence[Record], records: Sequence[Record]) -> list[Any]:
    """The label or target of the training text with the highest BM25 score."""
    index = index_texts([scorer.text(record) for record in training])
    return [scorer.expected(training[int(index.scores(scorer.text(record)).argmax())]) for record in records]


def predict_linear(scorer: "TaskScorer", training: Sequence[Record], records: Sequence[Record]) -> list[Any]:
    """The class by a linear SVM on TF-IDF features. If there are many records, it is trained on a subset, which takes
    seconds.
    """
    num_classes = len(set(map(scorer.expected, training)))
    training = training[:: 1 + len(training) * num_classes // MAX_LINEAR_WORK]
    texts, labels = [scorer.text(record) for record in training], [scorer.expected(record) for record in training]
    return predict_svm(texts, labels, [scorer.text(record) for record in records])


def predict_word_tags(scorer: "TaskScorer", training: Sequence[Record], records: Sequence[Record]) -> list[Any]:
    """The most frequent tag of each word. An unknown word gets the most frequent tag of words that occur once."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for record in training:
        for word, tag in zip(record.fields["tokens"], scorer.expected(record), strict=True):
            counts[str(word).lower()][tag] += 1
    rare = Counter(tag for found in counts.values() if found.total() == 1 for tag in found)
    every = Counter(tag for found in counts.values() for tag in found.elements())
    default = (rare or every).most_common(1)[0][0]
    best = {word: found.most_common(1)[0][0] for word, found in counts.items()}
    return [tuple(best.get(str(word).lower(), default) for word in one.fields["tokens"]) for one in records]


def copy_source(scorer: "TaskScorer", training: Sequence[Record], records: Sequence[Record]) -> list[Any]:
    """The source itself."""
    return [record.fields["source"] for record in records]


def copy_first_sentence(scorer: "TaskScorer", training: Sequence[Record], records: Sequence[Record]) -> list[Any]:
    """The first sentence of the source, the usual baseline of summaries (lead-1)."""
    sources = [record.fields["source"] for record in records]
    return [next((text[start:end] for start, end in split_sentences(text)), "") for text in sources]


def predict_nearest_sentence(scorer: "TaskScorer", training: Sequence[Record], records: Sequence[Record]) -> list[Any]:
    """The sentence of the passage that shares most words with the question."""
    found = []
    for record in records:
        asked = set(normalized_words(record.fields["question"]))
        context = record.fields["context"]
        sentences = [context[start:end] for start, end in split_sentences(context)] or [""]
        found.append(max(sentences, key=lambda sentence: len(asked & set(normalized_words(sentence)))))
    return found


def count_common_words(scorer: "TaskScorer", training: Sequence[Record], records: Sequence[Record]) -> list[Any]:
    """The fraction of words that the two texts of a pair have in common (Jaccard)."""
    names = scorer.input_fields[:2]
    pairs = [[set(normalized_words(str(record.fields.get(name, "")))) for name in names] for record in records]
    return [len(one & two) / max(1, len(one | two)) for one, two in pairs]


def rank_by_words(records: Sequence[Record]) -> list[int]:
    """For each pair, the rank of its second text by BM25 among all second texts. Ties count in favour of the pair."""
    candidates = list(dict.fromkeys(one.fields["second"] for one in records))
    number, index = {text: i for i, text in enumerate(candidates)}, index_texts(candidates)
    found = []
    for record in records:
        scores = index.scores(record.fields["first"])
        found.append(1 + int((scores > scores[number[record.fields["second"]]]).sum()))
    return found


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


def has_sklearn(scorer: "TaskScorer", records: Sequence[Record]) -> bool:
    """Whether scikit-learn is installed, and there are texts."""
    return find_spec("sklearn") is not None and reads_texts(scorer, records)


def reads_texts(scorer: "TaskScorer", records: Sequence[Record]) -> bool:
    """Whether the records have texts, not images or sounds."""
    return not any(isinstance(record.fields.get(name), bytes) for record in records[:1] for name in ("image", "audio"))


def has_images(scorer: "TaskScorer", records: Sequence[Record]) -> bool:
    """Whether the records have images."""
    return any(isinstance(record.fields.get("image"), bytes) for record in records[:1])


def predict_nearest_image(scorer: "TaskScorer", training: Sequence[Record], records: Sequence[Record]) -> list[Any]:
    """The label of the training image whose pixels, 16 × 16 of them, differ least."""
    from qkv.images.config import PatchesConfig
    from qkv.images.files import load_image

    config = PatchesConfig(size=16, patch=16)
    known, asked = (
        np.stack([load_image(one.fields["image"], config).reshape(-1) / 255 for one in side]).astype(np.float32)
        for side in (training, records)
    )
    distances = (known**2).sum(1) - 2 * asked @ known.T  # and the same number for all of them
    return [scorer.expected(training[i]) for i in distances.argmin(1)]


def has_pairs(scorer: "TaskScorer", records: Sequence[Record]) -> bool:
    """Whether the records are pairs of texts."""
    return all(records and isinstance(records[0].fields.get(name), str) for name in scorer.input_fields[:2])


def applicable_baselines(
    scorer: "TaskScorer", records: Sequence[Record], only_cheap: bool = False
) -> "dict[str, Baseline]":
    """The baselines of a task that can predict these records."""
    return {
        name: baseline
        for name, baseline in scorer.baselines.items()
        if baseline.applies(scorer, records) and (baseline.is_cheap or not only_cheap)
    }


def evaluate_baseline(
    scorer: "TaskScorer", recipe: "Recipe", records: Sequence[Record], names: Sequence[str]
) -> dict[str, float]:
    """Train the SVM on the training data of a classifier's recipe, and evaluate it on records with these metrics.

    Returns {} if the task has no such baseline, if it lacks one of the metrics, or if scikit-learn is not installed.
    """
    from qkv.tasks.prepare.sources import open_sources, sample_records

    baseline = applicable_baselines(scorer, records).get(BASELINE_NAME)
    if baseline is None or not set(names) <= set(scorer.selectable):
        return {}
    sources, unread = open_sources(recipe).train.values(), Problems(max_invalid_fraction=1)
    training = sample_records(chain.from_iterable(source.records(unread) for source in sources), MAX_TRAINING_RECORDS)
    known, asked = ([one for one in side if scorer.is_usable(one)] for side in (training, records))
    predicted, expected = baseline.predict(scorer, known, asked), list(map(scorer.expected, asked))
    return scorer.measure_all(names, predicted, expected, asked)


def index_texts(texts: Sequence[str]) -> BM25:
    """The BM25 index of texts."""
    builder = InvertedIndexBuilder()
    for text in texts:
        builder.add(text)
    return BM25(builder.arrays())


def unigram_scores(tokenizer: Tokenizer, training: Sequence[str], texts: Sequence[str]) -> tuple[float, float]:
    """The loss per token and the accuracy of a unigram model, with add-one smoothing.

    The accuracy is the frequency of the most frequent token.
    """
    counts = np.ones(tokenizer.vocab_size)
    for ids in tokenizer.encode_batch(list(training)):
        counts += np.bincount(np.asarray(ids, np.int64), minlength=len(counts))[: len(counts)]
    found = np.concatenate([np.zeros(0, np.int64), *(np.asarray(ids) for ids in tokenizer.encode_batch(list(texts)))])
    if not len(found):
        return math.nan, math.nan
    logs = np.log(counts) - math.log(counts.sum())
    return float(-logs[found].mean()), float((found == counts.argmax()).mean())
