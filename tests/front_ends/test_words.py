"""The front end of words: hashed features instead of a vocabulary, from a recipe to a result."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import qkv
from qkv.blocks import Payload
from qkv.blocks.word_embedding import WordEmbedding
from qkv.blocks.words import WordsConfig
from qkv.data.cache.examples import InMemoryExamples
from qkv.data.encode.words import word_features
from qkv.data.objectives.tagging import EncodeTags, TaggingObjective
from qkv.data.records import FileLocation, Record
from qkv.data.stream.random_bits import EpochRng
from qkv.errors import QkvError, UsageError
from qkv.inside.doctor.subject import Subject, random_batch
from qkv.inside.doctor.table import run_check
from qkv.inside.forward import encode_examples
from qkv.tasks.prepare.prepare import prepare
from qkv.tasks.train import train
from qkv.text import Tokenizer
from qkv.text.word_features import NUM_FEATURES, hash_features
from qkv.train.recipe.recipe_file import loads
from qkv.train.watch import StepReport, Watcher

WORDS = ["Anna", "lives", "in", "Oslo", ",", "Ünal", "in", "Bergen"]


def hash_tokenizer() -> Tokenizer:
    special = ["pad", "cls", "sep", "mask"]
    return Tokenizer.train("hash", iter([]), 300, special_tokens=special, template="bert")


def payload(words: list[str], *counts: int) -> Payload:
    lengths = torch.tensor(counts or [len(words)])
    sizes = torch.stack([lengths, torch.ones_like(lengths)], 1)
    return Payload(torch.from_numpy(word_features(words)), torch.arange(len(words)), sizes, lengths)


# ── Features ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_features_of_a_word_never_change() -> None:
    """Trained models depend on these numbers."""
    assert hash_features("Paris")[:3] == (1259759089, 2055231251, 858958882)
    assert word_features([]).shape == (0, NUM_FEATURES)


def test_every_word_is_one_token(tmp_path: Path) -> None:
    tokenizer = hash_tokenizer()
    ids, offsets = tokenizer.encode_with_offsets("Ünseen wørds [CLS] [WORD] 日本")
    assert offsets == [(0, 6), (7, 12), (13, 18), (19, 25), (26, 28)]
    assert len(set(ids)) == 1
    assert tokenizer.special_tokens.unk is None
    tokenizer.save(tmp_path)
    assert Tokenizer.load(tmp_path).hashes_words
    assert not Tokenizer.train("byte", iter([]), 300).hashes_words
    assert not Tokenizer.train("word", iter(["a b"]), 300, min_frequency=1).hashes_words


def test_words_see_their_neighbours_and_no_other_text() -> None:
    torch.manual_seed(0)
    embedding = WordEmbedding(WordsConfig(features=NUM_FEATURES, rows=50, width=8), 16).double().eval()
    embedding.init_weights(None)
    alone = torch.cat([embedding(payload(WORDS[:3])), embedding(payload(WORDS[3:]))])
    torch.testing.assert_close(embedding(payload(WORDS, 3, 5)), alone)
    assert (embedding(payload(WORDS))[2] - alone[2]).abs().max() > 0.1, "the next word belongs to the same text"


# ── Examples ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_windows_have_the_features_of_their_words() -> None:
    tokenizer = hash_tokenizer()
    encode = EncodeTags(tokenizer, classes=["A", "B"])
    records = [
        Record({"tokens": words, "tags": ["A"] * len(words)}, FileLocation("a.conll", line))
        for line, words in enumerate((WORDS, ["one"], WORDS[:5]))
    ]
    examples = InMemoryExamples.from_records(records, encode)
    objective = TaggingObjective(examples, tokenizer, max_length=5, too_long="split")
    built = objective.build(np.array([4, 1, 3]), EpochRng(0))  # of 3 words: 3 + 1 + 2 windows
    assert built.lengths.tolist() == [5, 5, 3]
    (found,) = built.payloads
    expected = [WORDS[:3], WORDS[3:6], ["one"]]
    assert np.array_equal(found.values, word_features([*expected[0], *expected[1], *expected[2]]))
    assert found.lengths.tolist() == [3, 3, 1]
    assert found.positions.tolist() == [1, 2, 3, 6, 7, 8, 11]


# ── Training ─────────────────────────────────────────────────────────────────────────────────────────────────────

RECIPE = """
run = "{folder}/{run}"
[data]
train = "{folder}/train.jsonl"
max_length = 32
cache_dir = "{folder}/cache"
[tokenizer]
kind = "hash"
[model]
width = 16
layers = 1
dropout = 0.1
words = {{rows = 50, width = 8}}
[objective]
kind = "tagging"
[train]
steps = {steps}
batch_tokens = 128
lr = 0.01
save_every = 20
eval_every = 20
device = "cpu"
num_threads = 1
"""


def write_data(folder: Path, count: int = 120) -> None:
    """Words that end in "burg" are places, and words after "Mr" are persons; all names are made of random letters."""
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(count):
        names = ["".join(rng.choice(list("abcdeklmnorstu"), 5)).title() for _ in range(2)]
        words = ["Mr", names[0], "saw", f"{names[1]}burg", "."]
        lines.append(json.dumps({"tokens": words, "tags": ["O", "B-PER", "O", "B-LOC", "O"]}))
    (folder / "train.jsonl").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data and a trained run."""
    made = tmp_path_factory.mktemp("words")
    write_data(made)
    train(loads(RECIPE.format(folder=made, run="run", steps=80)))
    return made


def test_unseen_words_are_tagged_by_their_letters_and_neighbours(folder: Path) -> None:
    result = qkv.load(folder / "run").tag("Mr Zqxwv saw Yjhpburg.")
    assert [(one.label, one.text) for one in result.entities] == [("PER", "Zqxwv"), ("LOC", "Yjhpburg")]


class Killed(BaseException):
    """Stands in for SIGKILL: no handler of the program runs."""


class Kill(Watcher):
    def on_step(self, report: StepReport) -> None:
        if report.step == 30:
            raise Killed


def test_a_killed_run_resumes_bit_for_bit(folder: Path) -> None:
    recipe = loads(RECIPE.format(folder=folder, run="killed", steps=80))
    with pytest.raises(Killed):
        train(recipe, watch=Kill())
    found, expected = (one.network.state_dict() for one in (train(recipe), qkv.load(folder / "run")))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_long_text_is_read_in_windows_like_short_ones(folder: Path) -> None:
    m = qkv.load(folder / "run")
    words = ["Mr", "Zqxwv", "saw", "Yjhpburg", "."] * 20
    tags = [word.tag for word in m.tag(tuple(words)).words]
    assert tags.count("B-LOC") == tags.count("B-PER") == 20


def test_a_saved_model_gives_the_same_results_and_can_be_looked_into(folder: Path, tmp_path: Path) -> None:
    m = qkv.load(folder / "run")
    m.save(tmp_path / "saved")
    loaded = qkv.load(tmp_path / "saved")
    assert loaded.tag("Mr Abc saw Xburg").to_dict() == m.tag("Mr Abc saw Xburg").to_dict()
    trace = loaded.trace("Mr Zqxwv saw Yjhpburg")
    assert trace.tokens["encoder"].texts == ("<cls>", "Mr", "Zqxwv", "saw", "Yjhpburg", "<sep>")
    assert "Zqxwv" in str(loaded.look("Mr Zqxwv saw").document)
    with pytest.raises(QkvError, match="cannot store"):
        m.export(tmp_path / "onnx", format="onnx")
    assert [len(one) for one in encode_examples(m.network, m.tokenizer, ["a b c d e"], max_length=4)] == [6, 3]


def test_the_doctor_finds_nothing(folder: Path) -> None:
    network = qkv.load(folder / "run").network
    subject = Subject(network, None, random_batch(network.config), has_random_batch=True)
    assert run_check("payload", subject).status == "ok"


def test_another_objective_cannot_read_hashed_words(folder: Path) -> None:
    recipe = RECIPE.format(folder=folder, run="wrong", steps=1).replace('"tagging"', '"masked_lm"')
    with pytest.raises(UsageError, match="which masked_lm cannot read, only tagging"):
        prepare(loads(recipe + '[data.columns]\ntext = "tokens"\n'))
