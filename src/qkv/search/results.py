"""The results of a search: passages with their file, lines and score."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from qkv.tasks.results import MAX_CELL_CHARS, Result, Row, cut_text, one_line
from qkv.text.bm25 import WORD_PATTERN, normalized_words

Method = Literal["fused", "dense", "bm25"]

MAX_EXCERPT_CHARS = 2 * MAX_CELL_CHARS
MAX_CHARS_BEFORE_MATCH = MAX_CELL_CHARS // 2
MAX_MATCHES = 300  # words of a passage that an excerpt is chosen from
MIN_MATCH_FRACTION = 1 / 3  # of the characters of the query's words


@dataclass(frozen=True, repr=False)
class SearchHit(Result):
    """A passage that was found. The score is a cosine, a BM25 score, or a weighted sum of reciprocal ranks."""

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
        return f"{self.location()}\t{self.score:.4f}\t{cut_text(one_line(self.text), MAX_EXCERPT_CHARS)}"

    def excerpt_row(self, query: str) -> Row:
        """The file and the line of the best match, the score, and the text around the match."""
        match = find_match(self.text, query)
        line = self.first_line + self.text.count("\n", 0, match)
        return f"{self.file}:{line}", f"{self.score:.4f}", cut_excerpt(self.text, match)

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
        found = self.hits[0].excerpt_row(self.query)[0] if self.hits else "nothing found"
        return f"{one_line(self.query)} → {found}"

    def body(self) -> str:
        """The query."""
        return one_line(self.query) + ("" if self.hits else "\n  nothing found")

    def rows(self) -> list[Row]:
        """File and line of the best match in each passage, score, and the text around the match."""
        return [hit.excerpt_row(self.query) for hit in self.hits]


def find_match(text: str, query: str) -> int:
    """Where the words of a query are in a text: the start of the shortest part with most of them.

    Long words count more, because they tend to be rare. If the text has only words such as "the" in common with the
    query, because it was found by its meaning, the result is 0.

    >>> find_match("In a house. Renew a passport.", "how to renew a passport")
    12
    """
    query_words = set(normalized_words(query))
    min_chars = MIN_MATCH_FRACTION * sum(map(len, query_words))
    found = [
        (match.start(), word)
        for match in WORD_PATTERN.finditer(text)
        for word in normalized_words(match.group())
        if word in query_words
    ][:MAX_MATCHES]

    def coverage(start: int) -> tuple[int, int]:
        end = start + MAX_EXCERPT_CHARS - MAX_CHARS_BEFORE_MATCH
        first = {word: at for at, word in reversed(found) if start <= at < end}  # the first occurrence of each word
        return sum(map(len, first)), start - max(first.values())

    best = max((start for start, _ in found), key=coverage, default=0)
    return best if found and coverage(best)[0] >= min_chars else 0


def cut_excerpt(text: str, match: int) -> str:
    """The text around a match, in one line. The match is in the first `MAX_CELL_CHARS` characters."""
    start = max(0, min(match - MAX_CHARS_BEFORE_MATCH, len(text) - MAX_CELL_CHARS + 1))
    if start and (space := re.search(r"\s+", text[start:match])):
        start += space.end()
    return cut_text("…" * (start > 0) + one_line(text[start:]), MAX_EXCERPT_CHARS)
