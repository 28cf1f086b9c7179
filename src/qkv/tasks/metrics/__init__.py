"""Metrics: numbers that compare predicted texts, labels, spans or scores with the expected ones.

    text      exact match, word errors, ROUGE       translation  BLEU with three tokenizations, chrF, TER
    labels    accuracy, F1, confusion matrix        entities     F1 of whole entities in BIO tags
    numbers   correlations, perplexity, bits        retrieval    nDCG, MAP, recall at k
    bootstrap scores that can be resampled, confidence intervals, paired comparison

All metrics are plain functions on lists, without torch. They return a `Score`, a float that the bootstrap can compute
again for other samples of the records. BLEU, chrF and TER lie between 0 and 100, fractions between 0 and 1.
"""

from typing import TYPE_CHECKING

from qkv.lazy import lazy_names

if TYPE_CHECKING:
    from qkv.tasks.metrics.bootstrap import (
        Difference,
        Interval,
        Score,
        compare_metrics,
        confidence_intervals,
        mean_score,
        ratio_score,
    )
    from qkv.tasks.metrics.entities import entity_counts, entity_scores, extract_entities, is_entity_tagging
    from qkv.tasks.metrics.labels import (
        ClassCounts,
        ClassReport,
        ClassScores,
        accuracy,
        label_counts,
        label_set_scores,
        macro_f1,
        make_class_report,
        matthews,
    )
    from qkv.tasks.metrics.numbers import bits_per_unit, pearson, perplexity, spearman
    from qkv.tasks.metrics.retrieval import mean_average_precision, mean_reciprocal_rank, ndcg, recall_at
    from qkv.tasks.metrics.text import (
        answer_exact_match,
        answer_f1,
        character_error_rate,
        exact_match,
        has_rouge,
        rouge1,
        rouge2,
        rouge_signatures,
        rougeL,
        word_accuracy,
        word_error_rate,
    )
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
            "bootstrap": "Difference Interval Score compare_metrics confidence_intervals mean_score ratio_score",
            "entities": "entity_counts entity_scores extract_entities is_entity_tagging",
            "labels": "ClassCounts ClassReport ClassScores accuracy label_counts label_set_scores macro_f1 "
            "make_class_report matthews",
            "numbers": "bits_per_unit pearson perplexity spearman",
            "retrieval": "mean_average_precision mean_reciprocal_rank ndcg recall_at",
            "text": "answer_exact_match answer_f1 character_error_rate exact_match has_rouge rouge1 rouge2 rougeL "
            "rouge_signatures word_accuracy word_error_rate",
            "translation": "bleu bleu_lowercase chrf metric_signatures sacrebleu ter tokenised_bleu",
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
    "character_error_rate",
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
    "word_accuracy",
    "word_error_rate",
]
