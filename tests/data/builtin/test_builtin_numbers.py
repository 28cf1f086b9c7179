"""Numbers in words: the tricky ones of every language by heart, one spelling per number, one number per spelling."""

import pytest

from qkv.data.builtin import Numbers
from qkv.data.builtin.dataset import SPLITS
from qkv.data.builtin.number_words import LANGUAGES, LIMIT

TRICKY = {
    "en": {
        0: "zero",
        13: "thirteen",
        21: "twenty-one",
        40: "forty",
        80: "eighty",
        99: "ninety-nine",
        100: "one hundred",
        101: "one hundred one",
        999: "nine hundred ninety-nine",
        1000: "one thousand",
        1001: "one thousand one",
        21000: "twenty-one thousand",
        100000: "one hundred thousand",
        999999: "nine hundred ninety-nine thousand nine hundred ninety-nine",
    },
    "de": {
        1: "eins",
        16: "sechzehn",
        17: "siebzehn",
        21: "einundzwanzig",
        30: "dreißig",
        66: "sechsundsechzig",
        76: "sechsundsiebzig",
        100: "einhundert",
        101: "einhunderteins",
        121: "einhunderteinundzwanzig",
        1000: "eintausend",
        1001: "eintausendeins",
        21000: "einundzwanzigtausend",
        101000: "einhunderteintausend",
        99999: "neunundneunzigtausendneunhundertneunundneunzig",
    },
    "fr": {
        17: "dix-sept",
        21: "vingt et un",
        22: "vingt-deux",
        70: "soixante-dix",
        71: "soixante et onze",
        72: "soixante-douze",
        77: "soixante-dix-sept",
        80: "quatre-vingts",
        81: "quatre-vingt-un",
        91: "quatre-vingt-onze",
        99: "quatre-vingt-dix-neuf",
        100: "cent",
        101: "cent un",
        200: "deux cents",
        201: "deux cent un",
        280: "deux cent quatre-vingts",
        1000: "mille",
        1001: "mille un",
        2000: "deux mille",
        21000: "vingt et un mille",
        80000: "quatre-vingt mille",
        100000: "cent mille",
        200000: "deux cent mille",
        200080: "deux cent mille quatre-vingts",
        999999: "neuf cent quatre-vingt-dix-neuf mille neuf cent quatre-vingt-dix-neuf",
    },
    "es": {
        16: "dieciséis",
        21: "veintiuno",
        22: "veintidós",
        23: "veintitrés",
        26: "veintiséis",
        31: "treinta y uno",
        100: "cien",
        101: "ciento uno",
        500: "quinientos",
        700: "setecientos",
        900: "novecientos",
        1000: "mil",
        1100: "mil cien",
        21000: "veintiún mil",
        31000: "treinta y un mil",
        100000: "cien mil",
        101000: "ciento un mil",
        121021: "ciento veintiún mil veintiuno",
    },
    "it": {
        18: "diciotto",
        21: "ventuno",
        23: "ventitré",
        28: "ventotto",
        38: "trentotto",
        80: "ottanta",
        81: "ottantuno",
        101: "centouno",
        103: "centotré",
        108: "centotto",
        180: "centottanta",
        1000: "mille",
        1001: "milleuno",
        2000: "duemila",
        3000: "tremila",
        2003: "duemilatré",
        21000: "ventunomila",
        23000: "ventitremila",
        100000: "centomila",
        333333: "trecentotrentatremilatrecentotrentatré",
    },
    "pt": {
        16: "dezesseis",
        21: "vinte e um",
        100: "cem",
        101: "cento e um",
        121: "cento e vinte e um",
        200: "duzentos",
        500: "quinhentos",
        1001: "mil e um",
        1100: "mil e cem",
        1101: "mil cento e um",
        1200: "mil e duzentos",
        1234: "mil duzentos e trinta e quatro",
        21000: "vinte e um mil",
        100000: "cem mil",
    },
    "nl": {
        13: "dertien",
        14: "veertien",
        18: "achttien",
        21: "eenentwintig",
        22: "tweeëntwintig",
        33: "drieëndertig",
        80: "tachtig",
        88: "achtentachtig",
        101: "honderdeen",
        1000: "duizend",
        1001: "duizend een",
        21000: "eenentwintigduizend",
        100000: "honderdduizend",
        222222: "tweehonderdtweeëntwintigduizend tweehonderdtweeëntwintig",
    },
    "sv": {
        18: "arton",
        21: "tjugoett",
        40: "fyrtio",
        100: "etthundra",
        101: "etthundraett",
        1000: "ettusen",
        1001: "ettusenett",
        21000: "tjugoettusen",
        21021: "tjugoettusentjugoett",
        100000: "etthundratusen",
    },
    "fi": {
        11: "yksitoista",
        20: "kaksikymmentä",
        21: "kaksikymmentäyksi",
        100: "sata",
        101: "satayksi",
        200: "kaksisataa",
        1000: "tuhat",
        1001: "tuhatyksi",
        2000: "kaksituhatta",
        21000: "kaksikymmentäyksituhatta",
        100000: "satatuhatta",
    },
    "tr": {
        11: "on bir",
        21: "yirmi bir",
        40: "kırk",
        99: "doksan dokuz",
        100: "yüz",
        101: "yüz bir",
        200: "iki yüz",
        1000: "bin",
        1001: "bin bir",
        2000: "iki bin",
        21000: "yirmi bir bin",
        100000: "yüz bin",
    },
    "id": {
        10: "sepuluh",
        11: "sebelas",
        12: "dua belas",
        21: "dua puluh satu",
        100: "seratus",
        111: "seratus sebelas",
        1000: "seribu",
        1100: "seribu seratus",
        11000: "sebelas ribu",
        100000: "seratus ribu",
        101000: "seratus satu ribu",
    },
    "eo": {
        10: "dek",
        11: "dek unu",
        20: "dudek",
        99: "naŭdek naŭ",
        100: "cent",
        200: "ducent",
        1001: "mil unu",
        21000: "dudek unu mil",
    },
    "ru": {
        0: "ноль",
        11: "одиннадцать",
        21: "двадцать один",
        40: "сорок",
        90: "девяносто",
        100: "сто",
        200: "двести",
        400: "четыреста",
        500: "пятьсот",
        1000: "одна тысяча",
        2000: "две тысячи",
        5000: "пять тысяч",
        11000: "одиннадцать тысяч",
        12000: "двенадцать тысяч",
        21000: "двадцать одна тысяча",
        22002: "двадцать две тысячи два",
        111000: "сто одиннадцать тысяч",
        101001: "сто одна тысяча один",
    },
    "uk": {
        5: "п’ять",
        11: "одинадцять",
        19: "дев’ятнадцять",
        40: "сорок",
        90: "дев’яносто",
        200: "двісті",
        1000: "одна тисяча",
        2000: "дві тисячі",
        5000: "п’ять тисяч",
        21000: "двадцять одна тисяча",
        112000: "сто дванадцять тисяч",
    },
    "pl": {
        11: "jedenaście",
        15: "piętnaście",
        19: "dziewiętnaście",
        21: "dwadzieścia jeden",
        40: "czterdzieści",
        200: "dwieście",
        500: "pięćset",
        1000: "tysiąc",
        1001: "tysiąc jeden",
        2000: "dwa tysiące",
        5000: "pięć tysięcy",
        12000: "dwanaście tysięcy",
        21000: "dwadzieścia jeden tysięcy",
        22000: "dwadzieścia dwa tysiące",
        101000: "sto jeden tysięcy",
        112000: "sto dwanaście tysięcy",
    },
}


def test_every_language_has_its_tricky_numbers():
    assert TRICKY.keys() == LANGUAGES.keys()


@pytest.mark.parametrize("language", LANGUAGES)
def test_tricky_numbers(language):
    spell = LANGUAGES[language]
    assert {number: spell(number) for number in TRICKY[language]} == TRICKY[language]


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_two_numbers_are_spelled_alike(language):
    numbers = [*range(12_000), *range(12_000, LIMIT, 37), *range(99_900, 101_200), *range(LIMIT - 1500, LIMIT)]
    texts = {LANGUAGES[language](number) for number in numbers}
    assert len(texts) == len(set(numbers))


def test_no_two_languages_spell_different_numbers_alike():
    """Words alone, without their language, have one value."""
    values: dict[str, set[int]] = {}
    for spell in LANGUAGES.values():
        for number in [*range(2000), *range(2000, LIMIT, 1009)]:
            values.setdefault(spell(number), set()).add(number)
    assert {text for text, numbers in values.items() if len(numbers) > 1} == set()


@pytest.mark.parametrize("language", LANGUAGES)
def test_spellings_are_tidy(language):
    for number in [*range(1200), *range(1200, LIMIT, 997)]:
        text = LANGUAGES[language](number)
        assert text == " ".join(text.split()) == text.lower()
        assert not any(character.isdigit() for character in text)


# -------------------------------------------------------------------- the dataset


def test_examples_hold_both_directions():
    numbers = Numbers()
    for i in range(500):
        example = numbers.example("train", i)
        assert example["words"] == LANGUAGES[example["language"]](int(example["digits"]))
        assert example["prompt"] == f"{example['language']} {example['digits']}"
    assert tuple(example) == numbers.fields


def test_splits_share_no_number_in_any_language():
    numbers = Numbers()
    seen = {
        split: {numbers.example(split, i, seed)["digits"] for seed in (0, 1) for i in range(2000)} for split in SPLITS
    }
    assert seen["train"].isdisjoint(seen["valid"] | seen["test"])
    assert seen["valid"].isdisjoint(seen["test"])
    assert {str(number) for number in range(20)} <= seen["train"]
    assert min(int(digits) for digits in seen["valid"] | seen["test"]) >= 100


def test_every_length_of_number_is_equally_likely():
    counts = [0] * 7
    for i in range(6000):
        counts[len(Numbers().example("train", i)["digits"])] += 1
    assert counts[0] == 0
    assert all(850 < count < 1150 for count in counts[1:])


def test_an_example_is_a_function_of_seed_split_and_number():
    assert [Numbers().example("valid", i, 4) for i in range(50)] == [
        Numbers().example("valid", i, 4) for i in range(50)
    ]
    assert Numbers().example("train", 10**15, 4) == Numbers().example("train", 10**15, 4)
    assert Numbers().fingerprint == Numbers().fingerprint != Numbers(["fr"]).fingerprint
