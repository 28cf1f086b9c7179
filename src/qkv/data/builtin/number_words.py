"""Whole numbers from 0 to 999,999 in words, by a small grammar for each language.

Where a language has more than one norm, one is chosen and named beside its grammar, so that a number has one spelling.
Every grammar has the same shape: below a hundred, then hundreds, then thousands, joined as the language joins them.
"""

from collections.abc import Callable
from functools import cache

LIMIT = 1_000_000


@cache
def words(text: str) -> tuple[str, ...]:
    """The words of a table written as one line."""
    return tuple(text.split())


def english(n: int) -> str:
    """American: no "and"; a hyphen in twenty-one."""
    small = words(
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
        "seventeen eighteen nineteen"
    )
    tens = words("- - twenty thirty forty fifty sixty seventy eighty ninety")
    if n < 20:
        return small[n]
    if n < 100:
        return tens[n // 10] + (f"-{small[n % 10]}" if n % 10 else "")
    if n < 1000:
        return spaced(f"{small[n // 100]} hundred", n % 100, english)
    return spaced(f"{english(n // 1000)} thousand", n % 1000, english)


def german(n: int) -> str:
    """One word; `einhundert` and `eintausend` with their `ein`."""
    small = words(
        "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn "
        "siebzehn achtzehn neunzehn"
    )
    tens = words("- - zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig")

    def stem(k: int) -> str:  # before another part: ein, not eins
        return "ein" if k == 1 else german(k).removesuffix("s") if k % 100 == 1 else german(k)

    if n < 20:
        return small[n]
    if n < 100:
        return (f"{stem(n % 10)}und" if n % 10 else "") + tens[n // 10]
    if n < 1000:
        return joined(f"{stem(n // 100)}hundert", n % 100, german)
    return joined(f"{stem(n // 1000)}tausend", n % 1000, german)


def dutch(n: int) -> str:
    """One word up to `duizend`, after which a space; two dots where vowels meet."""
    small = words(
        "nul een twee drie vier vijf zes zeven acht negen tien elf twaalf dertien veertien vijftien zestien zeventien "
        "achttien negentien"
    )
    tens = words("- - twintig dertig veertig vijftig zestig zeventig tachtig negentig")
    if n < 20:
        return small[n]
    if n < 100:
        unit = small[n % 10]
        return (unit + ("ën" if unit.endswith("e") else "en") if n % 10 else "") + tens[n // 10]
    if n < 1000:
        return joined((small[n // 100] if n >= 200 else "") + "honderd", n % 100, dutch)
    return spaced((dutch(n // 1000) if n >= 2000 else "") + "duizend", n % 1000, dutch)


def swedish(n: int) -> str:
    """One word, with `etthundra` and `ettusen`; of three equal consonants one is dropped."""
    small = words(
        "noll ett två tre fyra fem sex sju åtta nio tio elva tolv tretton fjorton femton sexton sjutton arton nitton"
    )
    tens = words("- - tjugo trettio fyrtio femtio sextio sjuttio åttio nittio")
    if n < 20:
        return small[n]
    if n < 100:
        return tens[n // 10] + (small[n % 10] if n % 10 else "")
    if n < 1000:
        return joined(f"{small[n // 100]}hundra", n % 100, swedish)
    return joined(f"{swedish(n // 1000)}tusen".replace("tttusen", "ttusen"), n % 1000, swedish)


def french(n: int) -> str:
    """Of France, in the spelling from before 1990: hyphens below a hundred, but not around `et`."""
    small = words(
        "zéro un deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize dix-sept "
        "dix-huit dix-neuf"
    )
    tens = words("- - vingt trente quarante cinquante soixante")
    if n < 20:
        return small[n]
    if n < 80:
        ten, rest = min(n // 10, 6), n - 10 * min(n // 10, 6)  # seventy is sixty and ten
        link = " et " if rest in (1, 11) else "-"
        return tens[ten] + (link + small[rest] if rest else "")
    if n < 100:
        return "quatre-vingts" if n == 80 else f"quatre-vingt-{small[n - 80]}"
    if n < 1000:
        hundreds = f"{small[n // 100]} " if n >= 200 else ""
        return f"{hundreds}cents" if n % 100 == 0 and n >= 200 else spaced(f"{hundreds}cent", n % 100, french)
    thousands = french(n // 1000)  # cent and vingt take no s before mille
    if thousands.endswith(("cents", "vingts")):
        thousands = thousands[:-1]
    return spaced(f"{thousands} mille" if n >= 2000 else "mille", n % 1000, french)


def spanish(n: int) -> str:
    """`uno` loses its o before `mil`."""
    small = words(
        "cero uno dos tres cuatro cinco seis siete ocho nueve diez once doce trece catorce quince dieciséis diecisiete "
        "dieciocho diecinueve veinte veintiuno veintidós veintitrés veinticuatro veinticinco veintiséis veintisiete "
        "veintiocho veintinueve"
    )
    tens = words("- - - treinta cuarenta cincuenta sesenta setenta ochenta noventa")
    hundreds = words(
        "- ciento doscientos trescientos cuatrocientos quinientos seiscientos setecientos ochocientos novecientos"
    )
    if n < 30:
        return small[n]
    if n < 100:
        return tens[n // 10] + (f" y {small[n % 10]}" if n % 10 else "")
    if n < 1000:
        return "cien" if n == 100 else spaced(hundreds[n // 100], n % 100, spanish)
    thousands = spanish(n // 1000)
    if thousands.endswith("veintiuno"):
        thousands = thousands.removesuffix("uno") + "ún"
    elif thousands.endswith("uno"):
        thousands = thousands.removesuffix("o")
    return spaced(f"{thousands} mil" if n >= 2000 else "mil", n % 1000, spanish)


def portuguese(n: int) -> str:
    """Of Brazil; `e` after the thousands where what follows is below a hundred or whole hundreds."""
    small = words(
        "zero um dois três quatro cinco seis sete oito nove dez onze doze treze catorze quinze dezesseis dezessete "
        "dezoito dezenove"
    )
    tens = words("- - vinte trinta quarenta cinquenta sessenta setenta oitenta noventa")
    hundreds = words("- cento duzentos trezentos quatrocentos quinhentos seiscentos setecentos oitocentos novecentos")
    if n < 20:
        return small[n]
    if n < 100:
        return tens[n // 10] + (f" e {small[n % 10]}" if n % 10 else "")
    if n < 1000:
        if n == 100:
            return "cem"
        return hundreds[n // 100] + (f" e {portuguese(n % 100)}" if n % 100 else "")
    rest = n % 1000
    link = " e " if rest < 100 or rest % 100 == 0 else " "
    thousands = f"{portuguese(n // 1000)} mil" if n >= 2000 else "mil"
    return thousands + (link + portuguese(rest) if rest else "")


def italian(n: int) -> str:
    """One word; tens drop their last vowel before uno and otto, `cento` before otto; a last `tre` has an accent."""
    small = words(
        "zero uno due tre quattro cinque sei sette otto nove dieci undici dodici tredici quattordici quindici sedici "
        "diciassette diciotto diciannove"
    )
    tens = words("- - venti trenta quaranta cinquanta sessanta settanta ottanta novanta")

    def inner(k: int) -> str:  # without the accent, which only the end of the whole word has
        if k < 20:
            return small[k]
        if k < 100:
            ten = tens[k // 10]
            return (ten[:-1] if k % 10 in (1, 8) else ten) + (small[k % 10] if k % 10 else "")
        if k < 1000:
            hundreds = (small[k // 100] if k >= 200 else "") + "cento"
            rest = inner(k % 100) if k % 100 else ""
            return (hundreds[:-1] if rest.startswith("ott") else hundreds) + rest
        return (f"{inner(k // 1000)}mila" if k >= 2000 else "mille") + (inner(k % 1000) if k % 1000 else "")

    word = inner(n)
    return word[:-1] + "é" if n > 3 and word.endswith("tre") else word


def finnish(n: int) -> str:
    """One word; `sata` and `tuhat` stand alone for one of them, and in the partitive after any other number."""
    small = words("nolla yksi kaksi kolme neljä viisi kuusi seitsemän kahdeksan yhdeksän kymmenen")
    if n <= 10:
        return small[n]
    if n < 20:
        return f"{small[n - 10]}toista"
    if n < 100:
        return joined(f"{small[n // 10]}kymmentä", n % 10, finnish)
    if n < 1000:
        return joined("sata" if n < 200 else f"{small[n // 100]}sataa", n % 100, finnish)
    return joined("tuhat" if n < 2000 else f"{finnish(n // 1000)}tuhatta", n % 1000, finnish)


def turkish(n: int) -> str:
    """Every part a word of its own; no `bir` before yüz and bin."""
    small = words("sıfır bir iki üç dört beş altı yedi sekiz dokuz")
    tens = words("- on yirmi otuz kırk elli altmış yetmiş seksen doksan")
    if n < 10:
        return small[n]
    if n < 100:
        return spaced(tens[n // 10], n % 10, turkish)
    if n < 1000:
        return spaced("yüz" if n < 200 else f"{small[n // 100]} yüz", n % 100, turkish)
    return spaced("bin" if n < 2000 else f"{turkish(n // 1000)} bin", n % 1000, turkish)


def indonesian(n: int) -> str:
    """`se-` for one of a unit: sebelas, seratus, seribu."""
    small = words("nol satu dua tiga empat lima enam tujuh delapan sembilan sepuluh sebelas")
    if n < 12:
        return small[n]
    if n < 20:
        return f"{small[n - 10]} belas"
    if n < 100:
        return spaced(f"{small[n // 10]} puluh", n % 10, indonesian)
    if n < 1000:
        return spaced("seratus" if n < 200 else f"{small[n // 100]} ratus", n % 100, indonesian)
    return spaced("seribu" if n < 2000 else f"{indonesian(n // 1000)} ribu", n % 1000, indonesian)


def esperanto(n: int) -> str:
    """Tens and hundreds are one word each, the parts words of their own; no `unu` before dek, cent and mil."""
    small = words("nul unu du tri kvar kvin ses sep ok naŭ")
    if n < 10:
        return small[n]
    if n < 100:
        return spaced(("" if n < 20 else small[n // 10]) + "dek", n % 10, esperanto)
    if n < 1000:
        return spaced(("" if n < 200 else small[n // 100]) + "cent", n % 100, esperanto)
    return spaced("mil" if n < 2000 else f"{esperanto(n // 1000)} mil", n % 1000, esperanto)


# -------------------------------------------------------------------- Slavic: thousands agree with their number


def slavic(n: int, names: str, hundreds: str, thousands: tuple[str, str, str], feminine: dict[str, str]) -> str:
    """`names`: 0–19, then the tens from 20. `thousands`: after 1, after 2–4, after the rest; `feminine`: 1 and 2 before
    them."""
    listed = words(names)
    if n < 20:
        return listed[n]

    def again(k: int) -> str:
        return slavic(k, names, hundreds, thousands, feminine)

    if n < 100:
        return spaced(listed[18 + n // 10], n % 10, again)
    if n < 1000:
        return spaced(words(hundreds)[n // 100 - 1], n % 100, again)
    count = n // 1000
    last = 0 if 10 < count % 100 < 20 else count % 10
    before, _, word = again(count).rpartition(" ")
    word = feminine.get(word, word)
    unit = thousands[0] if last == 1 else thousands[1] if last in (2, 3, 4) else thousands[2]
    return spaced(" ".join(filter(None, [before, word, unit])), n % 1000, again)


def russian(n: int) -> str:
    """Masculine, with `одна тысяча` in full."""
    return slavic(
        n,
        "ноль один два три четыре пять шесть семь восемь девять десять одиннадцать двенадцать тринадцать четырнадцать "
        "пятнадцать шестнадцать семнадцать восемнадцать девятнадцать двадцать тридцать сорок пятьдесят шестьдесят "
        "семьдесят восемьдесят девяносто",
        "сто двести триста четыреста пятьсот шестьсот семьсот восемьсот девятьсот",
        ("тысяча", "тысячи", "тысяч"),
        {"один": "одна", "два": "две"},
    )


def ukrainian(n: int) -> str:
    """Masculine, with `одна тисяча` in full."""
    return slavic(
        n,
        "нуль один два три чотири п’ять шість сім вісім дев’ять десять одинадцять дванадцять тринадцять чотирнадцять "
        "п’ятнадцять шістнадцять сімнадцять вісімнадцять дев’ятнадцять двадцять тридцять сорок п’ятдесят шістдесят "
        "сімдесят вісімдесят дев’яносто",
        "сто двісті триста чотириста п’ятсот шістсот сімсот вісімсот дев’ятсот",
        ("тисяча", "тисячі", "тисяч"),
        {"один": "одна", "два": "дві"},
    )


def polish(n: int) -> str:
    """Masculine; `tysiąc` alone for one thousand, and `tysięcy` after 21, 31, … as after 5."""
    names = (
        "zero jeden dwa trzy cztery pięć sześć siedem osiem dziewięć dziesięć jedenaście dwanaście trzynaście "
        "czternaście piętnaście szesnaście siedemnaście osiemnaście dziewiętnaście dwadzieścia trzydzieści "
        "czterdzieści pięćdziesiąt sześćdziesiąt siedemdziesiąt osiemdziesiąt dziewięćdziesiąt"
    )
    hundreds = "sto dwieście trzysta czterysta pięćset sześćset siedemset osiemset dziewięćset"
    if 1000 <= n < 2000:
        return spaced("tysiąc", n % 1000, polish)
    return slavic(n, names, hundreds, ("tysięcy", "tysiące", "tysięcy"), {})


# -------------------------------------------------------------------- joining


def spaced(first: str, rest: int, spell: Callable[[int], str]) -> str:
    """`first`, then the rest as words of its own; nothing where the rest is nought."""
    return f"{first} {spell(rest)}" if rest else first


def joined(first: str, rest: int, spell: Callable[[int], str]) -> str:
    """`first` and the rest as one word."""
    return first + spell(rest) if rest else first


LANGUAGES: dict[str, Callable[[int], str]] = {
    "de": german,
    "en": english,
    "eo": esperanto,
    "es": spanish,
    "fi": finnish,
    "fr": french,
    "id": indonesian,
    "it": italian,
    "nl": dutch,
    "pl": polish,
    "pt": portuguese,
    "ru": russian,
    "sv": swedish,
    "tr": turkish,
    "uk": ukrainian,
}
