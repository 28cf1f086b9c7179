"""Word vectors in the text formats of GloVe and word2vec, to start an embedding from.

A line holds a word and its numbers, separated by spaces. word2vec's first line is `count width`; GloVe has none.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from qkv.errors import QkvError


@dataclass(frozen=True)
class WordVectors:
    """The vectors of those words of a vocabulary that a file has."""

    path: Path
    ids: Tensor  # (N,) token ids
    vectors: Tensor  # (N, C)
    bad_lines: tuple[int, ...]  # line numbers without a vector of the right width

    @torch.no_grad()
    def apply(self, embedding: nn.Embedding) -> None:
        """Overwrite the rows of the embedding whose words the file has; the others keep their values."""
        embedding.weight[self.ids] = self.vectors.to(embedding.weight)

    def describe(self, vocab_size: int) -> str:
        """A note on what was found."""
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

    With `lowercase`, a word that the file does not have as it is spelt gets the vector of its lower-case spelling.
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
        with path.open(encoding="utf-8", errors="replace", newline="\n") as lines:
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
        raise QkvError(f"{path}: cannot be read ({error.strerror})") from error
    found = by_lowercase | as_spelt
    if not found:
        raise QkvError(f"{path}: none of its words is in the vocabulary of {len(vocabulary)}; is it the right file?")
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
