"""Byte-level tokenizers give back any text, and no input is slow for any kind."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_strategies import ANY_TEXT, HARD_TEXT, QUICK

from qkv.errors import QkvError
from qkv.text import Tokenizer
from qkv.text.kinds import TOKENIZER_KINDS

BYTE_LEVEL_KINDS = [name for name, kind in TOKENIZER_KINDS.items() if kind.is_byte_level]


@given(text=ANY_TEXT)
@settings(max_examples=5000, **QUICK)
def test_byte_level_gives_back_any_text(trained, text):
    for kind in BYTE_LEVEL_KINDS:
        assert trained[kind].decode(trained[kind].encode(text)) == text


@given(text=HARD_TEXT)
@settings(max_examples=5500, **QUICK)
def test_byte_level_gives_back_hard_text(trained, text):
    for kind in BYTE_LEVEL_KINDS:
        assert trained[kind].decode(trained[kind].encode(text)) == text


def test_byte_level_knows_every_single_character(trained):
    """All 1,112,064 characters of Unicode, in blocks."""
    for start in range(0, 0x110000, 0x1000):
        text = "".join(chr(code) for code in range(start, start + 0x1000) if not 0xD800 <= code < 0xE000)
        if text:
            assert trained["byte-bpe"].decode(trained["byte-bpe"].encode(text)) == text


@given(before=ANY_TEXT, surrogate=st.integers(0xD800, 0xDFFF))
@settings(max_examples=50, **QUICK)
def test_a_lone_surrogate_is_refused_and_its_place_named(trained, before, surrogate):
    text = before + chr(surrogate) + "x"
    for call in (
        trained["byte"].encode,
        lambda t: trained["byte"].encode_batch(["good", t]),
        trained["byte"].encode_with_offsets,
    ):
        with pytest.raises(QkvError, match=f"U\\+{surrogate:04X}, at character {len(before)},"):
            call(text)


def test_texts_of_a_batch_are_counted_from_one(trained):
    with pytest.raises(QkvError, match=r"text 2 of the batch has a lone surrogate, U\+D800"):
        trained["byte"].encode_batch(["good", "\ud800"])


# -------------------------------------------------------------------- one megabyte of one character


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
@pytest.mark.parametrize("character", ["a", " ", ".", "日"])
def test_a_megabyte_of_one_character_takes_under_two_seconds(kind, character, trained):
    text = character * (1_000_000 // len(character.encode()))
    assert timed(trained[kind], text) < 2.0 or timed(trained[kind], text) < 2.0


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
def test_training_on_a_megabyte_of_one_character_takes_under_two_seconds(kind):
    start = time.process_time()
    Tokenizer.train(kind, iter(["a" * 1_000_000]), 400)
    assert time.process_time() - start < 2.0


def timed(tokenizer: Tokenizer, text: str) -> float:
    start = time.process_time()  # of this process alone: others may be using the machine
    tokenizer.encode(text)
    return time.process_time() - start
