"""Numbers below a million in English and French words."""

FRENCH_UNITS = "zéro un deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize"
FRENCH_TENS = {20: "vingt", 30: "trente", 40: "quarante", 50: "cinquante", 60: "soixante", 80: "quatre-vingt"}
ENGLISH_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
ENGLISH_TENS = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def french_number(n: int, gender: str = "m") -> str:
    """A number below a million in words.

    >>> [french_number(n) for n in (17, 21, 71, 80, 81, 99)]
    ['dix-sept', 'vingt et un', 'soixante et onze', 'quatre-vingts', 'quatre-vingt-un', 'quatre-vingt-dix-neuf']
    >>> [french_number(n) for n in (100, 200, 201, 1000, 2350)]
    ['cent', 'deux cents', 'deux cent un', 'mille', 'deux mille trois cent cinquante']
    """
    for size, word in ((1000, "mille"), (100, "cent")):
        if n >= size:
            several, rest = divmod(n, size)
            plural = "s" if word == "cent" and several > 1 and not rest else ""
            before = (
                ""
                if several == 1
                else french_number(several).removesuffix("s" if several % 100 in (0, 80) else "") + " "
            )
            return f"{before}{word}{plural}" + (f" {french_number(rest, gender)}" if rest else "")
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
    """A number below a million in words.

    >>> english_number(21), english_number(13), english_number(2350)
    ('twenty-one', 'thirteen', 'two thousand three hundred fifty')
    """
    for size, word in ((1000, "thousand"), (100, "hundred")):
        if n >= size:
            several, rest = divmod(n, size)
            return f"{english_number(several)} {word}" + (f" {english_number(rest)}" if rest else "")
    if n < 20:
        return ENGLISH_UNITS.split()[n]
    return ENGLISH_TENS[n // 10] + (f"-{ENGLISH_UNITS.split()[n % 10]}" if n % 10 else "")
