"""Numbers below 100 in English and French words."""

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
