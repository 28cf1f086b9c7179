"""What the rows of proteins share: files of sequences, and clusters of similar ones, which stay on one side of a split.

Two sequences are similar if they share at least `MIN_SHARED` of the words of five residues of the shorter one. Clusters
are the connected components: everything that is similar to a member belongs to the cluster. Words that more than
`MAX_HOLDERS` sequences have do not count.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from zlib import crc32

import qkv
from qkv.data import DataFiles, Problems

WORD = 5
MIN_SHARED = 0.3
MAX_HOLDERS = 500
LONG_WORDS = 400  # of a longer sequence, a sample of its words is compared: those with the smallest hashes


def read_fasta(path: Path) -> list[str]:
    """The sequences of a FASTA file that may be compressed."""
    found = next(one for one in (path, path.with_name(path.name + ".gz")) if one.exists())
    records = DataFiles(found, "fasta").records(Problems(max_invalid_fraction=1))
    return [record.fields["sequence"] for record in records]


def words(sequence: str) -> set[int]:
    """The hashes of the words of a sequence; of a long one, the smallest, in proportion to its length."""
    found = {crc32(sequence[i : i + WORD].encode()) for i in range(max(1, len(sequence) - WORD + 1))}
    if len(found) <= LONG_WORDS:
        return found
    return {one for one in found if one < 2**32 * LONG_WORDS // 1000}


def shared_counts(one: set[int], holders: Mapping[int, Sequence[int]]) -> Counter[int]:
    """The number of words that a sequence shares with each of the others."""
    return Counter(j for word in one if len(holders.get(word, ())) <= MAX_HOLDERS for j in holders.get(word, ()))


def cluster(sequences: Sequence[str]) -> list[int]:
    """The number of the cluster of each sequence."""
    found = [words(one) for one in sequences]
    holders: defaultdict[int, list[int]] = defaultdict(list)
    parent = list(range(len(sequences)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    for i, one in enumerate(found):
        for j, count in shared_counts(one, holders).items():
            if count >= MIN_SHARED * min(len(one), len(found[j])):
                parent[root(i)] = root(j)
        for word in one:
            holders[word].append(i)
    return [root(i) for i in range(len(sequences))]


def split_clusters(clusters: Sequence[int], fraction: float, seed: int = 0) -> list[bool]:
    """Whether each sequence is held out: whole clusters at random, until they have this fraction of the sequences."""
    sizes = Counter(clusters)
    order = sorted(sizes)
    Random(seed).shuffle(order)
    held: set[int] = set()
    size = 0
    for one in order:
        if size + sizes[one] <= fraction * len(clusters):
            held.add(one)
            size += sizes[one]
    return [one in held for one in clusters]


def nearest(train: Sequence[str], test: Sequence[str]) -> tuple[list[int], list[float]]:
    """The training sequence that shares most words with each test sequence, and the fraction that it shares."""
    known = [words(one) for one in train]
    holders: defaultdict[int, list[int]] = defaultdict(list)
    for i, one in enumerate(known):
        for word in one:
            holders[word].append(i)
    best, similarity = [], []
    for sequence in test:
        one = words(sequence)
        counts = Counter(j for word in one for j in holders.get(word, ()))
        shares = {j: count / len(one | known[j]) for j, count in counts.items()}
        j = max(shares, key=lambda j: (shares[j], -j), default=-1)
        best.append(j)
        similarity.append(shares.get(j, 0.0))
    return best, similarity


def count_parameters(folder: Path) -> int:
    """The parameters of a trained model."""
    return sum(one.numel() for one in qkv.load(folder).network.parameters())
