"""Initialise embeddings from the text files of GloVe and word2vec."""

from pathlib import Path

import pytest
import torch
from torch import nn

from qkv.errors import QkvError
from qkv.store.word_vectors import WordVectors, read_word_vectors

VOCABULARY = {"the": 0, "cat": 1, "New York": 2, "Paris": 3, "dog": 4}


def embedding(rows: int = 5, width: int = 3) -> nn.Embedding:
    torch.manual_seed(0)
    return nn.Embedding(rows, width)


def read(layer: nn.Embedding, path: Path, vocabulary: dict[str, int], *, lowercase: bool = False) -> WordVectors:
    """Read a file and initialise an embedding from it."""
    vectors = read_word_vectors(path, vocabulary, layer.embedding_dim, lowercase=lowercase)
    vectors.apply(layer)
    return vectors


def write(folder: Path, text: str) -> Path:
    path = folder / "vectors.txt"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("header", ["", "4 3\n"], ids=["glove", "word2vec"])
def test_words_in_the_file_get_their_vectors_and_others_keep_their_values(tmp_path: Path, header: str) -> None:
    layer = embedding()
    before = layer.weight.detach().clone()
    path = write(tmp_path, header + "the 1 2 3\ncat 4 5 6\nunknown 7 8 9\nNew York -1 0.5 1e-3\n")
    started = read(layer, path, VOCABULARY)
    assert torch.equal(layer.weight[:3], torch.tensor([[1, 2, 3], [4, 5, 6], [-1, 0.5, 1e-3]]))
    assert torch.equal(layer.weight[3:], before[3:])
    assert started.describe(5) == f"{path}: 3 of 5 tokens start from its vectors, the other 2 from random ones"


def test_lines_without_a_vector_are_listed_by_number(tmp_path: Path) -> None:
    path = write(tmp_path, "the 1 2 3\ncat 4 5\ndog x y z\n\nParis 1 1 1\n")
    started = read(embedding(), path, VOCABULARY)
    assert started.bad_lines == (2, 3, 4)
    assert started.describe(5).endswith("the other 3 from random ones; 3 lines have no vector, the first is line 2")


def test_lower_case_is_looked_up_for_a_missing_word(tmp_path: Path) -> None:
    vocabulary = {"the": 0, "The": 1, "Cat": 2, "Paris": 3}
    layer = embedding()
    path = write(tmp_path, "the 1 1 1\ncat 2 2 2\nParis 3 3 3\nparis 4 4 4\n")
    started = read(layer, path, vocabulary, lowercase=True)
    assert layer.weight[:4, 0].tolist() == [1, 1, 2, 3]
    assert sorted(started.ids.tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize("lines", ["paris 4 4 4\nParis 3 3 3\n", "Paris 3 3 3\nparis 4 4 4\n"], ids=["after", "before"])
def test_the_exact_spelling_has_precedence(tmp_path: Path, lines: str) -> None:
    layer = embedding()
    read(layer, write(tmp_path, lines), VOCABULARY, lowercase=True)
    assert layer.weight[3].tolist() == [3, 3, 3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("the 1 2 3 4\n", "its vectors have width 4, the embedding 3; set model.width = 4"),
        ("10 4\nthe 1 2 3 4\n", "its vectors have width 4, the embedding 3; set model.width = 4"),
        ("paris 1 2 3\n", "none of its words is in the vocabulary of 5"),  # lower case is not looked up by default
        (None, r"vectors\.txt: no such file"),
    ],
    ids=["width, glove", "width, word2vec", "no known word", "no file"],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "vectors.txt" if text is None else write(tmp_path, text)
    with pytest.raises(QkvError, match=message):
        read(embedding(), path, VOCABULARY)
