"""Generated pairs for what the data has too little of: pronouns that agree with a noun, names, and numbers.

Only 900 of 160,000 pairs have a digit, people are mostly called Tom, and few sentences say what an "it" stands for.
These pairs are made by rule, so their French is right by construction, or from pairs of the data. The nouns for which
"it" stands in the probes are not among them.
"""

import random
import re
from collections.abc import Iterable, Sequence
from itertools import product

from pairs import Pair

Words = tuple[str, str]  # English, French
Noun = tuple[str, str, str]  # English, French with its article, gender
Adjective = tuple[str, str, str]  # English, French masculine, French feminine


def read_nouns(text: str) -> list[Noun]:
    """Nouns from a list such as `dog le chien m, cow la vache f`."""
    rows = [entry.split() for entry in text.split(",")]
    return [(row[0], " ".join(row[1:-1]).replace("l' ", "l'"), row[-1]) for row in rows]


def read_adjectives(text: str) -> list[Adjective]:
    """Adjectives from a list such as `tired fatigué fatiguée, weak faible faible`."""
    return [(one, masculine, feminine) for one, masculine, feminine in (entry.split() for entry in text.split(","))]


ANIMALS = read_nouns("""
    dog le chien m, horse le cheval m, cow la vache f, cat le chat m, duck le canard m, rabbit le lapin m,
    goat la chèvre f, sheep le mouton m, lion le lion m, donkey l' âne m, fox le renard m, bear l' ours m,
    turtle la tortue f, mouse la souris f, elephant l' éléphant m, wolf le loup m, child l' enfant m,
    boy le garçon m, frog la grenouille f
""")
TIRED = read_adjectives("""
    tired fatigué fatiguée, weak faible faible, sick malade malade, nervous nerveux nerveuse, young jeune jeune,
    slow lent lente, afraid effrayé effrayée, hurt blessé blessée
""")
PLACES = read_nouns("""
    river la rivière f, road la route f, field le champ m, forest la forêt f, lake le lac m, square la place f,
    garden le jardin m, path le chemin m, valley la vallée f, desert le désert m, park le parc m, tunnel le tunnel m
""")
WIDE = read_adjectives("""
    wide large large, long long longue, dangerous dangereux dangereuse, narrow étroit étroite, dark sombre sombre,
    big grand grande
""")
THINGS = read_nouns("""
    villa la villa f, truck le camion m, computer l' ordinateur m, phone le téléphone m, lamp la lampe f,
    chair la chaise f, shirt la chemise f, jacket la veste f, coat le manteau m, watch la montre f, piano le piano m,
    guitar la guitare f, boat le bateau m, bag le sac m, mirror le miroir m, letter la lettre f, pen le stylo m,
    bottle la bouteille f, knife le couteau m, dress la robe f, hat le chapeau m, box la boîte f, key la clé f,
    cup la tasse f, glass le verre m, bed le lit m, painting le tableau m, umbrella le parapluie m,
    machine la machine f, radio la radio f
""")
PRICES = read_adjectives("""
    expensive cher chère, heavy lourd lourde, old vieux vieille, small petit petite, big grand grande, dirty sale sale,
    ugly laid laide, short court courte, beautiful beau belle, new nouveau nouvelle
""")
FOODS = read_nouns("""
    meat la viande f, fish le poisson m, cake le gâteau m, salad la salade f, bread le pain m, cheese le fromage m,
    pizza la pizza f, sauce la sauce f, rice le riz m, chicken le poulet m, egg l' œuf m, tart la tarte f
""")
TASTES = read_adjectives("""
    hot chaud chaude, cold froid froide, salty salé salée, sweet sucré sucrée, bitter amer amère, old vieux vieille
""")
COUNTED = read_nouns("""
    books livres m, apples pommes f, chairs chaises f, dogs chiens m, cars voitures f, students étudiants m,
    letters lettres f, eggs œufs m, days jours m, houses maisons f
""")
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
FRENCH_UNITS = "zéro un deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize"
FRENCH_TENS = {20: "vingt", 30: "trente", 40: "quarante", 50: "cinquante", 60: "soixante", 80: "quatre-vingt"}
ENGLISH_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
ENGLISH_TENS = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def french_number(n: int, gender: str = "m") -> str:
    """A number below 100 in words.

    >>> [french_number(n) for n in (17, 21, 71, 80, 81, 99)]
    ['dix-sept', 'vingt et un', 'soixante et onze', 'quatre-vingts', 'quatre-vingt-un', 'quatre-vingt-dix-neuf']
    """
    if n <= 16:
        return "une" if n == 1 and gender == "f" else FRENCH_UNITS.split()[n]
    if n < 20:
        return f"dix-{FRENCH_UNITS.split()[n - 10]}"
    ten = max(value for value in FRENCH_TENS if value <= n)
    rest = n - ten
    if rest == 0:
        return "quatre-vingts" if n == 80 else FRENCH_TENS[ten]
    joint = " et " if rest in (1, 11) and ten != 80 else "-"
    return f"{FRENCH_TENS[ten]}{joint}{french_number(rest, gender)}"


def english_number(n: int) -> str:
    """A number below 100 in words.

    >>> english_number(21), english_number(13)
    ('twenty-one', 'thirteen')
    """
    if n < 20:
        return ENGLISH_UNITS.split()[n]
    return ENGLISH_TENS[n // 10] + (f"-{ENGLISH_UNITS.split()[n % 10]}" if n % 10 else "")


def agree(noun: Noun, adjective: Adjective) -> tuple[str, str]:
    """The French pronoun of a noun, and the form of an adjective that agrees with it."""
    return ("elle", adjective[2]) if noun[2] == "f" else ("il", adjective[1])


def capital(text: str) -> str:
    return text[0].upper() + text[1:]


def agreement_pairs() -> list[Pair]:
    """Sentences in which "it" stands for a noun, and the French pronoun and adjective agree with that noun."""
    found: list[Pair] = []
    too = [("too ", "trop "), ("very ", "très "), ("", "")]
    for animal, place, (very, tres) in product(ANIMALS, PLACES, too):
        for subject, adjective in [(animal, one) for one in TIRED] + [(place, one) for one in WIDE]:
            pronoun, form = agree(subject, adjective)
            because = f"parce qu'{pronoun} était {tres}{form}."
            start, end = f"The {animal[0]}", f"the {place[0]} because it was {very}{adjective[0]}."
            found.append((f"{start} didn't cross {end}", f"{capital(animal[1])} n'a pas traversé {place[1]} {because}"))
            found.append(
                (f"{start} couldn't cross {end}", f"{capital(animal[1])} n'a pas pu traverser {place[1]} {because}")
            )
    bought = [
        ("I didn't buy", "Je n'ai pas acheté"),
        ("She sold", "Elle a vendu"),
        ("He didn't like", "Il n'a pas aimé"),
    ]
    bought += [("We bought", "Nous avons acheté"), ("I sold", "J'ai vendu"), ("They hid", "Ils ont caché")]
    eaten = [("I didn't eat", "Je n'ai pas mangé"), ("She ate", "Elle a mangé"), ("He didn't want", "Il n'a pas voulu")]
    eaten += [("We didn't like", "Nous n'avons pas aimé"), ("They didn't eat", "Ils n'ont pas mangé")]
    for frames, nouns, adjectives in ((bought, THINGS, PRICES), (eaten, FOODS, TASTES)):
        for (english, french), noun, adjective, (very, tres) in product(frames, nouns, adjectives, too):
            pronoun, form = agree(noun, adjective)
            source = f"{english} the {noun[0]} because it was {very}{adjective[0]}."
            found.append((source, f"{french} {noun[1]} parce qu'{pronoun} était {tres}{form}."))
    for noun, one, other in product(THINGS + ANIMALS, PRICES, PRICES):
        if one != other:
            (pronoun, form), (_, second) = agree(noun, one), agree(noun, other)
            source = f"The {noun[0]} is {one[0]}, but it is {other[0]}."
            found.append((source, f"{capital(noun[1])} est {form}, mais {pronoun} est {second}."))
    return found


def number_pairs() -> list[Pair]:
    """Sentences with numbers in words, and with times of day."""
    found: list[Pair] = []
    frames = [
        ("I bought {}.", "J'ai acheté {}."),
        ("She has {}.", "Elle a {}."),
        ("There are {} here.", "Il y a {} ici."),
    ]
    frames += [("He sold {} yesterday.", "Il a vendu {} hier."), ("We saw {}.", "Nous avons vu {}.")]
    for n, (english, french, gender), (source, target) in product(range(2, 100), COUNTED, frames):
        words = f"{english_number(n)} {english}", f"{french_number(n, gender)} {french}"
        found.append((source.format(words[0]), target.format(words[1])))
    times = [("half past {}", "{} et demie"), ("a quarter past {}", "{} et quart"), ("{} o'clock", "{}")]
    events = [("The bus leaves at", "Le bus part à"), ("The plane leaves at", "L'avion part à"), ("It is", "Il est")]
    events += [
        ("I get up at", "Je me lève à"),
        ("The film starts at", "Le film commence à"),
        ("He came at", "Il est venu à"),
    ]
    for hour, (when, quand), (source, target) in product(range(1, 12), times, events):
        hours = f"{french_number(hour, 'f')} heure{'s' if hour > 1 else ''}"
        found.append((f"{source} {when.format(english_number(hour))}.", f"{target} {quand.format(hours)}."))
    return found


def swap_numbers(pairs: Iterable[Pair], copies: int, chosen: random.Random) -> list[Pair]:
    """Copies of pairs that have the same single number in digits on both sides, with another number of the same length.

    >>> swap_numbers([("I have 12 cats.", "J'ai 12 chats.")], 1, random.Random(0))
    [('I have 59 cats.', "J'ai 59 chats.")]
    """
    found: list[Pair] = []
    for english, french in pairs:
        numbers = re.findall(r"\d+", english)
        if len(numbers) != 1 or re.findall(r"\d+", french) != numbers:
            continue
        for _ in range(copies):
            low = 10 ** (len(numbers[0]) - 1)
            other = str(chosen.randrange(max(2, low), 10 * low))
            found.append((english.replace(numbers[0], other), french.replace(numbers[0], other)))
    return found


def swap_names(pairs: Iterable[Pair], chosen: random.Random) -> list[Pair]:
    """Copies of pairs with Tom or Mary on both sides, with another name, so that a model learns to copy names.

    >>> swap_names([("I saw Tom.", "J'ai vu Tom."), ("Wait.", "Attends.")], random.Random(0))
    [('I saw Omar.', "J'ai vu Omar.")]
    """
    found: list[Pair] = []
    for english, french in pairs:
        for name, others in NAMES.items():
            if len(re.findall(rf"\b{name}\b", english)) == len(re.findall(rf"\b{name}\b", french)) > 0:
                other = chosen.choice(others)
                if other[0] in "AEIO" and re.search(rf"e {name}\b", french):
                    continue  # "de" and "que" would have to become "d'" and "qu'"
                swapped = [re.sub(rf"\b{name}\b", other, text) for text in (english, french)]
                found.append((swapped[0], swapped[1]))
    return found


def generate_pairs(pairs: Sequence[Pair], count: int) -> list[Pair]:
    """At most `count` generated pairs, of four kinds: agreement, names, numbers in words, and numbers in digits."""
    chosen = random.Random(0)
    agreement, names, words = agreement_pairs(), swap_names(pairs, chosen), number_pairs()
    digits = swap_numbers(pairs, 12, chosen)
    sizes = ((agreement, count // 3), (names, count // 3), (words, count // 6), (digits, count // 6))
    return [pair for several, size in sizes for pair in chosen.sample(several, min(size, len(several)))]
