"""Metrics: numbers that compare predicted texts, labels, spans or scores with the expected ones.

    text      exact match, word error rate          bleu      BLEU with three tokenizations, and chrF
    labels    accuracy, macro F1, Matthews          entities  F1 of whole entities in BIO tags
    answers   SQuAD's exact match and F1            numbers   correlations, perplexity, bits

All metrics are plain functions on lists, without torch. Fractions lie between 0 and 1, BLEU and chrF between 0 and 100.
"""

from qkv.tasks.metrics.answers import answer_exact_match, answer_f1
from qkv.tasks.metrics.bleu import bleu, bleu_lowercase, chrf, metric_signatures, sacrebleu, tokenised_bleu
from qkv.tasks.metrics.entities import entity_scores, extract_entities, is_entity_tagging
from qkv.tasks.metrics.labels import accuracy, label_set_scores, macro_f1, matthews
from qkv.tasks.metrics.numbers import bits_per_unit, pearson, perplexity, spearman
from qkv.tasks.metrics.text import exact_match, word_error_rate

__all__ = [
    "accuracy",
    "answer_exact_match",
    "answer_f1",
    "bits_per_unit",
    "bleu",
    "bleu_lowercase",
    "chrf",
    "entity_scores",
    "exact_match",
    "extract_entities",
    "is_entity_tagging",
    "label_set_scores",
    "macro_f1",
    "matthews",
    "metric_signatures",
    "pearson",
    "perplexity",
    "sacrebleu",
    "spearman",
    "tokenised_bleu",
    "word_error_rate",
]
