"""Records of the evaluation that also occur in the training data, word for word or nearly, and contradictory labels.

Two texts are equal if their words are equal, whatever their case, punctuation and spaces. They are near-duplicates if
their targets (labels, answers) are equal, too, and the sets of their word pairs have a Jaccard similarity of at least
`MIN_SIMILARITY`. Texts from a template, which differ in a word, are different records. So if more than `MAX_SIMILAR`
training texts are that similar to an evaluation text, it is a near-duplicate only if the similarity is at least
`MIN_TEMPLATE_SIMILARITY`, or if no other evaluation record has its target. If the sets of word pairs of
two texts have a Jaccard similarity of at least t, and the evaluation text has n word pairs, then any ⌊(1 − t) n⌋ + 1 of
these n pairs include one that the other text also has. So it is enough to index its rarest pairs ("prefix filtering",
Chaudhuri, Ganti and Kaushik 2006). The search is exact, except that very frequent pairs are not indexed. The
training data is read once, record by record, for a limited time; only the index of the evaluation data and the hashes
of labelled texts are in memory.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise

from qkv.data.records import Record
from qkv.text.bm25 import normalized_words

MIN_SIMILARITY, MIN_TEMPLATE_SIMILARITY = 0.7, 0.9
MAX_SIMILAR = 3
MIN_WORDS = 8
"""Shorter texts are compared word for word only: a short question resembles many others."""
MAX_POSTINGS = 100
"""A word pair that more evaluation records have is not used to find candidates."""
MAX_WORDS = 2000  # words of a text that are compared
MAX_LABELLED = 1_000_000  # training texts whose labels are compared with each other
CLOCK_INTERVAL = 256  # records between two checks of the deadline


@dataclass(frozen=True)
class Leak:
    """A record of the evaluation, and the record of the training data that resembles it."""

    evaluation: str  # its location
    training: str
    text: str  # the text of the evaluation record
    training_text: str
    similarity: float  # 1 for equal words


@dataclass
class LeakageReport:
    """The leaks: for each evaluation record at most one, the most similar training record."""

    num_evaluation: int
    num_training: int = 0  # the number of training records that were compared
    complete: bool = True  # whether all training records were compared
    leaks: dict[int, Leak] = field(default_factory=dict)  # by the number of the evaluation record
    conflicts: list[tuple[str, str, str]] = field(default_factory=list)  # text, and its different labels
    unit: str = "record"  # what was compared

    @property
    def num_exact(self) -> int:
        """The number of evaluation records with the same words as a training record."""
        return sum(leak.similarity == 1 for leak in self.leaks.values())

    @property
    def fraction(self) -> float:
        """The fraction of evaluation records that occur in the training data."""
        return len(self.leaks) / max(1, self.num_evaluation)


def find_leakage(
    evaluation: Sequence[Record],
    training: Iterable[Record],
    text_of: Callable[[Record], str],
    *,
    target_of: Callable[[Record], str] = lambda record: "",
    has_labels: bool = False,
    unit: str = "record",
    max_seconds: float = 20.0,
    are_variants: bool = False,
) -> LeakageReport:
    """Compare the evaluation records with the training records, for at most `max_seconds`.

    With `has_labels`, training records with equal words and different targets are listed as conflicts. If the texts
    are variants of one text (`are_variants`), all of them are similar, so only equal words are a leak.
    """
    report = LeakageReport(len(evaluation), unit=unit)
    texts, targets = [text_of(one) for one in evaluation], [target_of(one) for one in evaluation]
    frequency = Counter(targets)
    exact: defaultdict[bytes, list[int]] = defaultdict(list)
    shingles: list[frozenset[int]] = []
    for number, text in enumerate(texts):
        words = normalized_words(text)[:MAX_WORDS]
        exact[digest_words(words)].append(number)
        shingles.append(word_pairs(words))
    index = {} if are_variants else index_rarest(shingles)
    near: defaultdict[int, set[bytes]] = defaultdict(set)  # different training texts that resemble an evaluation text
    labels: dict[bytes, str] = {}
    deadline = time.monotonic() + max_seconds
    for count, record in enumerate(training, 1):
        if count % CLOCK_INTERVAL == 0 and time.monotonic() > deadline:
            report.complete = False
            break
        report.num_training = count
        text, target = text_of(record), target_of(record)
        words = normalized_words(text)[:MAX_WORDS]
        key = digest_words(words)
        is_labelled = has_labels and words and (key in labels or len(labels) < MAX_LABELLED)
        if is_labelled and labels.setdefault(key, target) != target:
            report.conflicts.append((text, labels[key], target))
        similar = dict.fromkeys(exact.get(key, ()) if words else (), 1.0)
        pairs = word_pairs(words)
        for number in {number for pair in pairs & index.keys() for number in index[pair]}:
            common = len(pairs & shingles[number])
            similarity = common / (len(pairs) + len(shingles[number]) - common)
            if similarity >= MIN_SIMILARITY and target == targets[number]:
                if len(near[number]) <= MAX_SIMILAR:
                    near[number].add(key)
                # Equal sets of pairs can come from different texts, so only equal words count as 1.
                similar.setdefault(number, min(similarity, 0.999))
        for number, similarity in similar.items():
            known = report.leaks.get(number)
            if known is None or similarity > known.similarity:
                places = str(evaluation[number].location), str(record.location)
                report.leaks[number] = Leak(*places, texts[number], text, similarity)
    templates = {n for n, found in near.items() if len(found) > MAX_SIMILAR and frequency[targets[n]] > 1}
    for number in templates & report.leaks.keys():
        if report.leaks[number].similarity < MIN_TEMPLATE_SIMILARITY:
            del report.leaks[number]
    return report


def index_rarest(shingles: Sequence[frozenset[int]]) -> dict[int, list[int]]:
    """The rarest word pairs of each record → the numbers of the records: enough to find every near-duplicate."""
    frequency = Counter(pair for pairs in shingles for pair in pairs)
    index: defaultdict[int, list[int]] = defaultdict(list)
    for number, pairs in enumerate(shingles):
        count = int((1 - MIN_SIMILARITY) * len(pairs)) + 1
        for pair in sorted(pairs, key=lambda pair: (frequency[pair], pair))[:count]:
            index[pair].append(number)
    return {pair: numbers for pair, numbers in index.items() if len(numbers) <= MAX_POSTINGS}


def word_pairs(words: Sequence[str]) -> frozenset[int]:
    """The hashes of neighbouring words; none for a short text."""
    if len(words) < MIN_WORDS:
        return frozenset()
    return frozenset(
        int.from_bytes(blake2b(f"{one} {two}".encode(), digest_size=8).digest(), "big") for one, two in pairwise(words)
    )


def digest_words(words: Sequence[str]) -> bytes:
    """A hash of the words in order."""
    return blake2b(" ".join(words).encode("utf-8", "surrogatepass"), digest_size=12).digest()
