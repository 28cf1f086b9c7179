"""No text that a person gives can become a special token, unless that is asked for."""

import json
import pickle
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_strategies import HARD_PARTS, QUICK
from tokenizers import Tokenizer as Backend
from tokenizers import models

from qkv.text import Tokenizer
from qkv.text.kinds import TOKENIZER_KINDS


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
@given(data=st.data())
@settings(max_examples=100, **QUICK)
def test_no_text_can_spell_a_special_token(kind, trained, data):
    tokenizer = trained[kind]
    spellings = [tokenizer.id_to_token(number) for number in sorted(tokenizer.special_ids)]
    parts = st.sampled_from([*spellings, *(f" {s} " for s in spellings), " ", "a", "▁", "the cat"]) | HARD_PARTS
    text = "".join(data.draw(st.lists(parts, max_size=6)))
    forged = tokenizer.special_ids - {tokenizer.special_tokens.unk}
    assert forged.isdisjoint(tokenizer.encode(text, add_special_tokens=False))
    assert forged.isdisjoint(tokenizer.encode_batch([text])[0])
    assert forged.isdisjoint(tokenizer.encode_with_offsets(text)[0])


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
def test_a_special_token_is_read_where_asked(kind, trained):
    """The negative control of the test above: the same text does hold the token once parsing is asked for."""
    tokenizer = trained[kind]
    for number in tokenizer.special_ids:
        ids = tokenizer.encode(
            f"the {tokenizer.id_to_token(number)} cat", add_special_tokens=False, parse_special_tokens=True
        )
        assert number in ids


def test_reading_special_tokens_as_text_changes_nothing_else(trained, corpus):
    for kind, tokenizer in trained.items():
        for text in corpus[:14]:
            assert tokenizer.encode(text) == tokenizer.backend.encode(text).ids, kind


def test_a_copy_in_a_worker_process_is_no_laxer(trained):
    """What is sent to a worker loses the backend's switch unless it is set again."""
    for kind, tokenizer in trained.items():
        copy = pickle.loads(pickle.dumps(tokenizer))
        text = " ".join(tokenizer.id_to_token(number) for number in tokenizer.special_ids)
        assert copy.encode(text) == tokenizer.encode(text), kind
        assert copy.fingerprint == tokenizer.fingerprint
        assert copy.target is copy


def test_ids_stay_the_same_in_a_shuffled_vocabulary():
    """A special token among the others, whose spelling the model itself could match."""
    words = ["cat", "[MASK]", "the", "?", "sat"]
    random.Random(0).shuffle(words)
    backend = Backend(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="?"))
    backend.pre_tokenizer = json_pre_tokenizer({"type": "WhitespaceSplit"})
    backend.add_special_tokens(["[MASK]", "?"])
    tokenizer = Tokenizer(backend)
    assert tokenizer.encode("the [MASK] sat") == [words.index("the"), words.index("?"), words.index("sat")]
    assert tokenizer.encode("the [MASK] sat", parse_special_tokens=True)[1] == words.index("[MASK]")


def json_pre_tokenizer(part: dict):
    holder = json.loads(Backend(models.WordLevel({"a": 0}, unk_token="a")).to_str())
    return Backend.from_str(json.dumps({**holder, "pre_tokenizer": part})).pre_tokenizer


def test_the_name_that_hides_a_special_token_cannot_be_guessed() -> None:
    backend = Backend(models.Unigram([("<unk>", 0.0), ("</s>", 0.0), ("a", -1.0)], unk_id=0))
    backend.add_special_tokens(["<unk>", "</s>"])
    tokenizer = Tokenizer(backend)
    assert 1 not in tokenizer.encode("a\U0010ffff\U0010fffe1\U0010ffff\U0010fffe", add_special_tokens=False)
