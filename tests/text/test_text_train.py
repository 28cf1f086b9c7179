"""Training every kind from files and strings, with progress, the right size, and errors that teach."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_strategies import QUICK

from qkv.errors import QkvError, UsageError
from qkv.text import Tokenizer, training_text
from qkv.text.kinds import TOKENIZER_KINDS
from qkv.text.training_text import MAX_WORD_CHARS, split_long_words

OF_TEXTS = [kind for kind, row in TOKENIZER_KINDS.items() if row.reads_texts]
"""The kinds whose tokens are learned from texts, or are parts of them."""


@pytest.fixture
def files(corpus, tmp_path) -> list:
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    paths[0].write_text("\n".join(corpus[:60]) + "\n", encoding="utf-8")
    paths[1].write_text("\n".join(corpus[60:]) + "\n", encoding="utf-8")
    return paths


def test_files_and_strings_give_the_same_tokenizer(files):
    strings = [path.read_text(encoding="utf-8") for path in files]
    for kind in TOKENIZER_KINDS:
        if kind != "unigram":  # its training is not repeatable to the last digit
            from_files = Tokenizer.train(kind, [str(path) for path in files], 600)
            assert from_files.fingerprint == Tokenizer.train(kind, iter(strings), 600).fingerprint, kind


def test_one_file_is_as_good_as_a_list(files):
    assert Tokenizer.train("word", files[0], 90).fingerprint == Tokenizer.train("word", [files[0]], 90).fingerprint


def test_training_repeats_in_another_process(corpus):
    """Hash tables are seeded anew in each process: nothing learnt may hang on their order."""
    kinds = ["byte-bpe", "bpe", "wordpiece", "word", "char"]
    code = (
        "import json, sys; from qkv.text import Tokenizer; texts = json.load(sys.stdin); "
        "print(*[Tokenizer.train(k, iter(texts), 500).fingerprint for k in sys.argv[1:]])"
    )
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    result = subprocess.run(
        [sys.executable, "-c", code, *kinds],
        input=json.dumps(corpus),
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert result.stdout.split() == [Tokenizer.train(kind, iter(corpus), 500).fingerprint for kind in kinds]


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
@pytest.mark.parametrize("size", [300, 450])
def test_the_size_is_a_limit(kind, size, corpus):
    tokenizer = Tokenizer.train(kind, iter(corpus), size, num_sentinels=3)
    assert tokenizer.vocab_size <= size
    assert len(tokenizer) == tokenizer.vocab_size == max(tokenizer.backend.get_vocab().values()) + 1


def test_a_small_size_keeps_the_most_frequent_characters():
    texts = ["aaaa  bbb c d"] * 3
    tokenizer = Tokenizer.train("char", iter(texts), 7)
    assert [tokenizer.id_to_token(number) for number in range(4, 7)] == [
        " ",
        "a",
        "b",
    ]  # four each of the first two, then by the alphabet


def test_roles_come_first_and_in_order(tokenizer):
    special = ["<pad>", "<s>", "</s>", "<unk>", "<mask>", "<sep>", "<cls>"]
    sentinels = [f"<extra_id_{number}>" for number in range(4)]
    assert [tokenizer.id_to_token(number) for number in range(11)] == special + sentinels
    assert tokenizer.special_tokens.sentinels == (7, 8, 9, 10)
    assert (tokenizer.special_tokens.pad, tokenizer.special_tokens.cls) == (0, 6)


@pytest.mark.parametrize("kind", OF_TEXTS)
def test_known_text_comes_back(kind, trained, corpus):
    """Up to what the kind says it does to spaces; WordPiece also spaces out punctuation."""
    for text in corpus[:14]:
        back = trained[kind].decode(trained[kind].encode(text))
        if kind == "wordpiece":
            assert back.replace(" ", "") == "".join(text.split()).replace("\u200d", "")
        elif TOKENIZER_KINDS[kind].is_byte_level or kind == "char":
            assert back == text
        else:
            assert back == " ".join(text.split())


def test_unknown_text_is_the_unknown_token(corpus):
    for kind in ("bpe", "unigram", "wordpiece", "char", "word"):
        tokenizer = Tokenizer.train(kind, iter(["the cat sat on the mat"] * 9), 60)
        assert tokenizer.special_tokens.unk in tokenizer.encode("the ☃"), kind
        assert tokenizer.special_tokens.unk not in tokenizer.encode("the cat"), kind


def test_lower_case(corpus):
    for kind in TOKENIZER_KINDS:
        tokenizer = Tokenizer.train(kind, iter(corpus), 500, lowercase=True)
        assert tokenizer.encode("The CAT") == tokenizer.encode("the cat"), kind
    cased = Tokenizer.train("wordpiece", iter(corpus), 500)
    assert cased.encode("The cat") != cased.encode("the cat")


def test_rare_words_are_left_out():
    texts = iter(["often often often once"])
    tokenizer = Tokenizer.train("word", texts, 50, min_frequency=2)
    assert tokenizer.backend.token_to_id("often") is not None
    assert tokenizer.backend.token_to_id("once") is None


def test_progress_ends_at_the_total(files):
    seen: list[tuple[int, int]] = []
    Tokenizer.train("word", files, 90, progress=lambda done, total: seen.append((done, total)))
    total = sum(path.stat().st_size for path in files)
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_progress_of_strings_counts_them(corpus):
    seen: list[tuple[int, int]] = []
    Tokenizer.train("word", iter(corpus), 90, progress=lambda done, total: seen.append((done, total)))
    assert seen[0] == (1, 0)
    assert seen[-1] == (len(corpus), len(corpus))


def test_ids_may_be_an_array(trained):
    ids = trained["byte"].encode("array")
    assert trained["byte"].decode(np.array(ids)) == "array"


def test_offsets_point_into_the_text(trained):
    for kind in ("byte-bpe", "wordpiece", "char", "word"):
        text = "Größe über 日本"
        ids, offsets = trained[kind].encode_with_offsets(text)
        assert len(ids) == len(offsets)
        covered = {place for start, end in offsets for place in range(start, end)}
        assert {place for place, character in enumerate(text) if not character.isspace()} <= covered, kind


@given(
    parts=st.lists(st.tuples(st.sampled_from("ab \n"), st.sampled_from([1, 2, 7, 999, 1000, 1001, 2500])), max_size=8)
)
@settings(max_examples=200, **QUICK)
def test_long_runs_are_cut_and_nothing_is_lost(parts):
    text = "".join(character * times for character, times in parts)
    cut_text = list(split_long_words(text))
    assert "".join(cut_text) == text
    runs = [run for part in cut_text for run in re.findall(r"\S+|\s+", part)]
    assert max(map(len, runs), default=0) < 1.5 * MAX_WORD_CHARS


@given(text=st.text("ab \n", max_size=900))
@settings(max_examples=50, **QUICK)
def test_ordinary_text_is_not_cut(text):
    assert list(split_long_words(text)) == [text]


# -------------------------------------------------------------------- calls that are wrong


@pytest.mark.parametrize(
    ("kind", "size", "options", "message"),
    [
        ("wordpeice", 500, {}, "kind = 'wordpeice' is unknown; did you mean 'wordpiece'"),
        ("byte-bpe", 200, {}, "at least 259"),
        ("byte", 258, {}, "at least 259"),
        ("word", 3, {}, "at least 5"),
        ("bpe", 500, {"special_tokens": ["pad", "eos"]}, "role 'unk'"),
        ("word", 400, {"template": "bert"}, "needs a token for the role 'cls'"),
        ("word", 400, {"template": "bret"}, "did you mean 'bert'"),
    ],
)
def test_a_wrong_option_is_refused(kind, size, options, message, corpus):
    with pytest.raises(UsageError, match=message):
        Tokenizer.train(kind, iter(corpus), size, **options)


def test_a_missing_file_is_named_and_strings_are_explained(tmp_path):
    with pytest.raises(UsageError, match=r"nowhere.txt: no such file; to train on strings instead"):
        Tokenizer.train("word", [tmp_path / "nowhere.txt"], 90)
    with pytest.raises(UsageError, match="pass iter"):
        Tokenizer.train("word", ["the cat sat", "on the mat"], 90)


@pytest.mark.parametrize("kind", [kind for kind in OF_TEXTS if kind != "byte"])
def test_no_text_is_an_error(kind, tmp_path):
    tmp_path.joinpath("empty.txt").write_text("")
    for source in (iter([]), iter(["", ""]), [tmp_path / "empty.txt"]):
        with pytest.raises(QkvError, match="training text is empty"):
            Tokenizer.train(kind, source, 500)


@pytest.mark.parametrize("kind", ["byte-bpe", "unigram", "char"])
def test_a_bad_string_is_named(kind):
    with pytest.raises(QkvError, match=r"text 1 has a lone surrogate, U\+D800, at character 2"):
        Tokenizer.train(kind, iter(["good", "ab\ud800"]), 500)
    with pytest.raises(UsageError, match="text 1 must be a string, not int"):
        Tokenizer.train(kind, iter(["good", 7]), 500)


def test_a_file_that_is_not_utf8_is_named(tmp_path):
    tmp_path.joinpath("latin.txt").write_bytes("größe".encode("latin-1"))
    with pytest.raises(QkvError, match=r"latin\.txt: not UTF-8"):
        Tokenizer.train("bpe", [tmp_path / "latin.txt"], 500)


def test_a_negative_id_is_named(trained):
    with pytest.raises(UsageError, match="-100 is not a token id"):
        trained["byte"].decode([5, -100])


@pytest.mark.parametrize("kind", [kind for kind in TOKENIZER_KINDS if kind != "unigram"])
def test_a_text_that_is_cut_into_pieces_gives_the_same_tokenizer(corpus, monkeypatch, kind):
    """Spaces and line ends in runs, at the ends of lines and before words, would show a cut in the wrong place."""
    text = " \n".join(corpus[:20]) + "\n\n  " + "\n".join(corpus[20:60]) + "  \n" + " ".join(corpus[60:])
    whole = Tokenizer.train(kind, iter([text]), 500)
    monkeypatch.setattr(training_text, "PIECE_CHARS", 40)
    pieces = list(training_text.cut_pieces(text))
    assert "".join(pieces) == text
    assert len(pieces) > len(text) / 120
    assert Tokenizer.train(kind, iter([text]), 500).fingerprint == whole.fingerprint


@settings(**QUICK)
@given(st.text("ab \n\té", max_size=80))
def test_pieces_are_the_text(text):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_text, "PIECE_CHARS", 5)
        assert "".join(training_text.cut_pieces(text)) == text
