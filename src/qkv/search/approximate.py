"""Candidates for the most similar of millions of vectors, by the library faiss (extra `faiss`).

The index is an inverted file (IVF): k-means groups the vectors into clusters, and a query is compared only with the
vectors of the nearest clusters, which are stored with 8 bits per number. This finds candidates; `VectorSearch` then
computes their exact cosines. Vectors of clusters that are not visited are missed, so search is approximate.

N vectors, Q queries, C width
"""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from math import ceil, sqrt
from pathlib import Path
from typing import Any

import numpy as np

MAX_EXACT_VECTORS = 1_000_000
"""With more vectors, an index gets an inverted file, if faiss is installed."""
INSTALL_HINT = "pip install 'qkv[faiss]'"
TRAINING_VECTORS = 64  # for each cluster
MIN_TRAINING_VECTORS = 39  # faiss warns if a cluster has fewer
MIN_CLUSTERS_VISITED = 16
VISITED_FRACTION = 1 / 32  # of the clusters
VISITED_PER_CANDIDATE = 4  # vectors that are compared for each candidate, on average
CHUNK_ROWS = 1 << 16


def has_faiss() -> bool:
    """Whether the library faiss is installed."""
    return find_spec("faiss") is not None


def exact_search_note(num_vectors: int) -> str:
    """A note for the user of a large index without an inverted file."""
    install = "" if has_faiss() else f"install faiss ({INSTALL_HINT}), then "
    return (
        f"search compares all {num_vectors:,} vectors, because the index has no inverted file (IVF); for faster, "
        f"approximate search, {install}run qkv index again"
    )


def write_ivf(path: Path, vectors: np.ndarray, progress: Callable[[int, int], None] | None = None) -> None:
    """Cluster unit vectors (N, C), perhaps memory-mapped, and write the inverted file."""
    faiss: Any = import_module("faiss")
    num, width = vectors.shape
    num_clusters = max(1, min(round(4 * sqrt(num)), num // MIN_TRAINING_VECTORS))
    index = faiss.index_factory(width, f"IVF{num_clusters},SQ8", faiss.METRIC_INNER_PRODUCT)
    sample = np.random.default_rng(0).permutation(num)[: TRAINING_VECTORS * num_clusters]
    index.train(vectors[np.sort(sample)].astype(np.float32))
    for start in range(0, num, CHUNK_ROWS):
        index.add(np.ascontiguousarray(vectors[start : start + CHUNK_ROWS], np.float32))
        if progress is not None:
            progress(min(num, start + CHUNK_ROWS), num)
    faiss.write_index(index, str(path))


class IvfIndex:
    """An inverted file on disk, memory-mapped. Raises ValueError if its vectors do not have this shape."""

    def __init__(self, path: Path, shape: tuple[int, int]) -> None:
        faiss: Any = import_module("faiss")
        try:
            self._index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY)
            found = (self._index.ntotal, self._index.d)
            self.num_clusters = int(self._index.nlist)
        except (RuntimeError, AttributeError) as error:
            raise ValueError(f"{path.name}: {str(error).splitlines()[0]}") from None
        if found != shape:
            raise ValueError(f"{path.name} has vectors of shape {found}, not {shape}")
        self._parameters: Any = faiss.SearchParametersIVF

    def find(self, queries: np.ndarray, count: int) -> list[np.ndarray]:
        """The numbers of at most `count` candidates for each query (Q, C), in increasing order."""
        count = min(count, self._index.ntotal)
        enough = ceil(VISITED_PER_CANDIDATE * count * self.num_clusters / self._index.ntotal)
        visited = max(MIN_CLUSTERS_VISITED, ceil(VISITED_FRACTION * self.num_clusters), enough)
        parameters = self._parameters(nprobe=min(visited, self.num_clusters))
        _, numbers = self._index.search(np.ascontiguousarray(queries, np.float32), count, params=parameters)
        return [np.sort(row[row >= 0]) for row in numbers]
