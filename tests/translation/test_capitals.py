"""Sentences in capital letters are read in lower case, and their translations are written in capitals."""

import pytest

import qkv
from qkv.text import Tokenizer
from qkv_translation.capitals import lower_capitals

EN_FR = qkv.load("en-fr")


@pytest.mark.parametrize(
    ("text", "translation"),
    [
        ("HELP ME NOW", "AIDE-MOI MAINTENANT"),
        ("WHERE AM I?", "OÙ SUIS-JE ?"),
        ("TOM IS A DOCTOR. Tom is a doctor.", "TOM EST MÉDECIN. Tom est médecin."),
        ("THE CAT IS BLACK (https://example.org/Cat).", "LE CHAT EST NOIR (https://example.org/Cat)."),
        ("Tom works at NASA.", "Tom travaille à NASA."),
    ],
)
def test_a_sentence_in_capitals_is_translated_like_any_other(text: str, translation: str) -> None:
    assert EN_FR.translate(text).text == translation


def test_a_prefix_stays_as_it_is() -> None:
    assert EN_FR.translate("HELP ME NOW", prefix="Aide").text == "Aide-MOI MAINTENANT"


def test_alternatives_are_in_capitals_and_links_point_to_their_words() -> None:
    text = "“WHAT TIME IS IT?” 😀"
    result = EN_FR.translate(text, top=2, align=True)
    assert result.alternatives[0].text.isupper()
    assert ("TIME", "HEURE") in [(link.source, link.target) for link in result.alignment]
    for link in result.alignment:
        assert text[link.source_start : link.source_end] == link.source
        assert result.text[link.target_start : link.target_end] == link.target


@pytest.mark.parametrize("text", ["Help me now", "OK!", "I", "USA", "1234 + 5678", "猫が好きです。", "ПРИВЕТ, мир", ""])
def test_other_texts_stay(text: str) -> None:
    assert EN_FR.tokenizer is not None
    assert lower_capitals(text, EN_FR.tokenizer) == text


def test_a_model_of_texts_in_capitals_reads_capitals() -> None:
    texts = [f"WE SEE {name.upper()} NOW" for name in dir(str)] * 5
    tokenizer = Tokenizer.train("byte-bpe", iter(texts), vocab_size=400, special_tokens=["pad", "eos"])
    assert lower_capitals("WE SEE NOW", tokenizer) == "WE SEE NOW"
    assert EN_FR.tokenizer is not None
    assert lower_capitals("WE SEE NOW", EN_FR.tokenizer) == "We see now"
