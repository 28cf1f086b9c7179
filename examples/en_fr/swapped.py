"""Pairs made from pairs of the data: with another name, another number, or an address that decides between tu and vous.

The data has few names and numbers (9 % of the pairs are about Tom, 0.6 % have a digit), so a model does not learn to
copy them, and nothing in "Where are you going?" says whether French needs tu or vous. In these pairs, English says it.
"""

import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from names import ELIDED, KNOWN
from numbers_in_words import english_number, french_number
from pairs import Pair
from words import capital

NUMBER_WORDS = {english_number(n): n for n in [*range(3, 21), 30, 40, 50]}

INFORMAL = [("Mom", "Maman"), ("Dad", "Papa"), ("my darling", "mon chéri"), ("my friend", "mon ami"), ("Tom", "Tom")]
FORMAL = [("sir", "Monsieur"), ("madam", "Madame"), ("doctor", "docteur"), ("Mr. Jackson", "Monsieur Jackson")]
FORMAL += [("officer", "Monsieur l'agent"), ("Mrs. Smith", "Madame Smith")]
SEVERAL = [("gentlemen", "Messieurs"), ("ladies and gentlemen", "Mesdames et Messieurs"), ("children", "les enfants")]
SEVERAL += [("boys", "les garçons"), ("my friends", "mes amis")]
ONE_MAN = {"tu": [INFORMAL[1], INFORMAL[3], INFORMAL[4]], "vous": [FORMAL[0], FORMAL[3], FORMAL[4]]}
ANYONE = {"tu": INFORMAL, "vous": FORMAL + SEVERAL}
TO_BE = r"\b(?:es|êtes|être|sois|soyez|étais|étiez|seras|serez|seriez|été)\b"
TU = r"\b(?:tu|te|toi|ton|ta|tes)\b|\bt'"
VOUS = r"\b(?:vous|votre|vos)\b"
SENTENCE_STARTS = """
    Are Can Could Did Do Does Don't Have How If Is May Please What When Where Which Who Why Will Would You Your
"""


def has_same_numbers(pair: Pair) -> bool:
    """Whether both sides have the same numbers in digits. The data writes many of them in words, or as another time.

    >>> has_same_numbers(("Call 119.", "Appelez le 119."))
    True
    >>> has_same_numbers(("It cost $10.", "Ça a coûté dix dollars."))
    False
    """
    english, french = (sorted(re.findall(r"\d+", text)) for text in pair)
    return english == french


def keeps_names(pair: Pair, references: Iterable[str]) -> bool:
    """Whether the French side has each capitalised word of English, after the first, that a reference has.

    >>> keeps_names(("I saw Tom.", "J'ai vu un homme."), ["J'ai vu Tom."])
    False
    >>> keeps_names(("I saw Tom on Monday.", "J'ai vu Tom lundi."), ["J'ai vu Tom lundi."])
    True
    """
    names = re.findall(r"(?<=[a-z,] )[A-Z]\w+", pair[0])
    return all(name in pair[1] for name in names if any(name in text for text in references))


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
        if (
            not numbers
            or not has_same_numbers((english, french))
            or re.search(r"\d[:.,]\d|\b1\b|\d(?:st|nd|rd|th)\b", english)
        ):
            continue  # times, decimals and ordinals are written differently, and after 1 there is no plural
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
        if re.search(r"hundred|thousand|million|cents?\b|mille", english + french):
            continue
        is_time = bool(re.search(r"heure|o'clock|\bmidi\b", french + english))
        for _ in range(copies):
            number = chosen.choice([n for n in range(2, 13 if is_time else 100) if n % 10 != 1 or n == 11])
            in_words = (english_number(number), french_number(number))
            new = chosen.choice([in_words, (str(number), str(number))])
            yield replace_words(english, {words[0]: new[0]}), replace_words(french, {old: new[1]})


def put_name(pair: Pair, old: str, new: str) -> Pair:
    """The pair with another name; "de" and "que" lose their vowel before a vowel.

    >>> put_name(("I think Tom lied.", "Je pense que Tom a menti."), "Tom", "Emma")
    ('I think Emma lied.', "Je pense qu'Emma a menti.")
    """
    english, french = (re.sub(rf"\b{old}\b", new, text) for text in pair)
    if new[0] in ELIDED:
        french = re.sub(rf"\b(d|qu|[Jj]usqu|[Ll]orsqu|[Pp]uisqu|[Dd]|[Qq]u)e {new}", rf"\1'{new}", french)
    return english, french


def swap_names(pairs: Iterable[Pair], pick: Callable[[str], str]) -> Iterator[Pair]:
    """Copies of pairs with Tom, Mary or Boston on both sides, with names that `pick` returns instead of all of these.

    >>> pairs = [("I saw Tom.", "J'ai vu Tom."), ("Wait.", "Attends."), ("Tom loves Mary.", "Tom aime Mary.")]
    >>> list(swap_names(pairs, {"Tom": "Omar", "Mary": "Ana"}.__getitem__))
    [('I saw Omar.', "J'ai vu Omar."), ('Omar loves Ana.', 'Omar aime Ana.')]
    """
    for pair in pairs:
        counts = {old: [len(re.findall(rf"\b{old}\b", text)) for text in pair] for old in KNOWN}
        found = [old for old, (one, other) in counts.items() if one or other]
        if found and all(one == other for one, other in counts.values()):
            swapped = pair
            for old in found:
                swapped = put_name(swapped, old, pick(old))
            yield swapped


def find_address(pair: Pair) -> str:
    """Whether the French side says "tu" or "vous" to a "you" of the English side; "" if neither, or both."""
    if not re.search(r"\byou", pair[0], re.IGNORECASE):
        return ""
    found = [name for name, words in (("tu", TU), ("vous", VOUS)) if re.search(words, pair[1], re.IGNORECASE)]
    return found[0] if len(found) == 1 else ""


def add_address(pairs: Sequence[Pair], chosen: random.Random) -> Iterator[Pair]:
    """Copies of pairs with "you" and an address, such as "Mom" for tu and "sir" for vous, at the start or at the end.

    With forms of "être", after which an adjective has to agree, the address is one man.

    >>> pairs = [("Where are you going?", "Où vas-tu ?")]
    >>> list(add_address(pairs * 2, random.Random(1)))
    [('Dad, where are you going?', 'Papa, où vas-tu ?'), ('Where are you going, Mom?', 'Où vas-tu, maman ?')]
    """
    starts = set(SENTENCE_STARTS.split())
    for english, french in pairs:
        kind = find_address((english, french))
        if not kind or english.split()[0] not in starts or re.match(r"(?:Tom|Mary|Dieu)\b", french):
            continue
        may_agree = bool(re.search(TO_BE, french, re.IGNORECASE))
        if may_agree and re.search(r"\w(?:es?|s)\W*$", french):  # it may end in a feminine or plural adjective
            continue
        address = chosen.choice(ONE_MAN[kind] if may_agree else ANYONE[kind])
        if english[-1] in ".?" and french[-1] == english[-1] and chosen.random() < 0.35:
            yield f"{english[:-1]}, {address[0]}{english[-1]}", put_at_end(french, address[1])
        else:
            sentences = (f"{text[0].lower()}{text[1:]}" for text in (english, french))
            one, other = (f"{capital(name)}, {text}" for name, text in zip(address, sentences, strict=True))
            yield one, other


def put_at_end(french: str, address: str) -> str:
    """The sentence with an address before its end mark.

    >>> put_at_end("Où vas-tu ?", "Maman"), put_at_end("Tu es en retard.", "Tom")
    ('Où vas-tu, maman ?', 'Tu es en retard, Tom.')
    """
    name = address.lower() if address in ("Maman", "Papa") else address
    return f"{french[:-1].rstrip()}, {name}{' ' if french[-1] == '?' else ''}{french[-1]}"


def say_you_all(pairs: Iterable[Pair]) -> Iterator[Pair]:
    """Copies of questions to "vous" that ask several people.

    >>> list(say_you_all([("Do you want to eat?", "Voulez-vous manger ?"), ("Do you swim?", "Nages-tu ?")]))
    [('Do you all want to eat?', 'Voulez-vous tous manger ?')]
    """
    for english, french in pairs:
        if (
            re.match(r"(?:Do|Can|Will|Have|Did) you (?!all|both|two|guys)", english)
            and len(re.findall(r"-vous (?!les|mes|ses|ces|nos|vos|leurs)", french)) == 1
        ):
            yield english.replace(" you ", " you all ", 1), french.replace("-vous ", "-vous tous ", 1)
