"""Checks of single abilities: sentences of the test part with another name, number or address.

The names are none of those in `swapped.py`, and no sentence of the test part was trained on.
"""

import random
import re
from collections.abc import Sequence

from pairs import Pair, read_pairs
from swapped import TU, VOUS, add_address, find_address, swap_digits, swap_names, swap_number_words

NAMES = {
    "Tom": ["Bruno", "Hassan", "Giovanni", "Lars", "Pablo", "Dmitri", "Kwame", "Thiago", "Hiroshi", "Aleksander"],
    "Mary": ["Heidi", "Olga", "Svetlana", "Aisha", "Chloe", "Beatriz", "Xiaoling", "Noor", "Freya", "Guadalupe"],
}
PER_KIND = 200
CHECKS = ("names", "digits", "number words", "tu and vous")
Check = tuple[str, str, str]  # kind, English, and what the French must have: words, or "tu" or "vous"


def new_words(french: str, old: str) -> str:
    """The words of a French sentence that are not in another one."""
    words = [set(re.findall(r"[\w-]+(?: et (?:une?|onze))?", text)) for text in (french, old)]
    return " ".join(sorted(words[0] - words[1]))


def make_checks(pairs: Sequence[Pair]) -> list[Check]:
    """At most 200 checks of each kind, from pairs that no model was trained on. An English sentence is used once."""
    chosen = random.Random(1)
    single = list({english: (english, french) for english, french in pairs}.values())
    found: list[Check] = []
    for pair in single:
        for english, _ in swap_names([pair], chosen, NAMES):
            name = next(name for name in [*NAMES["Tom"], *NAMES["Mary"]] if name in english)
            found.append(("names", english, name))
        for english, french in swap_digits([pair], 4, chosen):
            found.append(("digits", english, " ".join(sorted(set(re.findall(r"\d+", french))))))
        for english, french in swap_number_words([pair], 2, chosen):
            if not re.search(r"\d", french):
                found.append(("number words", english, new_words(french, pair[1])))
        for english, french in add_address([pair], chosen):
            found.append(("tu and vous", english, find_address((english, french))))
    found = [check for check in dict.fromkeys(found) if check[2]]
    kinds = {kind: [check for check in found if check[0] == kind] for kind in CHECKS}
    return [check for several in kinds.values() for check in chosen.sample(several, min(PER_KIND, len(several)))]


def passes(check: Check, french: str) -> bool:
    """Whether a translation has the words of a check, or the right one of tu and vous.

    >>> passes(("names", "I saw Olga.", "Olga"), "J'ai vu Olga."), passes(("digits", "I have 12.", "12"), "J'en ai 2.")
    (True, False)
    >>> passes(("tu and vous", "Mom, are you well?", "tu"), "Maman, vas-tu bien ?")
    True
    """
    kind, _, expected = check
    if kind == "tu and vous":
        found = [name for name, words in (("tu", TU), ("vous", VOUS)) if re.search(words, french, re.IGNORECASE)]
        return found == [expected]
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
