"""Embeddings that start from word vectors: GloVe's and word2vec's text files.

A line is a word and its numbers, separated by spaces; word2vec puts a line `count width` first, GloVe none. Words of
the model's vocabulary that the file has start with its vectors, the others as the model starts them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from qkv.errors import QkvError


@dataclass(frozen=True)
class WordVectorReport:
    """What `start_from_vectors` did."""

    num_found: int  # vocabulary entries that got a vector
    num_missing: int  # vocabulary entries that did not
    bad_lines: tuple[int, ...]  # lines that hold no vector of the right width, by number


@torch.no_grad()
def load_word_vectors(
    embedding: nn.Embedding, path: str | Path, vocabulary: Mapping[str, int], *, lowercase: bool = False
) -> WordVectorReport:
    """Overwrite the rows of `embedding` whose word the file has; the file is read once, line by line.

    `vocabulary` maps words to ids; with `lowercase` a word that is not found as it stands is looked up in lower case.
    """
    width = embedding.embedding_dim
    path = Path(path)
    wanted = {word: i for word, i in vocabulary.items() if i < embedding.num_embeddings}
    lowered: dict[str, list[int]] = {}
    if lowercase:
        for word, i in wanted.items():
            if word != word.lower():
                lowered.setdefault(word.lower(), []).append(i)
    exact: set[int] = set()  # ids whose word stands in the file as it is
    found: set[int] = set()
    bad: list[int] = []
    try:
        with path.open(encoding="utf-8", errors="replace", newline="\n") as lines:
            for number, line in enumerate(lines, 1):
                parts = line.rstrip("\r\n ").split(" ")
                if number == 1 and len(parts) == 2 and all(part.isdigit() for part in parts):
                    _check_width(path, int(parts[1]), width)
                    continue
                if number == 1:
                    _check_width(path, len(parts) - 1, width)
                values = _parse_numbers(parts[-width:]) if len(parts) > width else None
                if values is None:
                    bad.append(number)
                    continue
                word = " ".join(parts[:-width])  # a few of GloVe's words hold spaces
                if word in wanted:
                    exact.add(wanted[word])
                chosen = [wanted[word]] if word in wanted else []
                for i in (*chosen, *(i for i in lowered.get(word, ()) if i not in exact)):
                    embedding.weight[i] = torch.tensor(values, dtype=embedding.weight.dtype)
                    found.add(i)
    except OSError as error:
        raise QkvError(f"{path}: cannot be read ({error.strerror})") from error
    if not found:
        raise QkvError(f"{path}: none of its words is in the vocabulary of {len(vocabulary)}; is it the right file?")
    return WordVectorReport(len(found), embedding.num_embeddings - len(found), tuple(bad))


def _parse_numbers(parts: list[str]) -> list[float] | None:
    try:
        return [float(part) for part in parts]
    except ValueError:
        return None


def _check_width(path: Path, theirs: int, ours: int) -> None:
    if theirs != ours:
        raise QkvError(
            f"{path}: vectors of width {theirs} for an embedding of width {ours}; set width = {theirs}, "
            f"or embedding_width = {theirs} to keep the model's width and project"
        )
