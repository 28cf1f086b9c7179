"""Pairs for forms that the data has few of: negation, verbs with a particle, a name as the one who gets something."""

from collections.abc import Iterator
from itertools import permutations, product
from random import Random

from names import KNOWN, Names
from pairs import Pair
from words import FOODS, PLACES, RELATIVES, THINGS, Noun, capital, read_nouns

# English base and third person; French je, il, nous, ils; what follows in both languages
VERBS = [
    ("eat", "eats", "mange mange mangeons mangent", "fish", "de poisson"),
    ("drink", "drinks", "bois boit buvons boivent", "coffee", "de café"),
    ("read", "reads", "lis lit lisons lisent", "novels", "de romans"),
    ("watch", "watches", "regarde regarde regardons regardent", "television", "la télévision"),
    ("speak", "speaks", "parle parle parlons parlent", "German", "allemand"),
    ("live", "lives", "vis vit vivons vivent", "here", "ici"),
    ("work", "works", "travaille travaille travaillons travaillent", "at night", "la nuit"),
    ("play", "plays", "joue joue jouons jouent", "tennis", "au tennis"),
    ("go", "goes", "vais va allons vont", "to school", "à l'école"),
    ("buy", "buys", "achète achète achetons achètent", "bread", "de pain"),
    ("wear", "wears", "porte porte portons portent", "hats", "de chapeaux"),
    ("write", "writes", "écris écrit écrivons écrivent", "letters", "de lettres"),
    ("need", "needs", "ai a avons ont", "help", "besoin d'aide"),
    ("have", "has", "ai a avons ont", "money", "d'argent"),
    ("know", "knows", "connais connaît connaissons connaissent", "this song", "cette chanson"),
    ("believe", "believes", "crois croit croyons croient", "this story", "cette histoire"),
]
SUBJECTS = [("I", "Je", 0), ("He", "Il", 1), ("She", "Elle", 1), ("We", "Nous", 2), ("They", "Ils", 3)]
HAVE = [("I", "J'ai", "Je n'ai"), ("He", "Il a", "Il n'a"), ("She", "Elle a", "Elle n'a")]
HAVE += [("We", "Nous avons", "Nous n'avons"), ("They", "Ils ont", "Ils n'ont")]
DONE = [("eaten", "mangé"), ("drunk", "bu"), ("read the letter", "lu la lettre"), ("seen the film", "vu le film")]
DONE += [("finished", "fini"), ("paid", "payé"), ("bought the tickets", "acheté les billets"), ("answered", "répondu")]
LANGUAGES = [("German", "allemand"), ("Spanish", "espagnol"), ("Italian", "italien"), ("Russian", "russe")]
LANGUAGES += [("Chinese", "chinois"), ("Japanese", "japonais"), ("Arabic", "arabe"), ("Portuguese", "portugais")]
CONTAINERS = read_nouns("""
    bag sac m, bottle bouteille f, cup tasse f, drawer tiroir m, cupboard armoire f, pocket poche f, basket panier m,
    fridge réfrigérateur m, suitcase valise f
""")
ENTERED = ["forest", "garden", "park", "tunnel", "village", "valley", "corridor", "room", "courtyard", "field"]
# verbs with a particle: past, particle, base, French participle and imperative, and what they are done to
CLOTHES = "shirt jacket coat dress hat watch ring"
DEVICES = "lamp radio computer machine phone"
SMALL = "pen key letter ring bag toy spoon fork pencil map newspaper"
ALL = " ".join(noun.english for noun in THINGS)
PARTICLES = [
    ("threw", "away", "throw", "jeté", "jette", ALL),
    ("put", "on", "put", "mis", "mets", CLOTHES),
    ("took", "off", "take", "enlevé", "enlève", CLOTHES),
    ("turned", "on", "turn", "allumé", "allume", DEVICES),
    ("turned", "off", "turn", "éteint", "éteins", DEVICES),
    ("picked", "up", "pick", "ramassé", "ramasse", SMALL),
    ("gave", "back", "give", "rendu", "rends", ALL),
    ("brought", "back", "bring", "rapporté", "rapporte", ALL),
    ("put", "away", "put", "rangé", "range", ALL),
]
GIFTS = [("gave", "donné"), ("showed", "montré"), ("sent", "envoyé"), ("sold", "vendu"), ("lent", "prêté")]
GIFTS += [("brought", "apporté"), ("offered", "offert")]
WITH_NAMES = [
    ("My name is {}.", "Je m'appelle {}."),
    ("I am {}.", "Je suis {}."),
    ("Where is {}?", "Où est {} ?"),
    ("Do you know {}?", "Connais-tu {} ?"),
    ("{} and {} are here.", "{} et {} sont ici."),
    ("I saw {} with {}.", "J'ai vu {} avec {}."),
    ("{} lives with {}.", "{} vit avec {}."),
    ("{} is waiting for {}.", "{} attend {}."),
    ("{} loves {}.", "{} aime {}."),
    ("{} called {} yesterday.", "{} a appelé {} hier."),
    ("Is {} here?", "Est-ce que {} est ici ?"),
]


def elide(word: str, following: str) -> str:
    """The word and the next one; "ne" and "je" lose their vowel before a vowel.

    >>> elide("ne", "ai"), elide("ne", "mange")
    ("n'ai", 'ne mange')
    """
    return f"{word[:-1]}'{following}" if following[0] in "aeiouyéèêh" else f"{word} {following}"


def negated_verbs() -> Iterator[Pair]:
    """Never, no longer, not; nobody; not yet."""
    for base, third, forms, what, quoi in VERBS:
        for english, french, person in SUBJECTS:
            form = forms.split()[person]
            does, verb = ("doesn't", third) if person == 1 else ("don't", base)
            plus, jamais, pas = (f"{french} {elide('ne', form)} {word} {quoi}." for word in ("plus", "jamais", "pas"))
            yield f"{english} {does} {base} {what} anymore.", plus
            yield f"{english} {does} {base} {what} any more.", plus
            yield f"{english} no longer {verb} {what}.", plus
            yield f"{english} never {verb} {what}.", jamais
            yield f"{english} {does} {base} {what}.", pas
        for english, french in (("Nobody", "Personne"), ("No one", "Personne")):
            yield f"{english} {third} {what}.", f"{french} {elide('ne', forms.split()[1])} {quoi}."
    for (english, _, has_not), (done, fait) in product(HAVE, DONE):
        have = "has" if english in ("He", "She") else "have"
        yield f"{english} {have}n't {done} yet.", f"{has_not} pas encore {fait}."
        yield f"{english} {have} never {done}.", f"{has_not} jamais {fait}."


def nothing_and_nobody(names: Names) -> Iterator[Pair]:
    """Rien and personne."""
    for noun in CONTAINERS:
        yield f"There is nothing in the {noun.english}.", f"Il n'y a rien dans {noun.the}."
        yield f"There is nothing in this {noun.english}.", f"Il n'y a rien dans {noun.this}."
        yield f"There isn't anything in my {noun.english}.", f"Il n'y a rien dans {noun.my}."
    for noun in (noun for noun in PLACES if noun.english in ENTERED):
        yield f"There is nobody in the {noun.english}.", f"Il n'y a personne dans {noun.the}."
        yield f"I saw nobody in the {noun.english}.", f"Je n'ai vu personne dans {noun.the}."
    for _ in range(200):
        name = names.pick()
        yield f"I didn't tell {name} anything.", f"Je n'ai rien dit à {name}."
        yield f"Nobody saw {name}.", f"Personne n'a vu {name}."
        yield f"Nobody knows {name}.", f"Personne ne connaît {name}."
        yield f"{name} didn't say anything.", f"{name} n'a rien dit."


def neither_nor(chosen: Random) -> Iterator[Pair]:
    """Ni … ni, without articles after "avoir" and with them after "aimer"."""

    def a(noun: Noun) -> str:
        return f"{'an' if noun.english[0] in 'aeiou' else 'a'} {noun.english}"

    owned = [*permutations(RELATIVES, 2), *chosen.sample(list(permutations(THINGS, 2)), 300)]
    for (english, _, has_not), (one, other) in product(HAVE, owned):
        have = "has" if english in ("He", "She") else "have"
        source = f"{english} {have} neither {a(one)} nor {a(other)}."
        yield source, f"{has_not} ni {one.french} ni {other.french}."
    for (english, french, person), (one, other) in product(SUBJECTS, permutations(LANGUAGES, 2)):
        verb = "speaks" if person == 1 else "speak"
        form = ["parle", "parle", "parlons", "parlent"][person]
        yield f"{english} {verb} neither {one[0]} nor {other[0]}.", f"{french} ne {form} ni {one[1]} ni {other[1]}."
    for (english, french, person), (first, second) in product(SUBJECTS, permutations(FOODS[:10], 2)):
        verb = "likes" if person == 1 else "like"
        form = ["aime", "aime", "aimons", "aiment"][person]
        source = f"{english} {verb} neither {first.english} nor {second.english}."
        yield source, f"{french} n'{form} ni {first.the} ni {second.the}."


def particles() -> Iterator[Pair]:
    """Verbs whose meaning is in a particle: throw away is not throw."""
    nouns = {noun.english: noun for noun in THINGS}
    for (past, particle, base, participle, imperative, those), (english, has, has_not) in product(PARTICLES, HAVE):
        for noun in (nouns[one] for one in those.split()):
            target = f"{has} {participle} {noun.the}."
            yield f"{english} {past} the {noun.english} {particle}.", target
            yield f"{english} {past} {particle} the {noun.english}.", target
            source = f"{english} didn't {base} the {noun.english} {particle}."
            yield source, f"{has_not} pas {participle} {noun.the}."
            yield f"Don't {base} the {noun.english} {particle}.", f"{capital(elide('ne', imperative))} pas {noun.the}."


def gifts(names: Names, chosen: Random) -> Iterator[Pair]:
    """Someone gives something to someone: the one who gets it is a name without a preposition in English."""
    for (english, participle), noun in product(GIFTS, THINGS):
        for _ in range(6):
            giver, taker = names.pick(), names.pick()
            who, has = chosen.choice([(giver, f"{giver} a"), ("I", "J'ai"), ("She", "Elle a"), ("We", "Nous avons")])
            if chosen.random() < 0.6:
                yield f"{who} {english} {taker} the {noun.english}.", f"{has} {participle} {noun.the} à {taker}."
            else:
                source = f"{who} {english} the {noun.english} to {taker}."
                yield source, f"{has} {participle} {noun.the} à {taker}."


def introductions(names: Names, chosen: Random, count: int) -> Iterator[Pair]:
    """Short sentences with a name in a place that decides what the sentence means."""
    for _ in range(count):
        english, french = chosen.choice(WITH_NAMES)
        two = names.pick(), names.pick()
        yield english.format(*two), french.format(*two)
        man, woman, city = (names.pick(kind) for kind in KNOWN)
        yield f"His name is {man}.", f"Il s'appelle {man}."
        yield f"Her name is {woman}.", f"Elle s'appelle {woman}."
        yield f"{man} lives in {city}.", f"{man} vit à {city}."
        noun = chosen.choice(RELATIVES)
        name = names.pick("Mary" if noun.is_feminine else "Tom")
        yield f"{name} is my {noun.english}.", f"{name} est {noun.my}."
        yield f"My {noun.english}'s name is {name}.", f"{capital(noun.my)} s'appelle {name}."


def grammar_pairs(names: Names, chosen: Random) -> dict[str, list[Pair]]:
    """All pairs of this module, by their form."""
    found = {
        "negated_verbs": negated_verbs(),
        "nothing_and_nobody": nothing_and_nobody(names),
        "neither_nor": neither_nor(chosen),
        "particles": particles(),
        "gifts": gifts(names, chosen),
        "introductions": introductions(names, chosen, 3000),
    }
    return {name: list(dict.fromkeys(pairs)) for name, pairs in found.items()}
