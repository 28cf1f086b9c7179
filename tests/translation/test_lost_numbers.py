"""Numbers that a translation has lost are translated again with a stand-in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import qkv
from qkv.tasks.run.generate import GeneratedText, WordLink
from qkv.text.words import split_words
from qkv_translation.lost_numbers import replace_lost_numbers

EN_FR = qkv.load("en-fr")


@pytest.mark.parametrize(
    ("sentence", "translation", "read_again"),
    [
        ("It cost $12.99.", "Ça coûtait 12 dollars.", "It cost $24."),
        ("On 3 May 2022 he left.", "Le 32 mai 2022, il est parti.", "On 24 May 2022 he left."),
        ("Call +33 6 12 34 56 78!", "Appelle 33 612 !", "Call 555-0187!"),
        ("5 and 24 and 24", "3", "36 and 47 and 58"),
        ("5 is less than 8.", "55 fait moins de 8.", "24 is less than 8."),
        ("$1.25, $2.25, $3.25, $4.25, $5.25 and $6.25", "6.25", "$24, $36, $47, $58, $69 and $6.25"),
        ("It cost 12,99 euros.", "Ça coûtait 12 euros.", "It cost 1985 euros."),
        ("It is -5 degrees.", "Il fait froid.", "It is 24 degrees."),
        ("That's 3 + 4 = 7.", "C'est 3 sur 7.", "That's 24."),
        ("We know 2>1.", "On sait 21.", "We know 24."),
        ("We are 1,250.", "Nous sommes 1250.", None),
        ("We are 1,250.", "Nous sommes 1 250.", None),
        ("At 10:30.", "À 10 h 30.", None),
        ("At 8 p.m. or 8:30PM.", "À 20 heures ou 20 h 30.", None),
        ("The 1st of 12B", "Le premier", None),
        ("Tuesday, 4 May 2021", "2021-05-04", None),
        ("5/12/2023", "05.12.2023", None),
        ("It is 8:30.", "Es ist halb neun.", None),
        ("I have 1 apple and 3 dogs.", "Ich habe einen Apfel und drei Hunde.", None),
        ("I have 1 apple and 3 dogs.", "Ich habe 13 Äpfel und Hunde.", "I have 1 apple and 24 dogs."),
        ("No number", "Pas de nombre", None),
    ],
)
def test_lost_numbers_get_stand_ins(sentence: str, translation: str, read_again: str | None) -> None:
    found = replace_lost_numbers(sentence, translation)
    assert (found and found.text) == read_again


@given(st.lists(st.sampled_from(["12.99", "7", "06 12 34 56 78", "1985", "cat", "a-b", ",", "24"]), max_size=8))
def test_a_translation_that_keeps_the_stand_ins_has_the_numbers_and_links_to_them(words: list[str]) -> None:
    sentence = " ".join(words)
    found = replace_lost_numbers(sentence, "")
    if found is not None:
        links = [WordLink(found.text[a:b], found.text[a:b], a, b, a, b, 1.0) for a, b in split_words(found.text)]
        result = found.restore_numbers(GeneratedText(found.text, found.text, 0.0, "end", [], alignment=links))
        assert result.source == result.text == sentence
        for link in result.alignment:
            assert link.source == link.target == sentence[link.source_start : link.source_end]
            assert sentence[link.target_start : link.target_end] == link.target


def test_a_translation_without_the_stand_in_is_not_used() -> None:
    found = replace_lost_numbers("I have 212 dogs.", "J'ai des chiens.")
    texts = ["J'ai 24 chiens.", "J'ai 240 chiens.", "J'ai 24 ou 24 chiens.", "J'ai vingt-quatre chiens."]
    results = [found.restore_numbers(GeneratedText("", text, 0.0, "end", [])) for text in texts]
    assert [result and result.text for result in results] == ["J'ai 212 chiens.", None, None, None]
    result = GeneratedText("", texts[0], 0.0, "end", [], [GeneratedText("", text, 0.0, "end", []) for text in texts])
    restored = found.restore_numbers(result)
    assert restored is not None
    assert [other.text for other in restored.alternatives] == ["J'ai 212 chiens."]


@pytest.mark.parametrize(
    ("text", "translation"),
    [
        ("The book costs $12.99.", "Le livre coûte 12.99 dollars."),
        ("The meeting is on Tuesday, 3 May 2022 at 10:30 a.m.", "La réunion est mardi, 3 mai 2022 à 10 h 30."),
        ("Call me at +33 6 12 34 56 78 tomorrow.", "Appelle-moi au +33 6 12 34 56 78 demain."),
        ("HIS NUMBER IS 06 12 34 56 78 😀!", "SON NUMÉRO EST 06 12 34 56 78 😀 !"),
        ("5 is less than 8. She was born in 1987.", "5 fait moins de 8. Elle est née en 1987."),
        # The new translation of this sentence has the first number, but neither 30 nor 47.
        (
            "Call 06 38 90 98 76 before 30 and ask for room 47.",
            "Appelle 06 380 989 avant 30 et demande une chambre 47.",
        ),
    ],
)
def test_the_translator_in_the_box_keeps_numbers(text: str, translation: str) -> None:
    result = EN_FR.translate(text, align=True)
    assert result.text == translation
    for link in result.alignment:
        assert text[link.source_start : link.source_end] == link.source
        assert result.text[link.target_start : link.target_end] == link.target
