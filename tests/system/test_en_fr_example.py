"""The parts of examples/en_fr that need no training: the split, the consensus, generated and swapped pairs, checks."""

import doctest
import random
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "en_fr"
MODULES = ("pairs", "consensus", "numbers_in_words", "swapped", "generated", "checks")


@pytest.fixture(autouse=True)
def example_on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


def test_the_examples_in_docstrings_run():
    results = {name: doctest.testmod(import_module(name)) for name in MODULES}
    assert {name for name, result in results.items() if result.attempted} == {*MODULES} - {"generated"}
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


def test_human_translations_outvote_one_strange_teacher():
    from consensus import choose_consensus, collect_votes

    votes = collect_votes([[("Chat.", 1.0)], [("Le chat dort.", 0.9), ("Chat.", 0.1)]], ["Le chat dort ici."])
    assert sum(votes.values()) == pytest.approx(1)
    assert choose_consensus(votes) == "Le chat dort ici."
    assert choose_consensus(collect_votes([[("Chat.", 1.0)]], [])) == "Chat."


def test_generated_french_agrees_and_contains_no_probe():
    from generated import agreement_pairs, number_pairs
    from pairs import read_pairs, sentence_key

    pairs = dict(agreement_pairs() + number_pairs())
    goat = pairs["The goat didn't cross the lake because it was too tired."]
    assert goat == "La chèvre n'a pas traversé le lac parce qu'elle était trop fatiguée."
    road = pairs["The dog didn't cross the road because it was too wide."]
    assert road == "Le chien n'a pas traversé la route parce qu'elle était trop large."
    assert pairs["I bought twenty-one apples."] == "J'ai acheté vingt et une pommes."
    assert pairs["The bus leaves at half past one."] == "Le bus part à une heure et demie."
    probes = {sentence_key(english) for _, english in read_pairs(FOLDER / "probes.tsv")}
    assert not probes & {sentence_key(english) for english in pairs}


def test_swapped_pairs_say_the_same_on_both_sides():
    from swapped import has_same_numbers, swap_digits, swap_names, swap_number_words

    pairs = [
        ("I think Tom has three dogs.", "Je pense que Tom a trois chiens."),
        ("Tom is 30 and Mary is 28.", "Tom a 30 ans et Mary en a 28."),
        ("He left at ten o'clock.", "Il est parti à dix heures."),
        ("It cost 10 dollars.", "Ça a coûté dix dollars."),
    ]
    chosen = random.Random(0)
    names = list(swap_names(pairs * 40, chosen))
    assert len(names) == 120
    for english, french in names:
        new = set(re.findall(r"[A-Z]\w+", english)) - {"He", "It"}
        assert new
        assert all(name in french for name in new)
        assert not re.search(r"que [AEIOU]", french)
    digits = list(swap_digits(pairs, 20, chosen))
    assert len({english for english, _ in digits}) > 15
    assert all(has_same_numbers(pair) for pair in digits)
    assert "Il est parti à dix-sept heures." not in {french for _, french in swap_number_words(pairs, 50, chosen)}
    words = list(swap_number_words(pairs, 50, chosen))
    assert all(has_same_numbers(pair) for pair in words)
    assert ("I think Tom has twenty-two dogs.", "Je pense que Tom a vingt-deux chiens.") in words


def test_an_address_is_added_only_if_french_says_one_of_tu_and_vous():
    from swapped import add_address

    pairs = [
        ("Where are you?", "Où es-tu ?"),
        ("Where are you?", "Où êtes-vous ?"),
        ("Where is he?", "Où est-il ?"),
        ("Do you think you can?", "Tu penses que vous pouvez ?"),
    ]
    found = list(add_address(pairs, random.Random(0)))
    assert len(found) == 2
    assert re.fullmatch(r"\w[\w' ]*, où es-tu \?", found[0][1])
    assert re.fullmatch(r"\w[\w' ]*, où êtes-vous \?", found[1][1])


def test_checks_have_names_that_training_has_not_and_count_what_passes():
    from checks import NAMES, make_checks, score_checks
    from swapped import NAMES as TRAINED

    assert not {name for several in NAMES.values() for name in several} & {
        n for names in TRAINED.values() for n in names
    }
    pairs = [("Tom has 12 dogs.", "Tom a 12 chiens."), ("Where are you?", "Où es-tu ?"), ("Wait.", "Attends.")]
    checks = make_checks(pairs)
    assert {kind for kind, _, _ in checks} == {"names", "digits", "tu and vous"}
    right = [expected if kind != "tu and vous" else "Où vas-tu ?" for kind, _, expected in checks]
    assert all(score.split(" of ")[0] == score.split(" of ")[1] for score in score_checks(checks, right).values())
    assert all(score.startswith("0 of") for score in score_checks(checks, ["Rien"] * len(checks)).values())
