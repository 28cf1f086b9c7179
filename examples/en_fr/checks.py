"""Checks of single abilities: sentences of the test part with another name, number or address, and pronouns.

The names are none of those in `names.py`, the nouns stand for no "it" in generated pairs, and `make.py` generates no
sentence of the checks.
"""

import random
import re
from collections.abc import Sequence
from itertools import product

from pairs import Pair, read_pairs
from swapped import TU, VOUS, add_address, find_address, swap_digits, swap_names, swap_number_words
from words import read_nouns

MEN = (
    "Bruno Hassan Giovanni Lars Pablo Dmitri Kwame Thiago Hiroshi Aleksander Enrique Yusuf Mateusz Rajesh Connor Sipho"
)
WOMEN = (
    "Heidi Olga Svetlana Aisha Beatriz Xiaoling Noor Freya Guadalupe Leila Zainab Shreya Caitlin Ludmila Yara Nomvula"
)
NAMES = {"Tom": MEN.split(), "Mary": WOMEN.split(), "Boston": ["Boston"]}
NOUNS = read_nouns("""
    car voiture f, soup soupe f, apple pomme f, house maison f, table table f, book livre m, ladder échelle f,
    plate assiette f, tree arbre m, clock horloge f, wallet portefeuille m, bridge pont m
""")
REASONS = ["I washed the {} because it was dirty.", "The {} fell because it was too heavy."]
REASONS += ["She painted the {} because it was ugly.", "I like the {}, but it is too expensive."]
REASONS += ["We chose this {} because it looked good."]
PER_KIND = 200
CHECKS = ("names", "digits", "number words", "tu and vous", "pronouns")
Check = tuple[str, str, str]  # kind, English, and what the French must have: words, or one of tu and vous, il and elle


def new_words(french: str, old: str) -> str:
    """The words of a French sentence that are not in another one."""
    words = [set(re.findall(r"[\w-]+(?: et (?:une?|onze))?", text)) for text in (french, old)]
    return " ".join(sorted(words[0] - words[1]))


def make_checks(pairs: Sequence[Pair]) -> list[Check]:
    """At most 200 checks of each kind; `pairs` are pairs that no model was trained on. A sentence is used once."""
    chosen = random.Random(1)
    single = list({english: (english, french) for english, french in pairs}.values())
    found: list[Check] = []
    for pair in single:
        for english, _ in swap_names([pair], lambda kind: chosen.choice(NAMES[kind])):
            names = [name for name in (MEN + " " + WOMEN).split() if name in english]
            found.append(("names", english, " ".join(names)))
        for english, french in swap_digits([pair], 4, chosen):
            found.append(("digits", english, " ".join(sorted(set(re.findall(r"\d+", french))))))
        for english, french in swap_number_words([pair], 2, chosen):
            if not re.search(r"\d", french):
                found.append(("number words", english, new_words(french, pair[1])))
        for english, french in add_address([pair], chosen):
            found.append(("tu and vous", english, find_address((english, french))))
    found += [("pronouns", frame.format(noun.english), noun.pronoun) for noun, frame in product(NOUNS, REASONS)]
    found = [check for check in dict.fromkeys(found) if check[2]]
    kinds = {kind: [check for check in found if check[0] == kind] for kind in CHECKS}
    return [check for several in kinds.values() for check in chosen.sample(several, min(PER_KIND, len(several)))]


def passes(check: Check, french: str) -> bool:
    """Whether a translation has the words of a check, or the right one of two pronouns.

    >>> passes(("names", "I saw Olga.", "Olga"), "J'ai vu Olga."), passes(("digits", "I have 12.", "12"), "J'en ai 2.")
    (True, False)
    >>> passes(("tu and vous", "Mom, are you well?", "tu"), "Maman, vas-tu bien ?")
    True
    """
    kind, _, expected = check
    if kind == "tu and vous":
        found = [name for name, words in (("tu", TU), ("vous", VOUS)) if re.search(words, french, re.IGNORECASE)]
        return found == [expected]
    if kind == "pronouns":  # in lower case, because a sentence may begin with another one
        return [word for word in ("il", "elle") if re.search(rf"\b{word}\b", french)] == [expected]
    return all(re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", french) for word in expected.split())


def score_checks(checks: Sequence[Check], translations: Sequence[str]) -> dict[str, str]:
    """For each kind, the number of checks that pass, and of all."""
    counts: dict[str, list[bool]] = {}
    for check, french in zip(checks, translations, strict=True):
        counts.setdefault(check[0], []).append(passes(check, french))
    return {kind: f"{sum(passed)} of {len(passed)}" for kind, passed in counts.items()}


if __name__ == "__main__":  # python checks.py MODEL test.tsv: the checks of one model, and what it got wrong
    import sys
    from pathlib import Path

    import qkv

    checks = make_checks(read_pairs(Path(sys.argv[2])))
    model = qkv.load(sys.argv[1])
    texts = [result.text for result in model.generate_lines([check[1] for check in checks], max_tokens=96)]
    for check, text in zip(checks, texts, strict=True):
        if not passes(check, text):
            print(*check, text, sep="\t")
    print(score_checks(checks, texts))
