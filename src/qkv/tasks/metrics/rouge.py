"""ROUGE (Lin 2004): n-grams and subsequences that a summary shares with a reference, by the package rouge-score.

`rouge1` and `rouge2` are the F1 of single words and of pairs of words, `rougeL` that of the longest common subsequence.
Words are in lower case and stemmed. With several references, the best one counts.
"""

from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from qkv.errors import UsageError
from qkv.tasks.metrics.score import Score, mean_score
from qkv.tasks.metrics.text import References

ROUGE_NAMES = ("rouge1", "rouge2", "rougeL")


def has_rouge() -> bool:
    """Whether the package rouge-score is installed."""
    return find_spec("rouge_score") is not None


def rouge1(predictions: Sequence[str], references: References) -> Score:
    """F1 of words."""
    return _rouge("rouge1", predictions, references)


def rouge2(predictions: Sequence[str], references: References) -> Score:
    """F1 of pairs of neighbouring words."""
    return _rouge("rouge2", predictions, references)


def rougeL(predictions: Sequence[str], references: References) -> Score:
    """F1 of the longest common subsequence of words."""
    return _rouge("rougeL", predictions, references)


def rouge_signatures(names: Sequence[str]) -> dict[str, str]:
    """How the ROUGE scores among these metrics were computed."""
    chosen = [name for name in names if name in ROUGE_NAMES]
    return {name: f"F1|stemmed:yes|rouge-score:{version('rouge_score')}" for name in chosen}


def _rouge(name: str, predictions: Sequence[str], references: References) -> Score:
    if not has_rouge():
        raise UsageError(f"{name} needs the package rouge-score; install it with: pip install 'qkv[rouge]'")
    scorer: Any = import_module("rouge_score.rouge_scorer").RougeScorer([name], use_stemmer=True)
    pairs = zip(predictions, references, strict=True)
    return mean_score([scorer.score_multi(list(several), text)[name].fmeasure for text, several in pairs])
