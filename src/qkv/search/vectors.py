"""Search for the most similar vectors, on a CPU or a GPU: exact, or among the candidates of an inverted file.

Similarities of all vectors are computed quickly in float32, whose rounding depends on the device and on the shapes of
the matrices. So all vectors that may be among the best, given the largest possible rounding error, are then compared in
float64. Results therefore do not depend on the device or on the chunk size.

N vectors, Q queries, C width
"""

from collections.abc import Iterator

import numpy as np
import torch

from qkv.search.approximate import IvfIndex
from qkv.search.ranking import Ranking, top_k

CHUNK_ROWS = 1 << 16
"""The number of vectors that are compared at a time."""
CONVERTED_ROWS = 1 << 12  # vectors that are converted to float32 at a time, which fit into the processor's cache
QUERY_GROUP = 16
"""The number of queries whose similarities to all vectors are in memory at a time."""
MIN_CANDIDATES = 200
CANDIDATES_PER_RESULT = 4
MAX_ROUNDING = 2.0**-23
"""The rounding error of a float32 dot product of unit vectors of width C is below C times this value."""


def normalize(vectors: np.ndarray) -> np.ndarray:
    """Vectors of length 1 in float32; a zero vector stays as it is."""
    norms = np.linalg.norm(vectors.astype(np.float64), axis=-1, keepdims=True)
    unit: np.ndarray = (vectors / np.maximum(norms, np.finfo(np.float32).tiny)).astype(np.float32)
    return unit


class VectorSearch:
    """Unit vectors (N, C), perhaps memory-mapped, and a search for the vectors with the highest cosine.

    On a GPU, the first search copies the vectors to its memory. On a CPU, search compares only the candidates of the
    inverted file `ivf`, if there is one.
    """

    def __init__(
        self,
        vectors: np.ndarray,
        device: torch.device | str = "cpu",
        chunk_rows: int = CHUNK_ROWS,
        ivf: IvfIndex | None = None,
    ) -> None:
        self.vectors, self.device, self.chunk_rows = vectors, torch.device(device), chunk_rows
        self.ivf = ivf
        self._resident: list[torch.Tensor] = []

    def search(self, queries: np.ndarray, top: int) -> list[Ranking]:
        """For each query, a unit vector in float32, the most similar vectors and their cosines."""
        if self.ivf is not None and self.device.type == "cpu":
            count = max(MIN_CANDIDATES, CANDIDATES_PER_RESULT * top)
            found = self.ivf.find(queries, count) if len(queries) else []
            return [self._rank(query, numbers, top) for query, numbers in zip(queries, found, strict=True)]
        rankings = []
        for start in range(0, len(queries), QUERY_GROUP):
            group = queries[start : start + QUERY_GROUP]
            find = self._similarities_on_cpu if self.device.type == "cpu" else self._similarities_on_gpu
            approximate = np.concatenate(list(find(group)), axis=1)  # in float32
            rankings += [
                self._rank(query, self._select(row, len(query), top), top)
                for query, row in zip(group, approximate, strict=True)
            ]
        return rankings

    def _similarities_on_cpu(self, queries: np.ndarray) -> Iterator[np.ndarray]:
        """The similarities (Q, n) of queries and the vectors of each chunk."""
        has_halves = self.vectors.dtype == np.float16
        rows = min(self.chunk_rows, CONVERTED_ROWS) if has_halves else self.chunk_rows
        for start in range(0, len(self.vectors), rows):
            chunk = self.vectors[start : start + rows]
            if has_halves:
                chunk = torch.from_numpy(np.array(chunk)).float().numpy()  # torch converts faster than NumPy
            yield queries @ chunk.T

    def _similarities_on_gpu(self, queries: np.ndarray) -> Iterator[np.ndarray]:
        if not self._resident:
            starts = range(0, len(self.vectors), self.chunk_rows)
            copies = (np.array(self.vectors[start : start + self.chunk_rows]) for start in starts)
            self._resident = [torch.from_numpy(copy).to(self.device) for copy in copies]
        on_device = torch.from_numpy(queries).to(self.device)
        for chunk in self._resident:
            # A product and a sum rather than a matrix product, which may round its inputs to TensorFloat-32.
            yield torch.stack([(chunk.float() * query).sum(-1) for query in on_device]).cpu().numpy()

    def _select(self, approximate: np.ndarray, width: int, top: int) -> np.ndarray:
        """The numbers of all vectors that may be among the best, given their similarities in float32."""
        if top >= len(approximate):
            return np.arange(len(approximate))
        kth = np.partition(approximate, len(approximate) - top)[len(approximate) - top]
        selected: np.ndarray = (approximate >= kth - 2 * MAX_ROUNDING * width).nonzero()[0]
        return selected

    def _rank(self, query: np.ndarray, numbers: np.ndarray, top: int) -> Ranking:
        """The best of the vectors with these numbers, which are in increasing order."""
        chunks = np.array_split(numbers, range(self.chunk_rows, len(numbers), self.chunk_rows))
        scores = np.concatenate([(self.vectors[chunk].astype(np.float64) * query).sum(axis=1) for chunk in chunks])
        best = top_k(scores, top)
        return numbers[best], scores[best]
