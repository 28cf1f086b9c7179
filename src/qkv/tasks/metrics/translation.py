"""BLEU (Papineni et al. 2002), chrF (Popović 2015) and TER (Snover et al. 2006), computed by the sacrebleu library.

Published BLEU scores differ in their tokenization, so each tokenization has a name:

| name             | words                                      | the same number as                          |
|------------------|--------------------------------------------|---------------------------------------------|
| `bleu`           | split by mteval-v13a, case kept            | sacreBLEU's default, without smoothing      |
| `bleu_lowercase` | the same in lower case                     | sacreBLEU with `-lc`                        |
| `tokenised_bleu` | split at spaces                            | multi-bleu.perl; sacreBLEU with `-tok none` |
| `sacrebleu`      | as `bleu`                                  | sacreBLEU's default                         |

Without smoothing, the score is 0 if no 4-gram matches. Smoothing only changes the scores of such small corpora.
`metric_signatures` returns sacreBLEU's signatures, which say how a score was computed.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from qkv.tasks.metrics.bootstrap import Score
from qkv.tasks.metrics.text import References

BLEU_OPTIONS: dict[str, dict[str, Any]] = {
    "bleu": {"smooth_method": "none"},
    "bleu_lowercase": {"smooth_method": "none", "lowercase": True},
    "tokenised_bleu": {"smooth_method": "none", "tokenize": "none", "force": True},
    "sacrebleu": {},
}


def bleu(predictions: Sequence[str], references: References) -> Score:
    """BLEU-4 on words as mteval-v13a splits them, case kept.

    >>> round(bleu(["The cat sat on the mat."], [["The cat sat on a mat."]]), 2)
    48.89
    """
    return corpus_score("bleu", predictions, references)


def bleu_lowercase(predictions: Sequence[str], references: References) -> Score:
    """`bleu` in lower case."""
    return corpus_score("bleu_lowercase", predictions, references)


def tokenised_bleu(predictions: Sequence[str], references: References) -> Score:
    """BLEU-4 on the words between spaces, as multi-bleu.perl scores tokenised texts."""
    return corpus_score("tokenised_bleu", predictions, references)


def sacrebleu(predictions: Sequence[str], references: References) -> Score:
    """BLEU as the sacrebleu library scores it by default."""
    return corpus_score("sacrebleu", predictions, references)


def chrf(predictions: Sequence[str], references: References) -> Score:
    """chrF, an F-score over characters, as the sacrebleu library scores it by default (chrF2)."""
    return corpus_score("chrf", predictions, references)


def ter(predictions: Sequence[str], references: References) -> Score:
    """The translation edit rate: edits, including moved phrases, per 100 words of the references; lower is better.

    >>> round(ter(["the cat sat on the mat"], [["the cat sat on a mat"]]), 2)      # one of six words
    16.67
    """
    return corpus_score("ter", predictions, references)


def corpus_score(name: str, predictions: Sequence[str], references: References) -> Score:
    """The score of a metric of this file. Each text is a unit; its statistics, such as n-gram counts, can be summed."""
    metric = _make_metric(name)
    # The library has no public function that returns the statistics of each text.
    statistics = metric._extract_corpus_statistics(list(predictions), transpose_references(references))
    table = np.array(statistics, np.float64)

    def weighted(weights: np.ndarray) -> float:
        score: float = metric._compute_score_from_stats((weights @ table).tolist()).score
        return score

    return Score(len(table), weighted)


def metric_signatures(names: Sequence[str]) -> dict[str, str]:
    """sacreBLEU's signatures of the metrics that sacreBLEU computes, for one reference per text.

    >>> metric_signatures(["exact_match", "chrf"])["chrf"].partition("|version")[0]
    'nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no'
    """
    signatures = {}
    for name in names:
        if name in (*BLEU_OPTIONS, "chrf", "ter"):
            metric = _make_metric(name)
            metric.corpus_score(["a"], [["a"]])  # the signature needs the number of references
            signatures[name] = str(metric.get_signature())
    return signatures


def _make_metric(name: str) -> Any:
    library: Any = import_module("sacrebleu.metrics")  # here, because `import qkv` should stay fast
    others = {"chrf": library.CHRF, "ter": library.TER}
    return others[name]() if name in others else library.BLEU(**BLEU_OPTIONS[name])


def transpose_references(references: References) -> list[list[str | None]]:
    """Transpose references from one list per text to one list per reference number, as sacrebleu expects them.

    A text with fewer references than others has None in the remaining lists.

    >>> transpose_references([["a", "b"], ["c"]])
    [['a', 'c'], ['b', None]]
    """
    most = max(map(len, references), default=0)
    return [[several[number] if number < len(several) else None for several in references] for number in range(most)]
