"""BLEU-4 (Papineni et al. 2002) over a whole corpus: how many of the predicted n-grams are in a reference.

Published scores differ in their tokenization, so each tokenization has a name:

| name             | words                                      | the same number as                          |
|------------------|--------------------------------------------|---------------------------------------------|
| `bleu`           | split by mteval-v13a, case kept            | sacreBLEU's default                         |
| `bleu_lowercase` | the same in lower case                     | sacreBLEU with `-lc`                        |
| `tokenised_bleu` | split at spaces                            | multi-bleu.perl; sacreBLEU with `-tok none` |

There is no smoothing: if no 4-gram matches, the score is 0 (sacreBLEU smooths the scores of tiny corpora). The metrics
`sacrebleu` and `chrf` are computed by the sacrebleu library, which the extra `translate` installs.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from qkv.errors import QkvError
from qkv.tasks.metrics.text import References

MAX_NGRAM = 4

HTML_ENTITIES = {"&quot;": '"', "&amp;": "&", "&lt;": "<", "&gt;": ">"}
# mteval-v13a: ASCII punctuation is a separate word; full stops, commas and hyphens depend on adjacent digits.
TOKENIZATION_RULES = [
    (re.compile(r"([{-~\[-` -&(-+:-@/])"), r" \1 "),
    (re.compile(r"([^0-9])([.,])"), r"\1 \2 "),
    (re.compile(r"([.,])([^0-9])"), r" \1 \2"),
    (re.compile(r"([0-9])(-)"), r"\1 \2 "),
]


def mteval_tokenize(text: str) -> list[str]:
    """The words of a text as mteval-v13a splits them.

    >>> mteval_tokenize("He paid 3.50, didn't he?")
    ['He', 'paid', '3.50', ',', "didn't", 'he', '?']
    """
    text = text.replace("<skipped>", "").replace("-\n", "").replace("\n", " ")
    for entity, character in HTML_ENTITIES.items():
        text = text.replace(entity, character)
    text = f" {text} "
    for pattern, replacement in TOKENIZATION_RULES:
        text = pattern.sub(replacement, text)
    return text.split()


def bleu(predictions: Sequence[str], references: References) -> float:
    """BLEU-4 on words as mteval-v13a splits them, case kept: sacreBLEU's default.

    >>> round(bleu(["The cat sat on the mat."], [["The cat sat on a mat."]]), 2)
    48.89
    """
    return corpus_bleu(predictions, references, mteval_tokenize)


def bleu_lowercase(predictions: Sequence[str], references: References) -> float:
    """`bleu` in lower case."""
    return corpus_bleu(predictions, references, lambda text: mteval_tokenize(text.lower()))


def tokenised_bleu(predictions: Sequence[str], references: References) -> float:
    """BLEU-4 on the words between spaces, as multi-bleu.perl scores tokenised texts."""
    return corpus_bleu(predictions, references, str.split)


def corpus_bleu(predictions: Sequence[str], references: References, tokenize: Callable[[str], list[str]]) -> float:
    """100 · brevity penalty · the geometric mean of the clipped precisions of 1- to 4-grams, over all texts together.

    The brevity penalty uses the reference whose length is closest to the prediction's (the shorter one, if two are
    equally close).
    """
    matched, total = [0] * MAX_NGRAM, [0] * MAX_NGRAM
    predicted_length = reference_length = 0
    for text, several in zip(predictions, references, strict=True):
        words = tokenize(text)
        expected = [tokenize(one) for one in several]
        predicted_length += len(words)
        reference_length += min((len(one) for one in expected), key=lambda size: (abs(size - len(words)), size))
        for n in range(1, MAX_NGRAM + 1):
            predicted = ngrams(words, n)
            allowed: Counter[tuple[str, ...]] = Counter()
            for one in expected:
                allowed |= ngrams(one, n)  # the maximum count over the references
            matched[n - 1] += (predicted & allowed).total()
            total[n - 1] += predicted.total()
    if min(matched) == 0:
        return 0.0
    precision = sum(math.log(right / all_) for right, all_ in zip(matched, total, strict=True)) / MAX_NGRAM
    brevity = min(0.0, 1 - reference_length / predicted_length)
    return 100 * math.exp(precision + brevity)


def ngrams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    """The number of occurrences of each n-gram."""
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def sacrebleu(predictions: Sequence[str], references: References) -> float:
    """BLEU as the sacrebleu library scores it by default."""
    score: float = import_sacrebleu().corpus_bleu(list(predictions), transpose_references(references)).score
    return score


def chrf(predictions: Sequence[str], references: References) -> float:
    """chrF (Popović 2015), an F-score over characters, as the sacrebleu library scores it by default (chrF2)."""
    score: float = import_sacrebleu().corpus_chrf(list(predictions), transpose_references(references)).score
    return score


def transpose_references(references: References) -> list[list[str | None]]:
    """Transpose references from one list per text to one list per reference number, as sacrebleu expects them.

    A text with fewer references than others has None in the remaining lists.

    >>> transpose_references([["a", "b"], ["c"]])
    [['a', 'c'], ['b', None]]
    """
    most = max(map(len, references), default=0)
    return [[several[number] if number < len(several) else None for several in references] for number in range(most)]


def import_sacrebleu() -> Any:
    """The sacrebleu library, if it is installed."""
    try:
        import sacrebleu as found
    except ImportError as error:
        raise QkvError(
            "the library sacrebleu, which computes this metric, is not installed; run pip install 'qkv[translate]', or "
            "use bleu, bleu_lowercase or tokenised_bleu, which do not need it"
        ) from error
    return found
