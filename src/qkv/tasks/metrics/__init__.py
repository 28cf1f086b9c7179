"""Metrics: numbers that compare predicted texts, labels, spans or scores with the expected ones.

    text      exact match, word error rate          translation  BLEU with three tokenizations, chrF, TER
    rouge     ROUGE-1, ROUGE-2, ROUGE-L             answers      SQuAD's exact match and F1
    labels    accuracy, macro F1, Matthews          entities     F1 of whole entities in BIO tags
    numbers   correlations, perplexity, bits        retrieval    nDCG, MAP, recall at k
    report    scores by class, confusion matrix     bootstrap    confidence intervals, paired comparison

All metrics are plain functions on lists, without torch. They return a `Score`, a float that the bootstrap can compute
again for other samples of the records. BLEU, chrF and TER lie between 0 and 100, fractions between 0 and 1.
"""

from typing import TYPE_CHECKING

from qkv.lazy import lazy_names

if TYPE_CHECKING:
    from qkv.tasks.metrics.answers import answer_exact_match, answer_f1
    from qkv.tasks.metrics.bootstrap import Difference, Interval, compare_metrics, confidence_intervals
    from qkv.tasks.metrics.class_counts import ClassCounts, ClassScores
    from qkv.tasks.metrics.entities import entity_counts, entity_scores, extract_entities, is_entity_tagging
    from qkv.tasks.metrics.labels import accuracy, label_counts, label_set_scores, macro_f1, matthews
    from qkv.tasks.metrics.numbers import bits_per_unit, pearson, perplexity, spearman
    from qkv.tasks.metrics.report import ClassReport, make_class_report
    from qkv.tasks.metrics.retrieval import mean_average_precision, mean_reciprocal_rank, ndcg, recall_at
    from qkv.tasks.metrics.rouge import has_rouge, rouge1, rouge2, rouge_signatures, rougeL
    from qkv.tasks.metrics.score import Score, mean_score, ratio_score
    from qkv.tasks.metrics.text import exact_match, word_error_rate
    from qkv.tasks.metrics.translation import (
        bleu,
        bleu_lowercase,
        chrf,
        metric_signatures,
        sacrebleu,
        ter,
        tokenised_bleu,
    )
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "answers": "answer_exact_match answer_f1",
            "translation": "bleu bleu_lowercase chrf metric_signatures sacrebleu ter tokenised_bleu",
            "bootstrap": "Difference Interval compare_metrics confidence_intervals",
            "class_counts": "ClassCounts ClassScores",
            "entities": "entity_counts entity_scores extract_entities is_entity_tagging",
            "labels": "accuracy label_counts label_set_scores macro_f1 matthews",
            "numbers": "bits_per_unit pearson perplexity spearman",
            "report": "ClassReport make_class_report",
            "retrieval": "mean_average_precision mean_reciprocal_rank ndcg recall_at",
            "rouge": "has_rouge rouge1 rouge2 rouge_signatures rougeL",
            "score": "Score mean_score ratio_score",
            "text": "exact_match word_error_rate",
        },
    )

__all__ = [
    "ClassCounts",
    "ClassReport",
    "ClassScores",
    "Difference",
    "Interval",
    "Score",
    "accuracy",
    "answer_exact_match",
    "answer_f1",
    "bits_per_unit",
    "bleu",
    "bleu_lowercase",
    "chrf",
    "compare_metrics",
    "confidence_intervals",
    "entity_counts",
    "entity_scores",
    "exact_match",
    "extract_entities",
    "has_rouge",
    "is_entity_tagging",
    "label_counts",
    "label_set_scores",
    "macro_f1",
    "make_class_report",
    "matthews",
    "mean_average_precision",
    "mean_reciprocal_rank",
    "mean_score",
    "metric_signatures",
    "ndcg",
    "pearson",
    "perplexity",
    "ratio_score",
    "recall_at",
    "rouge1",
    "rouge2",
    "rougeL",
    "rouge_signatures",
    "sacrebleu",
    "spearman",
    "ter",
    "tokenised_bleu",
    "word_error_rate",
]
