"""Simple predictions to compare a model with: if the model is hardly better, it has learned little.

| task               | baselines                                                                                     |
|--------------------|-----------------------------------------------------------------------------------------------|
| one class          | the most frequent class; the nearest training text's class; TF-IDF with a linear SVM           |
| several labels     | the most frequent labels; the nearest training text's labels                                   |
| a score            | the nearest training text's score; of a pair, the words in common                              |
| tags               | the most frequent tag of each word                                                             |
| text to text       | a copy of the source, or its first sentence for a summary; the target of the nearest source    |
| answers            | the sentence that shares most words with the question                                          |
| embeddings         | the words in common; the rank by BM25                                                          |
| language modelling | a unigram model of the tokens                                                                  |

The nearest text is the one with the highest BM25 score.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from qkv.data.records import Record
from qkv.tasks.baseline import BASELINE_NAME, predict_svm
from qkv.tasks.judges import (
    AnswerJudge,
    Judge,
    LabelJudge,
    LabelSetJudge,
    NumberJudge,
    RetrievalJudge,
    SimilarityJudge,
    TagJudge,
    TextJudge,
)
from qkv.tasks.metrics.rouge import ROUGE_NAMES
from qkv.text import Tokenizer
from qkv.text.bm25 import BM25, InvertedIndexBuilder, normalized_words
from qkv.text.sentences import split_sentences

MAX_LINEAR_WORK = 5_000_000
"""The largest product of records and classes that the SVM is trained on."""

Baseline = Callable[[Judge, Sequence[Record], Sequence[Record]], list[Any]]
"""(judge, training records, evaluation records) → a prediction for each evaluation record."""


def predict_most_frequent(judge: Judge, training: Sequence[Record], records: Sequence[Record]) -> list[Any]:
    """The most frequent class, or set of labels, of the training data."""
    (best, _), *_ = Counter(map(judge.expected, training)).most_common(1)
    return [best] * len(records)


def predict_nearest(judge: Judge, training: Sequence[Record], records: Sequence[Record]) -> list[Any]:
    """The label or target of the training text with the highest BM25 score."""
    index = index_texts([judge.text(one) for one in training])
    return [judge.expected(training[int(index.scores(judge.text(one)).argmax())]) for one in records]


def predict_linear(judge: Judge, training: Sequence[Record], records: Sequence[Record]) -> list[Any]:
    """The class by a linear SVM on TF-IDF features, trained on a subset of many records, so that it takes seconds."""
    num_classes = len(set(map(judge.expected, training)))
    training = training[:: 1 + len(training) * num_classes // MAX_LINEAR_WORK]
    texts, labels = [judge.text(one) for one in training], [judge.expected(one) for one in training]
    return predict_svm(texts, labels, [judge.text(one) for one in records])


def predict_word_tags(judge: Judge, training: Sequence[Record], records: Sequence[Record]) -> list[Any]:
    """The most frequent tag of each word; of an unknown word, the most frequent tag of words that occur once."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for record in training:
        for word, tag in zip(record.fields["tokens"], judge.expected(record), strict=True):
            counts[str(word).lower()][tag] += 1
    rare = Counter(tag for found in counts.values() if found.total() == 1 for tag in found)
    every = Counter(tag for found in counts.values() for tag in found.elements())
    default = (rare or every).most_common(1)[0][0]
    best = {word: found.most_common(1)[0][0] for word, found in counts.items()}
    return [tuple(best.get(str(word).lower(), default) for word in one.fields["tokens"]) for one in records]


def copy_source(judge: Judge, training: Sequence[Record], records: Sequence[Record]) -> list[Any]:
    """The source itself."""
    return [one.fields["source"] for one in records]


def copy_first_sentence(judge: Judge, training: Sequence[Record], records: Sequence[Record]) -> list[Any]:
    """The first sentence of the source, the usual baseline of summaries (lead-1)."""
    sources = [one.fields["source"] for one in records]
    return [next((text[start:end] for start, end in split_sentences(text)), "") for text in sources]


def predict_nearest_sentence(judge: Judge, training: Sequence[Record], records: Sequence[Record]) -> list[Any]:
    """The sentence of the passage that shares most words with the question."""
    found = []
    for record in records:
        asked = set(normalized_words(record.fields["question"]))
        context = record.fields["context"]
        sentences = [context[start:end] for start, end in split_sentences(context)] or [""]
        found.append(max(sentences, key=lambda sentence: len(asked & set(normalized_words(sentence)))))
    return found


def count_common_words(judge: Judge, training: Sequence[Record], records: Sequence[Record]) -> list[Any]:
    """The fraction of words that the two texts of a pair have in common (Jaccard)."""
    names = judge.input_fields
    pairs = [[set(normalized_words(str(one.fields.get(name, "")))) for name in names] for one in records]
    return [len(one & two) / max(1, len(one | two)) for one, two in pairs]


def rank_by_words(judge: Judge, training: Sequence[Record], records: Sequence[Record]) -> list[Any]:
    """The rank of each first text's own second text by BM25. Ties count in favour of the text's own."""
    candidates = list(dict.fromkeys(one.fields["second"] for one in records))
    number, index = {text: i for i, text in enumerate(candidates)}, index_texts(candidates)
    found = []
    for record in records:
        scores = index.scores(record.fields["first"])
        found.append(1 + int((scores > scores[number[record.fields["second"]]]).sum()))
    return found


BASELINES: dict[type[Judge], dict[str, Baseline]] = {
    LabelJudge: {
        "most frequent class": predict_most_frequent,
        "nearest text (BM25)": predict_nearest,
        BASELINE_NAME: predict_linear,
    },
    LabelSetJudge: {"most frequent labels": predict_most_frequent, "nearest text (BM25)": predict_nearest},
    NumberJudge: {"nearest text (BM25)": predict_nearest, "words in common": count_common_words},
    SimilarityJudge: {"words in common": count_common_words},
    RetrievalJudge: {"BM25": rank_by_words},
    TagJudge: {"most frequent tag of each word": predict_word_tags},
    TextJudge: {
        "copy of the source": copy_source,
        "first sentence of the source": copy_first_sentence,
        "nearest source's target (BM25)": predict_nearest,
    },
    AnswerJudge: {"sentence nearest to the question": predict_nearest_sentence},
}
CHEAP = {
    *("most frequent class", "most frequent labels", "most frequent tag of each word"),
    *("copy of the source", "first sentence of the source"),
}
"""Baselines that take almost no time, for the last lines of `qkv train`."""


def applicable_baselines(judge: Judge, records: Sequence[Record], only_cheap: bool = False) -> dict[str, Baseline]:
    """The baselines of a task.

    The SVM needs scikit-learn, words in common need pairs of texts, and the first sentence is for summaries (ROUGE).
    """
    has_pairs = all(records and records[0].fields.get(name) for name in judge.input_fields)
    return {
        name: baseline
        for name, baseline in BASELINES[type(judge)].items()
        if (name != BASELINE_NAME or find_spec("sklearn") is not None)
        and (baseline is not count_common_words or has_pairs)
        and (baseline is not copy_first_sentence or judge.metric in ROUGE_NAMES)
        and (not only_cheap or name in CHEAP)
    }


def index_texts(texts: Sequence[str]) -> BM25:
    """The BM25 index of texts."""
    builder = InvertedIndexBuilder()
    for text in texts:
        builder.add(text)
    return BM25(builder.arrays())


def unigram_scores(tokenizer: Tokenizer, training: Sequence[str], texts: Sequence[str]) -> tuple[float, float]:
    """The loss per token and the accuracy of a unigram model, with add-one smoothing.

    The accuracy is that of always predicting the most frequent token.
    """
    counts = np.ones(tokenizer.vocab_size)
    for ids in tokenizer.encode_batch(list(training)):
        counts += np.bincount(np.asarray(ids, np.int64), minlength=len(counts))[: len(counts)]
    found = np.concatenate([np.zeros(0, np.int64), *(np.asarray(ids) for ids in tokenizer.encode_batch(list(texts)))])
    if not len(found):
        return math.nan, math.nan
    logs = np.log(counts) - math.log(counts.sum())
    return float(-logs[found].mean()), float((found == counts.argmax()).mean())
