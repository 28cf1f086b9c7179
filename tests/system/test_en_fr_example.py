"""The parts of examples/en_fr that need no training: the split, the variants, and the consensus."""

import doctest
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "en_fr"


@pytest.fixture(autouse=True)
def example_on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    yield
    for name in ("pairs", "consensus", "generated"):
        sys.modules.pop(name, None)


def test_the_examples_in_docstrings_run():
    import consensus
    import generated
    import pairs

    assert doctest.testmod(pairs).attempted >= 2
    assert doctest.testmod(pairs).failed == 0
    assert doctest.testmod(consensus).failed == 0
    assert doctest.testmod(generated).failed == 0


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
