"""`model.vectors`: a new model's embedding starts from a file of word vectors."""

from pathlib import Path
from typing import Any

import pytest
import torch
from prepare_samples import sample_files, sample_recipe

from qkv.errors import UsageError
from qkv.models import Network, Seq2Seq
from qkv.tasks.prepare.prepare import PreparedRun, prepare
from qkv.tasks.prepare.word_vectors import whole_word_token_ids

WIDTH = 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vectors")
    sample_files(path)
    return path


def prepare_with_vectors(folder: Path, objective: str, **tokenizer: Any) -> tuple[PreparedRun, dict[str, int]]:
    """A recipe with vectors for every third word of its vocabulary, each filled with the word's id."""
    words = whole_word_token_ids(prepare(sample_recipe(folder, objective, tokenizer=tokenizer)).tokenizer)
    chosen = {word: number for word, number in words.items() if number % 3 == 0 and word.strip() == word}
    path = folder / "glove.txt"
    lines = (" ".join([word, *[str(number)] * WIDTH]) + "\n" for word, number in chosen.items())
    path.write_text("".join(lines), encoding="utf-8")
    recipe = sample_recipe(
        folder, objective, tokenizer=tokenizer, model={"vectors": str(path), "overrides": {"width": WIDTH, "layers": 1}}
    )
    return prepare(recipe), chosen


@pytest.mark.parametrize(
    ("objective", "tokenizer"),
    [("causal_lm", "byte-bpe"), ("masked_lm", "wordpiece"), ("seq2seq", "unigram"), ("causal_lm", "word")],
)
def test_words_of_the_file_start_from_its_vectors(folder: Path, objective: str, tokenizer: str) -> None:
    prepared, chosen = prepare_with_vectors(folder, objective, kind=tokenizer, vocab_size=420)
    plain = prepare(sample_recipe(folder, objective, tokenizer={"kind": tokenizer, "vocab_size": 420}))
    found, before = (token_embedding(one.build_network()) for one in (prepared, plain))
    assert chosen
    for word, number in chosen.items():
        assert torch.equal(found[number], torch.full((WIDTH,), float(number))), word
    lower = {word for word in whole_word_token_ids(prepared.tokenizer) if word.lower() in chosen}
    for word, number in whole_word_token_ids(prepared.tokenizer).items():
        assert word in chosen or word in lower or torch.equal(found[number], before[number]), word
    (note,) = (note for note in prepared.notes if "glove.txt" in note)
    assert "tokens start from its vectors" in note


def token_embedding(network: Network) -> torch.Tensor:
    return (network.source_embedding if isinstance(network, Seq2Seq) else network.embedding).token.weight


def test_a_word_start_wins_over_the_same_letters_inside_a_word(folder: Path) -> None:
    tokenizer = prepare(sample_recipe(folder, "causal_lm", tokenizer={"kind": "byte-bpe", "vocab_size": 420})).tokenizer
    words = whole_word_token_ids(tokenizer)
    both = [token for token in words if f"Ġ{token}" in tokenizer.backend.get_vocab()]
    assert both
    assert all(tokenizer.id_to_token(words[token]) == f"Ġ{token}" for token in both)


def test_a_trained_model_takes_no_vectors(folder: Path) -> None:
    with pytest.raises(
        UsageError, match=r"model.vectors initialises a new embedding, and model.from has a trained one"
    ):
        prepare(sample_recipe(folder, "masked_lm", model={"vectors": "glove.txt", "from_": "bert"}))
