"""Pairs made from pairs of the data: with another name, another number, or an address that decides between tu and vous.

The data has few names and numbers (9 % of the pairs are about Tom, 0.6 % have a digit), so a model does not learn to
copy them, and nothing in "Where are you going?" says whether French needs tu or vous. In these pairs, English says it.
"""

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from numbers_in_words import english_number, french_number
from pairs import Pair

MEN = """
    Paul Peter John David Michael Robert Daniel Nicolas Simon Lucas Victor Gabriel Samuel Kevin Brian Carlos Mohamed
    Yuki Ravi Boris Karim Ben Max Leo Jack Sam Mark Steve George Frank Martin Philip Richard Bill Bob Jim Ken Nick
    Tim Dan Joe Luke Matt Ryan Sean Scott Walter Wei Juan Pierre Jean Adam Eric Oscar Omar Ivan Alex Arthur Antoine
"""
WOMEN = """
    Maria Julia Sarah Laura Sophie Kate Linda Jane Lucy Lisa Susan Nancy Claire Julie Nadia Fatima Yoko Rachel Rosa
    Clara Diana Vera Zoe Betty Carol Jessica Jennifer Karen Lea Manon Nina Paula Ruth Sandra Tina Wendy Mei Priya
    Camille Anna Emma Alice Eva Olivia Isabelle Emily Ingrid
"""
NAMES = {"Tom": MEN.split(), "Mary": WOMEN.split()}
CLUSTERS = "bl br ch cl dm dr fr gl gr gu kh kr kw ph sh st sv th tr"
ONSETS = [*"bcdfghjklmnprstvwxyz"]
VOWELS = [*"aaaeeeiiiooouuuy", "ai", "ao", "au", "ee", "ei", "ia", "io", "oo", "ou"]
CODAS = [*[""] * 20, *"klmnnrrsstxz", "ck", "ks", "ll", "nd", "nn", "tt"]
ENDINGS = {"Tom": ["", *"bdklmnorstx", "ck", "ld", "rd"], "Mary": ["a", "e", "ia", "ie", "na", "lle", "y", "ine"]}

NUMBER_WORDS = {english_number(n): n for n in [*range(3, 21), 30, 40, 50]}

INFORMAL = [("Mom", "Maman"), ("Dad", "Papa"), ("my darling", "mon chéri"), ("my friend", "mon ami"), ("Tom", "Tom")]
FORMAL = [("sir", "Monsieur"), ("madam", "Madame"), ("doctor", "docteur"), ("Mr. Jackson", "Monsieur Jackson")]
FORMAL += [
    ("gentlemen", "Messieurs"),
    ("ladies and gentlemen", "Mesdames et Messieurs"),
    ("officer", "Monsieur l'agent"),
]
TU = r"\b(?:tu|te|toi|ton|ta|tes)\b|\bt'"
VOUS = r"\b(?:vous|votre|vos)\b"
SENTENCE_STARTS = """
    Are Can Could Did Do Does Don't Have How If Is May Please What When Where Which Who Why Will Would You Your
"""


def capital(text: str) -> str:
    """The text with a capital first letter.

    >>> capital("l'ours")
    "L'ours"
    """
    return text[:1].upper() + text[1:]


def has_same_numbers(pair: Pair) -> bool:
    """Whether both sides have the same numbers in digits. The data writes many of them in words, or as another time.

    >>> has_same_numbers(("Call 119.", "Appelez le 119."))
    True
    >>> has_same_numbers(("It cost $10.", "Ça a coûté dix dollars."))
    False
    """
    english, french = (sorted(re.findall(r"\d+", text)) for text in pair)
    return english == french


def replace_words(text: str, new: Mapping[str, str]) -> str:
    """The text with other words. A hyphen is part of a word.

    >>> replace_words("dix-sept chats, sept chiens", {"sept": "neuf"})
    'dix-sept chats, neuf chiens'
    """
    choices = "|".join(map(re.escape, new))
    return re.sub(rf"(?<![\w-])(?:{choices})(?![\w-])", lambda found: new[found[0]], text)


def swap_digits(pairs: Iterable[Pair], copies: int, chosen: random.Random) -> Iterator[Pair]:
    """Copies of pairs with the same numbers in digits on both sides, with other numbers of the same length.

    >>> list(swap_digits([("I have 12 cats.", "J'ai 12 chats.")], 1, random.Random(0)))
    [('I have 59 cats.', "J'ai 59 chats.")]
    """
    for english, french in pairs:
        numbers = sorted(set(re.findall(r"\d+", english)))
        if not numbers or not has_same_numbers((english, french)) or re.search(r"\d[:.,]\d|\b1\b", english):
            continue  # times and decimals are written differently, and after 1 there is no plural
        for _ in range(copies):
            lows = [10 ** (len(number) - 1) for number in numbers]
            new = {
                number: str(chosen.randrange(max(2, low), 10 * low)) for number, low in zip(numbers, lows, strict=True)
            }
            swapped = [re.sub(r"\d+", lambda found, new=new: new[found[0]], text) for text in (english, french)]
            yield swapped[0], swapped[1]


def swap_number_words(pairs: Iterable[Pair], copies: int, chosen: random.Random) -> Iterator[Pair]:
    """Copies of pairs with one number in words, with another number in words or in digits.

    >>> list(swap_number_words([("I have three cats.", "J'ai trois chats.")], 2, random.Random(1)))
    [('I have nineteen cats.', "J'ai dix-neuf chats."), ('I have thirty-six cats.', "J'ai trente-six chats.")]
    """
    for english, french in pairs:
        words = [word for word in re.findall(r"[\w-]+", english.lower()) if word in NUMBER_WORDS]
        if len(words) != 1 or re.search(r"\d", english + french) or words[0] not in re.findall(r"[\w-]+", english):
            continue
        old = french_number(NUMBER_WORDS[words[0]])
        if len(re.findall(rf"(?<![\w-]){old}(?![\w-])", french)) != 1:
            continue
        is_time = bool(re.search(r"heure|o'clock|\bmidi\b", french + english))
        for _ in range(copies):
            number = chosen.choice([n for n in range(2, 13 if is_time else 100) if n % 10 != 1 or n == 11])
            in_words = (english_number(number), french_number(number))
            new = chosen.choice([in_words, (str(number), str(number))])
            yield replace_words(english, {words[0]: new[0]}), replace_words(french, {old: new[1]})


def invent_name(kind: str, chosen: random.Random) -> str:
    """A name that nobody has, so that the model learns to copy names and not to know them.

    >>> [invent_name("Mary", random.Random(seed)) for seed in (1, 2, 5)]
    ['Jiine', 'Cania', 'Thiokstatie']
    """
    starts = [
        chosen.choice(["", "", *ONSETS, *CLUSTERS.split()]),
        *chosen.choices(ONSETS, k=chosen.choice([0, 1, 1, 2])),
    ]
    syllables = [start + chosen.choice(VOWELS) + chosen.choice(CODAS) for start in starts]
    return ("".join(syllables) + chosen.choice(ENDINGS[kind])).capitalize()


def put_name(pair: Pair, old: str, new: str) -> Pair:
    """The pair with another name; "de" and "que" lose their vowel before a vowel.

    >>> put_name(("I think Tom lied.", "Je pense que Tom a menti."), "Tom", "Emma")
    ('I think Emma lied.', "Je pense qu'Emma a menti.")
    """
    english, french = (re.sub(rf"\b{old}\b", new, text) for text in pair)
    if new[0] in "AEIOU":
        french = re.sub(rf"\b(d|qu|[Jj]usqu|[Ll]orsqu|[Pp]uisqu|[Dd]|[Qq]u)e {new}", rf"\1'{new}", french)
    return english, french


def swap_names(
    pairs: Iterable[Pair], chosen: random.Random, names: Mapping[str, Sequence[str]] | None = None
) -> Iterator[Pair]:
    """Copies of pairs with Tom or Mary on both sides, with one of `names`; by default, often an invented one.

    >>> list(swap_names([("I saw Tom.", "J'ai vu Tom."), ("Wait.", "Attends.")], random.Random(1), {"Tom": ["Omar"]}))
    [('I saw Omar.', "J'ai vu Omar.")]
    """
    for pair in pairs:
        for old in names or NAMES:
            counts = [len(re.findall(rf"\b{old}\b", text)) for text in pair]
            if counts[0] == counts[1] > 0:
                known = chosen.choice((names or NAMES)[old])
                yield put_name(pair, old, known if names or chosen.random() < 0.4 else invent_name(old, chosen))


def find_address(pair: Pair) -> str:
    """Whether the French side says "tu" or "vous" to a "you" of the English side; "" if neither, or both."""
    if not re.search(r"\byou", pair[0], re.IGNORECASE):
        return ""
    found = [name for name, words in (("tu", TU), ("vous", VOUS)) if re.search(words, pair[1], re.IGNORECASE)]
    return found[0] if len(found) == 1 else ""


def add_address(pairs: Sequence[Pair], chosen: random.Random) -> Iterator[Pair]:
    """Copies of pairs with "you" that begin with an address, such as "Mom," for tu and "Sir," for vous.

    >>> pairs = [("Where are you going?", "Où vas-tu ?")]
    >>> list(add_address(pairs, random.Random(0)))
    [('My friend, where are you going?', 'Mon ami, où vas-tu ?')]
    """
    starts = set(SENTENCE_STARTS.split())
    for english, french in pairs:
        kind = find_address((english, french))
        if kind and english.split()[0] in starts and not re.match(r"(?:Tom|Mary|Dieu)\b", french):
            address = chosen.choice(INFORMAL if kind == "tu" else FORMAL)
            texts = [
                f"{capital(one)}, {text[0].lower()}{text[1:]}"
                for one, text in zip(address, (english, french), strict=True)
            ]
            yield texts[0], texts[1]
