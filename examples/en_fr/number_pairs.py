"""Pairs with numbers: in words, in digits, and as French writes times, dates, prices and decimals."""

from collections.abc import Iterator
from itertools import product
from random import Random

from numbers_in_words import english_number, french_number
from pairs import Pair
from words import COUNTED, THINGS, english_plural, french_plural

MONTHS = {
    "January": "janvier", "February": "février", "March": "mars", "April": "avril", "May": "mai", "June": "juin",
    "July": "juillet", "August": "août", "September": "septembre", "October": "octobre", "November": "novembre",
    "December": "décembre",
}  # fmt: skip
EVENTS = [("The bus leaves at", "Le bus part à"), ("The plane leaves at", "L'avion part à"), ("It is", "Il est")]
EVENTS += [("I get up at", "Je me lève à"), ("The film starts at", "Le film commence à")]
EVENTS += [("He came at", "Il est venu à"), ("The shop closes at", "Le magasin ferme à")]
COUNTS = [("I bought {}.", "J'ai acheté {}."), ("She has {}.", "Elle a {}."), ("There are {} here.", "Il y a {} ici.")]
COUNTS += [("He sold {} yesterday.", "Il a vendu {} hier."), ("We saw {}.", "Nous avons vu {}.")]
PLAIN = [("My phone number is {}.", "Mon numéro de téléphone est le {}."), ("Call me at {}.", "Appelle-moi au {}.")]
PLAIN += [("The code is {}.", "Le code est {}."), ("I live at number {}.", "J'habite au numéro {}.")]
PLAIN += [("It costs {} euros.", "Ça coûte {} euros."), ("I paid {} dollars.", "J'ai payé {} dollars.")]
PLAIN += [
    ("He is in room {}.", "Il est dans la chambre {}."),
    ("Open your book to page {}.", "Ouvrez votre livre à la page {}."),
]
YEARS = [("He was born in {}.", "Il est né en {}."), ("She died in {}.", "Elle est morte en {}.")]
YEARS += [
    ("The war began in {}.", "La guerre a commencé en {}."),
    ("I have lived here since {}.", "J'habite ici depuis {}."),
]
DATES = [("He was born on {}.", "Il est né le {}."), ("The party is on {}.", "La fête a lieu le {}.")]
DATES += [("We arrive on {}.", "Nous arrivons le {}."), ("She left on {}.", "Elle est partie le {}.")]
DATES += [("Today is {}.", "Nous sommes le {}.")]


def numbers_in_words(chosen: Random) -> Iterator[Pair]:
    """Things that are counted in words, and ages."""
    large = [chosen.choice([100, 10, 1]) * chosen.randrange(1, 10) * chosen.choice([10, 100]) for _ in range(60)]
    large += [chosen.randrange(101, 10_000) for _ in range(60)]
    for n, noun, (source, target) in product([*range(2, 100), *large], COUNTED, COUNTS):
        words = f"{english_number(n)} {english_plural(noun.english)}"
        counted = f"{french_number(n, noun.gender)} {french_plural(noun.french)}"
        yield source.format(words), target.format(counted)
    for n, (who, a) in product(range(2, 100), [("He is", "Il a"), ("She is", "Elle a"), ("I am", "J'ai")]):
        yield f"{who} {english_number(n)} years old.", f"{a} {french_number(n)} ans."
        yield f"{who} {n} years old.", f"{a} {n} ans."


def times_and_dates(chosen: Random) -> Iterator[Pair]:
    """Times in words and digits, and dates with and without a year."""
    quarters = [("half past {}", "{} et demie"), ("a quarter past {}", "{} et quart"), ("{} o'clock", "{}")]
    quarters += [("ten past {}", "{} dix"), ("twenty past {}", "{} vingt")]
    for hour, (when, quand), (source, target) in product(range(1, 12), quarters, EVENTS):
        hours = f"{french_number(hour, 'f')} heure{'s' if hour > 1 else ''}"
        yield f"{source} {when.format(english_number(hour))}.", f"{target} {quand.format(hours)}."
    for (source, target), hour in product(EVENTS, range(1, 24)):
        for minute in chosen.sample(range(1, 60), 12):
            yield f"{source} {hour}:{minute:02}.", f"{target} {hour} h {minute:02}."
    for (source, target), (month, mois), day in product(DATES, MONTHS.items(), range(2, 29)):
        year = chosen.randrange(1700, 2060)
        english, french = chosen.choice([
            (f"{month} {day}", f"{day} {mois}"),
            (f"{month} {day}{ordinal_ending(day)}", f"{day} {mois}"),
            (f"{month} {day}, {year}", f"{day} {mois} {year}"),
            (f"{day} {month} {year}", f"{day} {mois} {year}"),
        ])  # fmt: skip
        yield source.format(english), target.format(french)


def ordinal_ending(n: int) -> str:
    """What English writes after a number of a day.

    >>> [ordinal_ending(n) for n in (2, 3, 11, 21, 30)]
    ['nd', 'rd', 'th', 'st', 'th']
    """
    return "th" if 10 < n % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")


def numbers_in_digits(chosen: Random, count: int) -> Iterator[Pair]:
    """Numbers of all lengths that are copied, and thousands, decimals, percentages and prices, which are not quite."""
    for _ in range(count):
        source, target = chosen.choice(PLAIN)
        digits = chosen.randrange(1, 10)
        number = str(chosen.randrange(max(2, 10 ** (digits - 1)), 10**digits))
        if target in (PLAIN[0][1], PLAIN[1][1]) and chosen.random() < 0.6:  # a telephone number with hyphens
            lengths = chosen.choices([2, 3, 4], k=chosen.choice([2, 3]))
            number = "-".join("".join(chosen.choices("0123456789", k=length)) for length in lengths)
        yield source.format(number), target.format(number)
        source, target = chosen.choice(YEARS)
        year = str(chosen.randrange(1000, 2100))
        yield source.format(year), target.format(year)
        thousands = f"{chosen.randrange(1000, 10 ** chosen.randrange(4, 8)):,}"
        noun, (source, target) = chosen.choice(COUNTED), chosen.choice(COUNTS)
        many = (
            f"{thousands} {english_plural(noun.english)}",
            f"{thousands.replace(',', ' ')} {french_plural(noun.french)}",
        )
        yield source.format(many[0]), target.format(many[1])
        decimal = f"{chosen.randrange(2, 100)}.{chosen.randrange(1, 10)}"
        unit, unite = chosen.choice(
            [("kilos", "kilos"), ("meters", "mètres"), ("kilometers", "kilomètres"), ("liters", "litres")]
        )
        yield f"That is {decimal} {unit}.", f"Cela fait {decimal.replace('.', ',')} {unite}."
        percent = chosen.randrange(2, 100)
        yield f"{percent}% of the students passed.", f"{percent} % des étudiants ont réussi."
        price, thing = chosen.randrange(2, 1000), chosen.choice(THINGS)
        yield f"I paid ${price} for the {thing.english}.", f"J'ai payé {price} dollars pour {thing.the}."


def number_pairs(chosen: Random) -> dict[str, list[Pair]]:
    """All pairs of this module, by their form."""
    found = {
        "numbers_in_words": numbers_in_words(chosen),
        "times_and_dates": times_and_dates(chosen),
        "numbers_in_digits": numbers_in_digits(chosen, 4000),
    }
    return {name: list(dict.fromkeys(pairs)) for name, pairs in found.items()}
