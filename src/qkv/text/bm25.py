"""BM25: rank passages by the words that they share with a query.

The inverted index is a few flat arrays, which can be memory-mapped. Words are sorted by their UTF-8 bytes; word w is
`word_bytes[word_starts[w] : word_starts[w + 1]]`, and its postings are at `posting_starts[w]` to
`posting_starts[w + 1]`: the passages that contain it, and how often.

N passages, W words, P postings
"""

import math
import re
from array import array
from collections import Counter
from collections.abc import Mapping
from unicodedata import category, normalize

import numpy as np

K1 = 1.2
"""How soon more occurrences of a word stop to raise the score."""
B = 0.75
"""How much long passages are discounted: 0 not at all, 1 in proportion to their length."""
# Thai, Lao, Burmese, Khmer, Japanese and Chinese do not separate words, so each of their characters is a word.
UNSEPARATED = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
# Accents and vowel signs, which `\w` lacks, belong to words; variation selectors only choose a glyph. The lookahead
# saves the comparison with all marks after most words.
MARKS = "".join(
    c for c in map(chr, range(0x300, 0x20000)) if category(c) in ("Mn", "Mc") and not "\ufe00" <= c <= "\ufe0f"
)
MARK = rf"(?![\0-\u02ff])[{MARKS}]"
WORD_PATTERN = re.compile(rf"[^\W{UNSEPARATED}]+(?:{MARK}[^\W{UNSEPARATED}]*)*|(?=\w)[{UNSEPARATED}](?:{MARK})*")


def normalized_words(text: str) -> list[str]:
    """The words of a text, in lower case and Unicode's composed form, in order. A protein has words of three residues.

    >>> normalized_words("The Éclair's 3.5 東京")
    ['the', 'éclair', 's', '3', '5', '東', '京']
    >>> normalized_words("दिन, दान")
    ['दिन', 'दान']
    """
    if text.isupper():  # few texts are, so the module is rarely imported
        from qkv.text.residues import split_kmers

        if words := split_kmers(text):
            return words
    return WORD_PATTERN.findall(normalize("NFC", text.lower()))


class InvertedIndexBuilder:
    """Collects the words of passages, and makes the arrays of `BM25`."""

    def __init__(self) -> None:
        self.word_ids: dict[str, int] = {}
        self.tokens = array("i")  # the word ids of all passages
        self.lengths = array("i")

    def add(self, text: str) -> None:
        """Add the next passage."""
        words = normalized_words(text)
        self.lengths.append(len(words))
        self.tokens.extend(self.word_ids.setdefault(word, len(self.word_ids)) for word in words)

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays by name."""
        lengths = np.array(self.lengths, np.int32)
        encoded = [word.encode() for word in self.word_ids]
        order = sorted(range(len(encoded)), key=encoded.__getitem__)
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        passages = np.repeat(np.arange(len(lengths)), lengths)
        keys = rank[np.array(self.tokens, np.int64)] * max(1, len(lengths)) + passages
        postings, counts = np.unique(keys, return_counts=True)
        words, posting_passages = np.divmod(postings, max(1, len(lengths)))
        return {
            "word_bytes": np.frombuffer(b"".join(encoded[i] for i in order), np.uint8),
            "word_starts": np.cumsum([0, *(len(encoded[i]) for i in order)], dtype=np.int64),
            "posting_starts": np.searchsorted(words, np.arange(len(order) + 1)).astype(np.int64),
            "posting_passages": posting_passages.astype(np.int32),
            "posting_counts": counts.astype(np.int32),
            "passage_words": lengths,
        }


class BM25:
    """Scores passages against a query.

    A passage of length n, in words, with f occurrences of a word scores idf · f (k1 + 1) / (f + k1 (1 − b + b n / mean
    n)) for each word of the query, where idf = ln(1 + (N − d + 0.5) / (d + 0.5)) and d is the number of passages with
    the word (Robertson and Zaragoza 2009; this idf is never negative).
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], k1: float = K1, b: float = B) -> None:
        self.word_bytes, self.word_starts = arrays["word_bytes"], arrays["word_starts"]
        self.posting_starts = arrays["posting_starts"]
        self.posting_passages, self.posting_counts = arrays["posting_passages"], arrays["posting_counts"]
        self.lengths = arrays["passage_words"]
        self.k1, self.b = k1, b
        self.mean_length = float(self.lengths.mean(dtype=np.float64)) or 1.0 if len(self.lengths) else 1.0

    def find_word(self, word: str) -> int | None:
        """The number of a word, by binary search; None if no passage contains it."""
        wanted, low, high = word.encode(), 0, len(self.word_starts) - 1
        while low < high:
            middle = (low + high) // 2
            found = self.word_bytes[self.word_starts[middle] : self.word_starts[middle + 1]].tobytes()
            if found == wanted:
                return middle
            low, high = (middle + 1, high) if found < wanted else (low, middle)
        return None

    def scores(self, query: str) -> np.ndarray:
        """The score of every passage, (N,); 0 for a passage without any word of the query."""
        scores = np.zeros(len(self.lengths))
        for word, occurrences in Counter(normalized_words(query)).items():
            number = self.find_word(word)
            if number is None:
                continue
            start, end = self.posting_starts[number], self.posting_starts[number + 1]
            passages, counts = self.posting_passages[start:end], self.posting_counts[start:end].astype(np.float64)
            discount = self.k1 * (1 - self.b + self.b * self.lengths[passages] / self.mean_length)
            scores[passages] += occurrences * self._idf(number) * (counts * (self.k1 + 1) / (counts + discount))
        return scores

    def max_score(self, query: str) -> float:
        """The limit of the score of a passage in which every word of the query is very frequent: (k1 + 1) Σ idf."""
        return (self.k1 + 1) * sum(self._idf(self.find_word(word)) for word in normalized_words(query))

    def _idf(self, number: int | None) -> float:
        """The inverse document frequency of a word. A word that no passage contains is the rarest."""
        found = 0 if number is None else int(self.posting_starts[number + 1] - self.posting_starts[number])
        return math.log(1 + (len(self.lengths) - found + 0.5) / (found + 0.5))
