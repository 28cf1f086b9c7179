"""The bundled translator: its size, its card, and sentences that it must translate well."""

import re

import pytest

import qkv
from qkv.store.hub import bundled_folders
from qkv.store.model_card import read_card

MAX_BYTES = 15_000_000
CAT = "The cat chased the mouse."
TRANSLATIONS = {
    CAT: "Le chat a poursuivi la souris.",
    "I love you very much.": "Je t'aime beaucoup.",
    "The animal didn't cross the street because it was too tired.": (
        "L'animal n'a pas traversé la rue parce qu'il était trop fatigué."
    ),
    "The animal didn't cross the street because it was too wide.": (
        "L'animal n'a pas traversé la rue parce qu'elle était trop large."
    ),
    "I sold my car because it was too old.": "J'ai vendu ma voiture parce qu'elle était trop vieille.",
    "I sold my bicycle because it was too small.": "J'ai vendu mon vélo parce qu'il était trop petit.",
    "We didn't cross the bridge because it was too narrow.": (
        "Nous n'avons pas traversé le pont parce qu'il était trop étroit."
    ),
    "Tom, you are my best friend.": "Tom, tu es mon meilleur ami.",
    "Where are you going, Dad?": "Où vas-tu, papa ?",
    "Do you all speak French?": "Parlez-vous tous français ?",
    "Excuse me, sir, are you a doctor?": "Excusez-moi, Monsieur, êtes-vous médecin ?",
    "Nobody wants to talk to her.": "Personne ne veut lui parler.",
    "She doesn't eat meat anymore.": "Elle ne mange plus de viande.",
    "She was born in 1987.": "Elle est née en 1987.",
    "There are 365 days in a year.": "Il y a 365 jours dans une année.",
    "Bruno gave Olga the keys.": "Bruno a donné les clés à Olga.",
    "He has neither a brother nor a sister.": "Il n'a ni frère ni sœur.",
    "She threw the apple away because it was rotten.": "Elle a jeté la pomme parce qu'elle était pourrie.",
    "The bird didn't fly away because it was hurt.": "L'oiseau ne s'est pas envolé parce qu'il était blessé.",
    "My phone number is 555-0187.": "Mon numéro de téléphone est le 555-0187.",
    "He was born on March 14, 1962.": "Il est né le 14 mars 1962.",
}


@pytest.fixture(scope="module")
def model() -> qkv.Model:
    return qkv.load("en-fr")


def test_the_folder_is_small_and_has_a_card_with_its_data_licence_and_scores():
    folder = bundled_folders()["en-fr"]
    assert sum(path.stat().st_size for path in folder.iterdir()) <= MAX_BYTES
    card = read_card(folder)
    assert {"task", "data", "licence", "scores", "recipe"} <= card.keys()
    assert "CC BY 2.0 FR" in card["licence"]
    assert re.fullmatch(r"BLEU [\d.]+ \([\d.–]+\), chrF [\d.]+ \([\d.–]+\), beam 5", card["scores"])
    assert "https://tatoeba.org" in (folder / "README.md").read_text(encoding="utf-8")


def test_it_reads_sentence_by_sentence_wherever_it_is_loaded(model):
    assert model.config.reads_sentences is True


def test_it_translates(model):
    found = [result.text for result in model.translate(list(TRANSLATIONS))]
    assert found == list(TRANSLATIONS.values())


def test_the_card_shows_what_the_model_writes(model):
    card = (bundled_folders()["en-fr"] / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([A-Z][^|]*[.?]) \| ([^|]+) \| [^|]* \|$", card, re.MULTILINE)
    assert len(rows) > 20
    english, french = map(list, zip(*rows, strict=True))
    assert [result.text for result in model.translate(english)] == french


def test_several_sentences_are_translated_one_by_one(model):
    french = TRANSLATIONS[CAT]
    assert model.translate(f"{CAT} I love you very much.\n{CAT}").text == f"{french} Je t'aime beaucoup.\n{french}"


@pytest.mark.parametrize("typed", [CAT.lower(), CAT[:-1], CAT.lower()[:-1]])
def test_typing_in_lower_case_or_without_a_full_stop_gives_the_same_words(model, typed):
    assert model.translate(typed).text.rstrip(".").casefold() == TRANSLATIONS[CAT].rstrip(".").casefold()
