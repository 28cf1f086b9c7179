"""The parts of examples/en_fr that need no training: the split, the consensus, generated and swapped pairs, checks."""

import doctest
import os
import random
import re
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from qkv.store.hub import bundled_folders

FOLDER = Path(__file__).parents[2] / "examples" / "en_fr"
MODULES = (
    *("pairs", "consensus", "words", "numbers_in_words", "names", "swapped"),
    *("agreement", "grammar", "number_pairs", "generated", "checks"),
)


@pytest.fixture(autouse=True)
def example_on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


def test_the_examples_in_docstrings_run():
    results = {name: doctest.testmod(import_module(name)) for name in MODULES}
    assert {name for name, result in results.items() if result.attempted} == {*MODULES} - {"agreement", "generated"}
    assert not [name for name, result in results.items() if result.failed]


def test_all_pairs_of_near_identical_sentences_are_in_one_part():
    from pairs import split_pairs

    pairs = [(f"I'm number {n}.", f"Je suis le numéro {n}.") for n in range(3000)]
    pairs += [(f"I am number {n}!", f"Je suis le {n}\u202f!") for n in range(3000)]
    parts = split_pairs(pairs)
    assert 30 < len(parts["valid"]) < 100
    assert 100 < len(parts["test"]) < 260
    numbers = {part: {pair[0].split()[-1].strip(".!") for pair in several} for part, several in parts.items()}
    assert not numbers["train"] & (numbers["test"] | numbers["valid"])
    assert not numbers["test"] & numbers["valid"]
    assert sum(map(len, parts.values())) == 6000


def test_no_probe_is_kept_twice_and_each_has_a_topic():
    from pairs import read_pairs, sentence_key

    probes = read_pairs(FOLDER / "probes.tsv")
    assert len({sentence_key(english) for _, english in probes}) == len(probes)
    assert sum(topic == "pronouns" for topic, _ in probes) >= 11


def test_no_probe_and_no_sentence_of_the_card_is_in_the_data():
    from pairs import read_download, read_pairs, sentence_key

    pairs = Path(os.environ.get("QKV_SHARED", FOLDER.parents[2] / "shared")) / "data/tatoeba_eng_fra/fra.txt.gz"
    if not pairs.exists():
        pytest.skip("the Tatoeba pairs (QKV_SHARED) are not here")
    card = (bundled_folders()["en-fr"] / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\| ([A-Z][^|]*[.?]) \| [^|]+ \| [^|]* \|$", card, re.MULTILINE)
    probes = [english for _, english in read_pairs(FOLDER / "probes.tsv")]
    assert set(probes) <= set(shown)
    data = {sentence_key(english) for english, _ in read_download(pairs)}
    assert sentence_key("Are you all ready?") in data  # the sentences are found
    assert not [english for english in shown if sentence_key(english) in data]


def test_human_translations_outvote_one_strange_teacher():
    from consensus import choose_consensus, collect_votes

    votes = collect_votes([[("Chat.", 1.0)], [("Le chat dort.", 0.9), ("Chat.", 0.1)]], ["Le chat dort ici."])
    assert sum(votes.values()) == pytest.approx(1)
    assert choose_consensus(votes) == "Le chat dort ici."
    assert choose_consensus(collect_votes([[("Chat.", 1.0)]], [])) == "Chat."


@cache
def generated_pairs() -> dict[str, str]:
    """All pairs that are made by rule."""
    from agreement import agreement_pairs
    from grammar import grammar_pairs
    from names import Names
    from number_pairs import number_pairs

    chosen = random.Random(0)
    kinds = agreement_pairs() | grammar_pairs(Names(["kitchen", "wander"], chosen), chosen) | number_pairs(chosen)
    pairs = {pair for several in kinds.values() for pair in several}
    assert len(dict(pairs)) == len(pairs), "an English sentence has one French one"
    return dict(pairs)


@pytest.mark.parametrize(
    ("english", "french"),
    [
        (
            "The goat didn't cross the lake because it was too tired.",
            "La chèvre n'a pas traversé le lac parce qu'elle était trop fatiguée.",
        ),
        (
            "The dog didn't cross the road because it was too wide.",
            "Le chien n'a pas traversé la route parce qu'elle était trop large.",
        ),
        ("The girl broke the mirror because it was ugly.", "La fille a cassé le miroir parce qu'il était laid."),
        ("She lost her watch, but she found it.", "Elle a perdu sa montre, mais elle l'a retrouvée."),
        ("The swallow didn't fly away.", "L'hirondelle ne s'est pas envolée."),
        ("The knives are big, but they are old.", "Les couteaux sont grands, mais ils sont vieux."),
        ("He no longer needs help.", "Il n'a plus besoin d'aide."),
        ("Nobody wears hats.", "Personne ne porte de chapeaux."),
        ("We have neither an uncle nor an aunt.", "Nous n'avons ni oncle ni tante."),
        ("They didn't turn the lamp off.", "Ils n'ont pas éteint la lampe."),
        ("Don't take the shirt off.", "N'enlève pas la chemise."),
        ("I bought twenty-one apples.", "J'ai acheté vingt et une pommes."),
        ("The bus leaves at half past one.", "Le bus part à une heure et demie."),
    ],
)
def test_generated_french_is_right(english, french):
    assert generated_pairs()[english] == french


def test_no_generated_pair_is_held_out_or_has_a_noun_of_the_checks():
    from checks import NOUNS
    from generated import generate_pairs
    from pairs import read_pairs
    from swapped import has_same_numbers

    probe = "We haven't eaten yet."
    assert probe in {english for _, english in read_pairs(FOLDER / "probes.tsv")}
    pairs = dict(generate_pairs([], 50_000))
    assert probe in pairs
    assert probe not in dict(generate_pairs([], 50_000, [probe]))
    nouns = "|".join(noun.english for noun in NOUNS)
    assert not [english for english in pairs if re.search(rf"\b(?:{nouns})s?\b.*\b(?:it|they)\b", english)]
    assert all(has_same_numbers(pair) for pair in pairs.items())


def test_swapped_pairs_say_the_same_on_both_sides():
    from names import Names
    from swapped import has_same_numbers, swap_digits, swap_names, swap_number_words

    pairs = [
        ("I think Tom has three dogs.", "Je pense que Tom a trois chiens."),
        ("Tom is 30 and Mary is 28.", "Tom a 30 ans et Mary en a 28."),
        ("He left at ten o'clock.", "Il est parti à dix heures."),
        ("It cost 10 dollars.", "Ça a coûté dix dollars."),
    ]
    chosen = random.Random(0)
    names = list(swap_names(pairs * 40, Names(["kitchen", "wander"], chosen).pick))
    assert len(names) == 80
    for english, french in names:
        new = set(re.findall(r"[A-ZÉ]\w+", english)) - {"He", "It"}
        assert new
        assert all(name in french for name in new)
        assert not re.search(r"que [AEIOU]", french)
    digits = list(swap_digits(pairs, 20, chosen))
    assert len({english for english, _ in digits}) > 15
    assert all(has_same_numbers(pair) for pair in digits)
    words = list(swap_number_words(pairs, 50, chosen))
    times = [french for _, french in words if "heures" in french]
    assert len(times) == 50
    assert not [
        french for french in times if re.search(r"treize|quatorze|quinze|seize|dix-|vingt|1[3-9]|[2-9]\d", french)
    ]
    assert all(has_same_numbers(pair) for pair in words)
    assert ("I think Tom has forty-three dogs.", "Je pense que Tom a quarante-trois chiens.") in words


def test_an_address_is_added_only_if_french_says_one_of_tu_and_vous():
    from swapped import add_address

    pairs = [
        ("Where do you live?", "Où vis-tu ?"),
        ("Where do you live?", "Où vivez-vous ?"),
        ("Where is he?", "Où est-il ?"),
        ("Do you think you can?", "Tu penses que vous pouvez ?"),
    ]
    found = list(add_address(pairs, random.Random(0)))
    assert len(found) == 2
    assert re.fullmatch(r"\w[\w' ]*, où vis-tu \?|Où vis-tu, [\w' ]+ \?", found[0][1])
    assert re.fullmatch(r"\w[\w' ]*, où vivez-vous \?|Où vivez-vous, [\w' ]+ \?", found[1][1])


def test_checks_have_names_that_training_has_not_and_count_what_passes():
    from checks import NAMES, make_checks, score_checks
    from names import KNOWN

    new, known = ({name for kind in ("Tom", "Mary") for name in names[kind]} for names in (NAMES, KNOWN))
    assert len(new) == 32
    assert not new & known
    pairs = [("Tom has 12 dogs.", "Tom a 12 chiens."), ("Where are you?", "Où es-tu ?"), ("Wait.", "Attends.")]
    checks = make_checks(pairs)
    assert {kind for kind, _, _ in checks} == {"names", "digits", "tu and vous", "pronouns"}
    right = [expected if kind != "tu and vous" else "Où vas-tu ?" for kind, _, expected in checks]
    assert all(score.split(" of ")[0] == score.split(" of ")[1] for score in score_checks(checks, right).values())
    assert all(score.startswith("0 of") for score in score_checks(checks, ["Rien"] * len(checks)).values())
