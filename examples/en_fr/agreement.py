"""Pairs in which "it" or "they" stands for a noun, and the French pronoun, adjective and participle agree with it.

Few sentences of the data say what an "it" stands for. An English sentence has one French one.
"""

from collections.abc import Iterator
from functools import cache
from itertools import product

from pairs import Pair
from words import (
    ANIMALS,
    BIRDS,
    FOODS,
    PEOPLE,
    PLACES,
    QUALITIES,
    TASTES,
    THINGS,
    TIRED,
    WIDE,
    Adjective,
    Noun,
    capital,
    english_plural,
    french_plural,
)

DEGREES = [("too ", "trop "), ("very ", "très "), ("", "")]
CROSSED = [("didn't cross", "n'a pas traversé"), ("couldn't cross", "n'a pas pu traverser"), ("avoided", "a évité")]
CROSSED += [("left", "a quitté"), ("didn't like", "n'a pas aimé")]
BOUGHT = [("I didn't buy", "Je n'ai pas acheté"), ("She sold", "Elle a vendu"), ("He didn't like", "Il n'a pas aimé")]
BOUGHT += [("We bought", "Nous avons acheté"), ("I sold", "J'ai vendu"), ("They hid", "Ils ont caché")]
BOUGHT += [("I threw away", "J'ai jeté"), ("He gave away", "Il a donné"), ("We returned", "Nous avons rendu")]
EATEN = [("I didn't eat", "Je n'ai pas mangé"), ("She ate", "Elle a mangé"), ("He didn't want", "Il n'a pas voulu")]
EATEN += [("We didn't like", "Nous n'avons pas aimé"), ("They didn't eat", "Ils n'ont pas mangé")]
FOUND = [("lost", "perdu", "found it", "retrouvé"), ("sold", "vendu", "bought it back", "racheté")]
FOUND += [("broke", "cassé", "repaired it", "réparé"), ("hid", "caché", "forgot it", "oublié")]
OPPOSITES = [{"big", "small"}, {"ugly", "beautiful"}, {"new", "old"}, {"big", "short"}]
FOR_THINGS = {"new", "short", "expensive"}
OWNERS = [("I", "j'ai", "my", "je l'ai"), ("He", "il a", "his", "il l'a"), ("She", "elle a", "her", "elle l'a")]


def because(noun: Noun, adjective: Adjective, degree: tuple[str, str]) -> Pair:
    """The reason in both languages: the noun was like this."""
    english, french = degree
    return (
        f"because it was {english}{adjective.english}.",
        f"parce qu'{noun.pronoun} était {french}{adjective.of(noun)}.",
    )


def subjects_and_objects() -> Iterator[Pair]:
    """Sentences with two nouns; the adjective says which of them "it" stands for."""
    for animal, place, degree in product(ANIMALS, PLACES, DEGREES):
        for noun, adjective in [(animal, one) for one in TIRED] + [(place, one) for one in WIDE]:
            reason = because(noun, adjective, degree)
            for english, french in CROSSED:
                source = f"The {animal.english} {english} the {place.english} {reason[0]}"
                yield source, f"{capital(animal.the)} {french} {place.the} {reason[1]}"
    for animal, food, degree in product(ANIMALS, FOODS, DEGREES):
        for noun, adjective in [(animal, one) for one in TIRED] + [(food, one) for one in TASTES]:
            reason = because(noun, adjective, degree)
            source = f"The {animal.english} didn't eat the {food.english} {reason[0]}"
            yield source, f"{capital(animal.the)} n'a pas mangé {food.the} {reason[1]}"


def people_and_things() -> Iterator[Pair]:
    """Sentences with a person and a thing: "it" stands for the thing, and he or she for the person."""
    did = [("dropped", "a laissé tomber"), ("hid", "a caché"), ("bought", "a acheté"), ("sold", "a vendu")]
    did += [("didn't take", "n'a pas pris"), ("broke", "a cassé"), ("chose", "a choisi")]
    for person, thing, (english, french) in product(PEOPLE, THINGS, did):
        source = f"The {person.english} {english} the {thing.english}"
        target = f"{capital(person.the)} {french} {thing.the}"
        for adjective in QUALITIES:
            reason = because(thing, adjective, DEGREES[0] if "n't" in english else DEGREES[2])
            yield f"{source} {reason[0]}", f"{target} {reason[1]}"
        for adjective in TIRED[:6]:
            he = "she" if person.is_feminine else "he"
            reason = because(person, adjective, DEGREES[0])
            yield f"{source} {reason[0].replace(' it ', f' {he} ')}", f"{target} {reason[1]}"


def objects() -> Iterator[Pair]:
    """Sentences about people and a thing, with a reason."""
    for frames, nouns, adjectives in ((BOUGHT, THINGS, QUALITIES), (EATEN, FOODS, TASTES)):
        for (english, french), noun, adjective, degree in product(frames, nouns, adjectives, DEGREES):
            reason = because(noun, adjective, degree)
            yield f"{english} the {noun.english} {reason[0]}", f"{french} {noun.the} {reason[1]}"
            yield f"{english} this {noun.english} {reason[0]}", f"{french} {noun.this} {reason[1]}"
            if english.startswith("I "):
                yield f"{english} my {noun.english} {reason[0]}", f"{french} {noun.my} {reason[1]}"
    for noun, adjective in product(THINGS, QUALITIES):
        form = adjective.of(noun)
        source = f"I like this {noun.english} because it is {adjective.english}."
        yield source, f"J'aime {noun.this} parce qu'{noun.pronoun} est {form}."


def object_pronouns() -> Iterator[Pair]:
    """Sentences in which "it" is an object: le, la or l', and a participle that agrees."""
    for noun, (lost, perdu, found, trouve), (who, has, owner, and_has) in product(THINGS, FOUND, OWNERS):
        own = noun.my if who == "I" else f"s{noun.my[1:]}"
        source = f"{who} {lost} {owner} {noun.english}, but {who if who == 'I' else who.lower()} {found}."
        yield source, f"{capital(has)} {perdu} {own}, mais {and_has} {trouve}{noun.ending}."
    for noun, adjective in product(THINGS, QUALITIES):
        it, form = ("la" if noun.is_feminine else "le"), adjective.of(noun)
        source = f"This {noun.english} is {adjective.english}. I don't want it."
        yield source, f"{capital(noun.this)} est {form}. Je n'en veux pas."
        yield f"Where is the {noun.english}? I can't find it.", f"Où est {noun.the} ? Je ne {it} trouve pas."
        yield (
            f"Where is my {noun.english}? It is on the bed.",
            f"Où est {noun.my} ? {capital(noun.pronoun)} est sur le lit.",
        )
        yield f"Take the {noun.english} and put it here.", f"Prends {noun.the} et mets-{it} ici."
        source = f"I bought a {noun.english}. It is very {adjective.english}."
        if noun.english[0] not in "aeiou":
            yield source, f"J'ai acheté {noun.a}. {capital(noun.pronoun)} est très {form}."
        source = f"The {noun.english} is {adjective.english}, but I like it."
        yield source, f"{capital(noun.the)} est {form}, mais je l'aime bien."


def contrasts() -> Iterator[Pair]:
    """Two adjectives of one noun, in the singular and in the plural."""
    for noun, one, other in product(THINGS + ANIMALS, QUALITIES[:10], QUALITIES[:10]):
        two = {one.english, other.english}
        if len(two) < 2 or two in OPPOSITES or (noun in ANIMALS and two & FOR_THINGS):
            continue
        source = f"The {noun.english} is {one.english}, but it is {other.english}."
        yield source, f"{capital(noun.the)} est {one.of(noun)}, mais {noun.pronoun} est {other.of(noun)}."
        source = f"The {english_plural(noun.english)} are {one.english}, but they are {other.english}."
        forms = one.of(noun, plural=True), other.of(noun, plural=True)
        yield source, f"Les {french_plural(noun.french)} sont {forms[0]}, mais {noun.pronoun}s sont {forms[1]}."
    for (english, french), noun, adjective, (too, trop) in product(BOUGHT, THINGS, QUALITIES, DEGREES):
        source = f"{english} the {english_plural(noun.english)} because they were {too}{adjective.english}."
        plural, form = french_plural(noun.french), adjective.of(noun, plural=True)
        yield source, f"{french} les {plural} parce qu'{noun.pronoun}s étaient {trop}{form}."


def flights() -> Iterator[Pair]:
    """Reflexive verbs of animals, whose participle agrees, with and without a reason."""
    verbs = [("ran away", "run away", "enfui"), ("fell asleep", "fall asleep", "endormi"), ("hid", "hide", "caché")]
    verbs += [("woke up", "wake up", "réveillé"), ("got up", "get up", "levé"), ("lay down", "lie down", "couché")]
    flew = [("flew away", "fly away", "envolé"), *verbs[:4]]
    for animals, several in ((ANIMALS, verbs), (BIRDS, flew)):
        for animal, (past, base, participle) in product(animals, several):
            agreed = participle + animal.ending
            yield f"The {animal.english} {past}.", f"{capital(animal.the)} s'est {agreed}."
            yield f"The {animal.english} didn't {base}.", f"{capital(animal.the)} ne s'est pas {agreed}."
            for adjective, degree in product(TIRED, DEGREES):
                reason = because(animal, adjective, degree)
                source = f"The {animal.english} didn't {base} {reason[0]}"
                yield source, f"{capital(animal.the)} ne s'est pas {agreed} {reason[1]}"
                yield f"The {animal.english} {past} {reason[0]}", f"{capital(animal.the)} s'est {agreed} {reason[1]}"


@cache
def agreement_pairs() -> dict[str, list[Pair]]:
    """All pairs of this module, by their form."""
    makers = (subjects_and_objects, people_and_things, objects, object_pronouns, contrasts, flights)
    return {make.__name__: list(dict.fromkeys(make())) for make in makers}
