"""The results of a search: passages with their file, lines and score."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from qkv.tasks.results import MAX_CELL_CHARS, Result, Row, cut_text, one_line

Method = Literal["fused", "dense", "bm25"]


@dataclass(frozen=True, repr=False)
class SearchHit(Result):
    """A passage that was found. The score is a cosine, a BM25 score, or the sum of reciprocal ranks."""

    file: str  # relative to the folder that was indexed
    first_line: int  # from 1
    last_line: int
    score: float
    text: str
    passage: int  # its number in the index

    def location(self) -> str:
        """The file and the first line."""
        return f"{self.file}:{self.first_line}"

    def summary(self) -> str:
        """The location, the score and the beginning of the passage."""
        return f"{self.location()}\t{self.score:.4f}\t{cut_text(one_line(self.text), 2 * MAX_CELL_CHARS)}"

    def body(self) -> str:
        """The location and the text."""
        return f"{self.file}:{self.first_line}–{self.last_line}  {self.score:.4f}\n{self.text}"


@dataclass(frozen=True, repr=False)
class SearchResult(Result):
    """The passages that match a query, the best first."""

    query: str
    method: Method
    hits: list[SearchHit]

    def __iter__(self) -> Iterator[SearchHit]:
        return iter(self.hits)

    def __len__(self) -> int:
        return len(self.hits)

    def summary(self) -> str:
        """The query and the best passage."""
        found = self.hits[0].location() if self.hits else "nothing found"
        return f"{one_line(self.query)} → {found}"

    def body(self) -> str:
        """The query."""
        return one_line(self.query) + ("" if self.hits else "\n  nothing found")

    def rows(self) -> list[Row]:
        """Location, score and the beginning of each passage."""
        return [(hit.location(), f"{hit.score:.4f}", one_line(hit.text)) for hit in self.hits]
