"""BLEU (Papineni et al. 2002) and chrF (Popović 2015) of a whole corpus, computed by the sacrebleu library.

Published BLEU scores differ in their tokenization, so each tokenization has a name:

| name             | words                                      | the same number as                          |
|------------------|--------------------------------------------|---------------------------------------------|
| `bleu`           | split by mteval-v13a, case kept            | sacreBLEU's default, without smoothing      |
| `bleu_lowercase` | the same in lower case                     | sacreBLEU with `-lc`                        |
| `tokenised_bleu` | split at spaces                            | multi-bleu.perl; sacreBLEU with `-tok none` |
| `sacrebleu`      | as `bleu`                                  | sacreBLEU's default                         |

Without smoothing, the score is 0 if no 4-gram matches. Smoothing changes only the scores of such tiny corpora.
`metric_signatures` returns sacreBLEU's signatures, which say how a score was computed.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from qkv.tasks.metrics.text import References

BLEU_OPTIONS: dict[str, dict[str, Any]] = {
    "bleu": {"smooth_method": "none"},
    "bleu_lowercase": {"smooth_method": "none", "lowercase": True},
    "tokenised_bleu": {"smooth_method": "none", "tokenize": "none", "force": True},
    "sacrebleu": {},
}


def bleu(predictions: Sequence[str], references: References) -> float:
    """BLEU-4 on words as mteval-v13a splits them, case kept.

    >>> round(bleu(["The cat sat on the mat."], [["The cat sat on a mat."]]), 2)
    48.89
    """
    return corpus_score("bleu", predictions, references)[0]


def bleu_lowercase(predictions: Sequence[str], references: References) -> float:
    """`bleu` in lower case."""
    return corpus_score("bleu_lowercase", predictions, references)[0]


def tokenised_bleu(predictions: Sequence[str], references: References) -> float:
    """BLEU-4 on the words between spaces, as multi-bleu.perl scores tokenised texts."""
    return corpus_score("tokenised_bleu", predictions, references)[0]


def sacrebleu(predictions: Sequence[str], references: References) -> float:
    """BLEU as the sacrebleu library scores it by default."""
    return corpus_score("sacrebleu", predictions, references)[0]


def chrf(predictions: Sequence[str], references: References) -> float:
    """chrF, an F-score over characters, as the sacrebleu library scores it by default (chrF2)."""
    return corpus_score("chrf", predictions, references)[0]


def corpus_score(name: str, predictions: Sequence[str], references: References) -> tuple[float, str]:
    """The score of a metric of this file, and sacreBLEU's signature of it."""
    library: Any = import_module("sacrebleu.metrics")  # here, because `import qkv` should stay fast
    metric = library.CHRF() if name == "chrf" else library.BLEU(**BLEU_OPTIONS[name])
    score: float = metric.corpus_score(list(predictions), transpose_references(references)).score
    return score, str(metric.get_signature())


def metric_signatures(names: Sequence[str]) -> dict[str, str]:
    """sacreBLEU's signatures of those metrics that it computes, for one reference per text.

    >>> metric_signatures(["exact_match", "chrf"])["chrf"].partition("|version")[0]
    'nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no'
    """
    computed = [name for name in names if name in BLEU_OPTIONS or name == "chrf"]
    return {name: corpus_score(name, ["a"], [["a"]])[1] for name in computed}


def transpose_references(references: References) -> list[list[str | None]]:
    """Transpose references from one list per text to one list per reference number, as sacrebleu expects them.

    A text with fewer references than others has None in the remaining lists.

    >>> transpose_references([["a", "b"], ["c"]])
    [['a', 'c'], ['b', None]]
    """
    most = max(map(len, references), default=0)
    return [[several[number] if number < len(several) else None for several in references] for number in range(most)]
