"""Names for generated pairs: known ones, and invented ones, so that a model learns to copy and not to know names."""

import re
from collections.abc import Iterable, Sequence
from random import Random

from pairs import Pair

MEN = """
    Paul Peter John David Michael Robert Daniel Nicolas Simon Lucas Victor Gabriel Samuel Kevin Brian Carlos Mohamed
    Yuki Ravi Boris Karim Ben Max Leo Jack Sam Mark Steve George Frank Martin Philip Richard Bill Bob Jim Ken Nick
    Tim Dan Joe Luke Matt Ryan Sean Scott Walter Wei Juan Pierre Jean Adam Eric Oscar Omar Ivan Alex Arthur Antoine
    Anders Björn Miguel Diego Luca Marco Paolo Stefan Klaus Jürgen Sven Pavel Andrei Sergei Nikolai Arjun Vikram Sanjay
    Wendell Ismael Kenji Haruto Jin Minh Tuan Kofi Amadou Ibrahim
    Tariq Ali Abdul Hugo Jules Théo Rémi Étienne Benoît Gilles Didier
"""
WOMEN = """
    Maria Julia Sarah Laura Sophie Kate Linda Jane Lucy Lisa Susan Nancy Claire Julie Nadia Fatima Yoko Rachel Rosa
    Clara Diana Vera Zoe Betty Carol Jessica Jennifer Karen Lea Manon Nina Paula Ruth Sandra Tina Wendy Mei Priya
    Camille Anna Emma Alice Eva Olivia Isabelle Emily Ingrid Astrid Greta Carmen Lucia Giulia Francesca Elena Irina
    Natasha Katya Anjali Lakshmi Sakura Keiko Hana Linh Thuy Amina Khadija Salma Ines Chloé Amélie Brigitte
    Sheila Sherry Itzel Monique Sylvie Agnès Gwen Bridget Siobhan Fiona Deborah Stephanie Christine
"""
CITIES = """
    Berlin Madrid Chicago Toronto Sydney Dublin Oslo Prague Lyon Marseille Lille Bordeaux Nantes
    Strasbourg Bangkok Hanoi Delhi Mumbai Nairobi Lagos Dakar Tunis Casablanca Lima Bogota Santiago
    Vancouver Seattle Denver Houston Miami Dallas Munich Naples Milan Zagreb Sofia Kiev Oxford
"""
KNOWN = {"Tom": MEN.split(), "Mary": WOMEN.split(), "Boston": CITIES.split()}
ELIDED = "AEIOUÉÈ"  # before names with these letters, "de" and "que" lose their vowel; no known name has a mute h

CLUSTERS = "bl br ch chr cl cr dr fl fr gl gr kh kl kr ph pl pr ps sc sh sk sl sm sn sp st str sw tch th tr ts tw wh zh"
ONSETS = [*"bcdfghjklmnprstvwxyz"]
VOWELS = [*"aaaeeeiiiooouuuy", "ai", "ao", "au", "ee", "ei", "ia", "ie", "io", "oo", "ou", "ua"]
CODAS = [*[""] * 20, *"klmnnrrsstxz", "ck", "ks", "ll", "nd", "ng", "nn", "rt", "sh", "tt"]
ENDINGS = {
    "Tom": ["", *"bdeiklmnorstux", "ck", "ld", "rd", "an", "us"],
    "Mary": ["a", "e", "ia", "ie", "na", "lle", "y", "ine", "i", "ah", "is", "en"],
    "Boston": ["", "ton", "ville", "burg", "a", "o", "ka", "ford", "stadt", "ra"],
}


def find_words(pairs: Iterable[Pair]) -> list[str]:
    """The lower-case words of both sides, without apostrophes and hyphens, sorted."""
    return sorted({word for pair in pairs for text in pair for word in re.findall(r"\b[a-z]{4,10}\b", text)})


class Names:
    """A source of names: a third known, a third of invented syllables, a third spliced from two words of the data.

    >>> [Names(["kitchen", "wander", "solid"], Random(seed)).pick("Tom") for seed in (2, 3, 5)]
    ['Kichen', 'Sven', 'Swuaksplatm']
    """

    def __init__(self, words: Sequence[str], chosen: Random) -> None:
        self.words, self.chosen = words, chosen
        self.ordinary = {word.capitalize() for word in words}

    def pick(self, kind: str = "") -> str:
        """A name of a man ("Tom"), a woman ("Mary") or a city ("Boston"); of a man or woman if no kind is given."""
        kind = kind or self.chosen.choice(["Tom", "Mary"])
        way = self.chosen.random()
        if way < 0.34:
            return self.chosen.choice(KNOWN[kind])
        name = self._invent(kind) if way < 0.67 or not self.words else self._splice()
        return self.pick(kind) if name in self.ordinary or not 2 < len(name) < 13 else name

    def _invent(self, kind: str) -> str:
        choose = self.chosen.choice
        first = choose([*ONSETS, *CLUSTERS.split(), "", "", "", ""])
        starts = [first, *self.chosen.choices([*ONSETS * 3, *CLUSTERS.split()], k=choose([0, 1, 1, 1, 2]))]
        return (
            "".join(start + choose(VOWELS) + choose(CODAS) for start in starts) + choose(ENDINGS[kind])
        ).capitalize()

    def _splice(self) -> str:
        one, other = self.chosen.choice(self.words), self.chosen.choice(self.words)
        return (one[: self.chosen.randint(2, 4)] + other[-self.chosen.randint(2, 5) :]).capitalize()
