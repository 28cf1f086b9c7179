"""The pairs on which the translator is polished: made by rule, and made from pairs of the data."""

from collections.abc import Iterable, Sequence
from random import Random

from agreement import agreement_pairs
from grammar import grammar_pairs
from names import Names, find_words
from number_pairs import number_pairs
from pairs import Pair, sentence_key
from swapped import add_address, say_you_all, swap_digits, swap_names, swap_number_words

# How many pairs of each kind are used, as parts of the whole. A kind with fewer pairs gives all of them.
PARTS = {
    "subjects_and_objects": 0.05,
    "people_and_things": 0.05,
    "objects": 0.05,
    "object_pronouns": 0.03,
    "contrasts": 0.03,
    "flights": 0.02,
    "negated_verbs": 0.02,
    "nothing_and_nobody": 0.01,
    "neither_nor": 0.02,
    "particles": 0.03,
    "gifts": 0.02,
    "introductions": 0.05,
    "numbers_in_words": 0.04,
    "times_and_dates": 0.03,
    "numbers_in_digits": 0.06,
    "names": 0.26,
    "digits": 0.05,
    "number words": 0.04,
    "addresses": 0.1,
    "you all": 0.01,
}


def generate_pairs(pairs: Sequence[Pair], count: int, held_out: Iterable[str] = ()) -> list[Pair]:
    """At most `count` pairs: made by rule, and made from `pairs`; without the English sentences that are held out."""
    chosen = Random(0)
    names = Names(find_words(pairs), chosen)
    kinds = agreement_pairs() | grammar_pairs(names, chosen) | number_pairs(chosen)
    kinds |= {
        "names": [pair for _ in range(4) for pair in swap_names(pairs, names.pick)],
        "digits": list(swap_digits(pairs, 20, chosen)),
        "number words": list(swap_number_words(pairs, 6, chosen)),
        "addresses": list(add_address(pairs, chosen)),
        "you all": list(say_you_all(pairs)),
    }
    assert kinds.keys() == PARTS.keys()
    sizes = {kind: min(round(part * count), len(kinds[kind])) for kind, part in PARTS.items()}
    known = {sentence_key(english) for english in held_out}
    found = [pair for kind, size in sizes.items() for pair in chosen.sample(kinds[kind], size)]
    return [pair for pair in found if sentence_key(pair[0]) not in known]
