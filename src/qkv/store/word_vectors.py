"""Read word vectors in the text formats of GloVe and word2vec, to initialise an embedding.

A line holds a word and its numbers, separated by spaces. A word2vec file starts with a header line, `count width`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path

import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.files import open_file


@dataclass(frozen=True)
class WordVectors:
    """The vectors that a file has for the words of a vocabulary."""

    path: Path
    ids: Tensor  # (N,) token ids
    vectors: Tensor  # (N, C)
    bad_lines: tuple[int, ...]  # the numbers of lines without a vector of the right width

    @torch.no_grad()
    def apply(self, embedding: nn.Embedding) -> None:
        """Copy the vectors into the embedding. Tokens without a vector in the file keep their values."""
        embedding.weight[self.ids] = self.vectors.to(embedding.weight)

    def describe(self, vocab_size: int) -> str:
        """A note for the user: how many tokens have a vector in the file."""
        note = (
            f"{self.path}: {len(self.ids):,} of {vocab_size:,} tokens start from its vectors, the other "
            f"{vocab_size - len(self.ids):,} from random ones"
        )
        if self.bad_lines:
            note += f"; {len(self.bad_lines):,} lines have no vector, the first is line {self.bad_lines[0]:,}"
        return note


def read_word_vectors(
    path: str | Path, vocabulary: Mapping[str, int], width: int, *, lowercase: bool = False
) -> WordVectors:
    """Read the vectors of the words in `vocabulary` (word → id), line by line.

    With `lowercase`, a word that is not in the file gets the vector of its lower-case spelling.
    """
    path = Path(path)
    lowered: dict[str, list[int]] = {}
    if lowercase:
        for word, token_id in vocabulary.items():
            if word != word.lower():
                lowered.setdefault(word.lower(), []).append(token_id)
    as_spelt: dict[int, Tensor] = {}
    by_lowercase: dict[int, Tensor] = {}
    bad_lines: list[int] = []
    try:
        with TextIOWrapper(open_file(path), encoding="utf-8", errors="replace", newline="\n") as lines:
            for number, line in enumerate(lines, 1):
                parts = line.rstrip("\r\n ").split(" ")
                if number == 1:
                    has_header = len(parts) == 2 and all(part.isdigit() for part in parts)
                    _check_width(path, int(parts[1]) if has_header else len(parts) - 1, width)
                    if has_header:
                        continue
                vector = _parse_numbers(parts[-width:]) if len(parts) > width else None
                if vector is None:
                    bad_lines.append(number)
                    continue
                word = " ".join(parts[:-width])  # a few of GloVe's words contain spaces
                if word in vocabulary:
                    as_spelt[vocabulary[word]] = vector
                by_lowercase.update(dict.fromkeys(lowered.get(word, ()), vector))
    except OSError as error:
        raise QkvError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    found = by_lowercase | as_spelt
    if not found:
        raise QkvError(
            f"{path}: none of its words is in the vocabulary of {len(vocabulary)}; "
            "choose a file with the language and spelling of the vocabulary"
        )
    return WordVectors(path, torch.tensor(list(found)), torch.stack(list(found.values())), tuple(bad_lines))


def _parse_numbers(parts: list[str]) -> Tensor | None:
    try:
        return torch.tensor([float(part) for part in parts])
    except ValueError:
        return None


def _check_width(path: Path, found: int, expected: int) -> None:
    if found != expected:
        raise QkvError(
            f"{path}: its vectors have width {found}, the embedding {expected}; set model.width = {found}, "
            f"or model.embedding_width = {found} to keep the model's width and project"
        )
