"""How metrics are written: their names in a sentence, and the scale of their values."""

from typing import Literal

Scale = Literal["0 to 100", "plain", "fraction"]
"""A score from 0 to 100, a number that is written as it is, or a fraction, which is written as a percentage."""

FROM_0_TO_100 = ("bleu", "bleu_lowercase", "tokenised_bleu", "sacrebleu", "chrf", "ter")
PLAIN_METRICS = (
    *("loss", "perplexity", "bits_per_character", "bits_per_byte"),
    *("matthews", "pearson", "spearman", "mean_reciprocal_rank", "ndcg", "mean_average_precision"),
)
METRIC_NAMES = {
    "f1": "F1",
    "micro_f1": "micro F1",
    "macro_f1": "macro F1",
    "matthews": "Matthews' correlation",
    "bleu": "BLEU",
    "bleu_lowercase": "BLEU in lower case",
    "tokenised_bleu": "tokenised BLEU",
    "sacrebleu": "sacreBLEU",
    "chrf": "chrF",
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
}
"""Metrics whose name in a sentence is not their name in a recipe without underscores."""


def find_scale(metric: str) -> Scale:
    """The scale of a metric; for a metric of a search, without the cutoff k.

    >>> find_scale("bleu"), find_scale("ndcg@10"), find_scale("accuracy")
    ('0 to 100', 'plain', 'fraction')
    """
    if metric in FROM_0_TO_100:
        return "0 to 100"
    return "plain" if metric.partition("@")[0] in PLAIN_METRICS else "fraction"


def name_metric(metric: str) -> str:
    """A metric in a sentence.

    >>> name_metric("rougeL"), name_metric("exact_match")
    ('ROUGE-L', 'exact match')
    """
    return METRIC_NAMES.get(metric, metric.replace("_", " "))


def format_score(metric: str, value: float, extra_digits: int = 0) -> str:
    """A score in its usual notation. Percentages have one digit after the point; others may have extra digits.

    >>> format_score("accuracy", 0.9512), format_score("bleu", 41.018), format_score("loss", 1.46971)
    ('95.1 %', '41.0', '1.470')
    >>> format_score("bleu", 41.018, extra_digits=1), format_score("spearman", 0.82034, extra_digits=1)
    ('41.02', '0.8203')
    """
    scale = find_scale(metric)
    if scale == "fraction":
        return f"{100 * value:.1f} %"
    return f"{value:.{(3 if scale == 'plain' else 1) + extra_digits}f}"
