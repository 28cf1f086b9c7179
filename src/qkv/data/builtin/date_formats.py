"""Formats of dates in many languages, with the names of months and days, from CLDR (Babel).

A `DateFormat` has tables with the text of each year, month, day and weekday, so writing a date takes four look-ups.
The data has no ambiguous dates: 03/04/2021, for example, is in March in the United States, but in April in France. A
format therefore skips a date if another format reads its text as a different date. The dates that each format may write
are computed once.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Any

from qkv.errors import QkvError

YEARS = range(1950, 2051)
MAX_CHARACTERS = 48  # formats with longer dates are left out
# `LOCALES`: language → the CLDR locales whose formats are used.
LANGUAGES = "ar bn cs da de el en es fa fi fr he hi hu id it ja ko nl pl pt ro ru sv th tr uk vi zh"
MORE_LOCALES = {"en": ["en_GB"], "zh": ["zh_Hant"]}
LOCALES = {language: [language, *MORE_LOCALES.get(language, [])] for language in LANGUAGES.split()}
# The digit 0 of each numbering system; 1 to 9 are the next code points.
ZERO_DIGITS = {"arab": "٠", "arabext": "۰", "beng": "০", "deva": "०"}
PATTERN_FIELD = re.compile(r"'([^']*)'|(y+|M+|L+|d+|E+|c+|G+)|([A-Za-z])|([^A-Za-z']+)")
INVISIBLE = dict.fromkeys(map(ord, "\u200e\u200f\u061c"))  # direction marks, which nobody types
SPACES = {ord("\u00a0"): " ", ord("\u202f"): " ", ord("\u2009"): " "}


@dataclass(frozen=True)
class DateFormat:
    """A format of dates. Tables give the text of months 1–12, days 1–31 and weekdays 0–6 (Monday is 0)."""

    language: str
    template: str  # for str.format: {0} year, {1} month, {2} day, {3} weekday
    years: tuple[str, ...]  # the text of each year of `YEARS`
    months: tuple[str, ...]
    days: tuple[str, ...]
    weekdays: tuple[str, ...]

    def write(self, year: int, month: int, day: int, weekday: int) -> str:
        """Write a date in this format."""
        texts = self.years[year - YEARS.start], self.months[month], self.days[day], self.weekdays[weekday]
        return self.template.format(*texts)


# -------------------------------------------------------------------- from CLDR


def date_formats(languages: Iterable[str]) -> list[DateFormat]:
    """All distinct formats of the languages, in a fixed order."""
    found: dict[DateFormat, None] = {}
    for language in languages:
        for code in LOCALES[language]:
            for pattern, locale in locale_patterns(code):
                for form in formats_from_pattern(language, pattern, locale):
                    found.update(dict.fromkeys(case_variants(form)))
    return [form for form in found if max_characters(form) <= MAX_CHARACTERS]


def locale_patterns(code: str) -> Iterator[tuple[str, Any]]:
    """Yield the patterns of a locale for a complete date, also with longer and shorter names of months and days."""
    try:
        from babel import Locale
    except ImportError:
        raise QkvError('the `dates` dataset needs Babel for its names and formats: pip install "qkv[dates]"') from None
    locale = Locale.parse(code)
    listed = [str(locale.date_formats[size].pattern) for size in ("full", "long", "medium", "short")]
    listed += [
        pattern
        for skeleton, pattern in sorted((name, str(entry)) for name, entry in locale.datetime_skeletons.items())
        if re.fullmatch(r"yM+[Ec]*d+", skeleton)
    ]
    made = [re.sub(r"(?<!M)MMM(?!M)", "MMMM", pattern) for pattern in listed]
    made += [re.sub(r"(?<!M)MMMM(?!M)", "MMM", pattern) for pattern in listed]
    made += [re.sub(r"E+", "EEEE", pattern) for pattern in [*listed, *made]]
    for pattern in dict.fromkeys([*listed, *made]):
        yield pattern, locale


def formats_from_pattern(language: str, pattern: str, locale: Any) -> Iterator[DateFormat]:
    """Convert a CLDR pattern to formats with Latin and local digits; to no formats if the date is incomplete."""
    zero = ZERO_DIGITS.get(locale.default_numbering_system, "0")
    for first in dict.fromkeys(["0", zero]):
        digits = str.maketrans("0123456789", "".join(chr(ord(first) + n) for n in range(10)))
        fields: dict[str, tuple[str, ...]] = {}
        template = ""
        for quoted, field, other, literal in PATTERN_FIELD.findall(pattern):
            if other:
                break  # a field that is not part of a date, or unknown
            if not field:
                template += (quoted or literal or "'").replace("{", "{{").replace("}", "}}")
                continue
            name, texts = field_texts(field, locale)
            if name in fields or not texts:
                break
            fields[name] = tuple(text.translate(digits) for text in texts)
            template += {"year": "{0}", "month": "{1}", "day": "{2}", "weekday": "{3}"}.get(name, texts[0])
        else:
            if {"year", "month", "day"} <= fields.keys():
                years = tuple(str(year).translate(digits) for year in YEARS)
                weekdays = fields.get("weekday", ("",) * 7)
                form = DateFormat(language, template, years, fields["month"], fields["day"], weekdays)
                yield normalize_spaces(form)


def field_texts(field: str, locale: Any) -> tuple[str, tuple[str, ...]]:
    """The name of a field of a pattern, and its texts: ("month", ("", "Jan", …)). A two-digit year has no texts."""
    width = {3: "abbreviated", 4: "wide"}.get(len(field), "abbreviated" if field[0] in "EcG" else "")
    match field[0]:
        case "y":
            return "year", () if len(field) == 2 else ("year",)
        case "d":
            return "day", ("", *(f"{day:0{len(field)}d}" for day in range(1, 32)))
        case "M" | "L" if len(field) <= 2:
            return "month", ("", *(f"{month:0{len(field)}d}" for month in range(1, 13)))
        case "M":
            return "month", ("", *(locale.months["format"][width][month] for month in range(1, 13)))
        case "E" | "c":
            context = "format" if field[0] == "E" else "stand-alone"
            return "weekday", tuple(locale.days[context][width][day] for day in range(7))
        case "G":
            return "era", (locale.eras["abbreviated"][1],) if width == "abbreviated" else ()
    return "", ()


def normalize_spaces(form: DateFormat) -> DateFormat:
    """The format with ordinary spaces and without invisible marks, as a person types it."""
    tidy = {**INVISIBLE, **SPACES}
    tidied = map_words(form, lambda text: text.translate(tidy))
    return replace(tidied, template=tidied.template.strip())


# -------------------------------------------------------------------- as people write

UPPER = {"tr": str.maketrans("iı", "İI")}  # Turkish has its own rules for i and ı
LOWER = {"tr": str.maketrans("Iİ", "ıi")}
NO_UPPER = {"el"}  # Greek capitals drop their accents; `str.upper` keeps them


def case_variants(form: DateFormat) -> Iterator[DateFormat]:
    """Yield the format unchanged, with a capital first letter, in lower case and in upper case."""

    def upper(text: str) -> str:
        return text.translate(UPPER.get(form.language, {})).upper()

    def lower(text: str) -> str:
        return text.translate(LOWER.get(form.language, {})).lower()

    yield form
    yield map_first_word(form, lambda text: upper(text[:1]) + text[1:])
    yield map_words(form, lower)
    if form.language not in NO_UPPER:
        yield map_words(form, upper)


def map_words(form: DateFormat, function: Callable[[str], str]) -> DateFormat:
    """Apply a function to all words of a format."""
    return replace(
        form,
        template=function(form.template),  # {0} to {3} have no case
        months=tuple(map(function, form.months)),
        weekdays=tuple(map(function, form.weekdays)),
    )


def map_first_word(form: DateFormat, function: Callable[[str], str]) -> DateFormat:
    """Apply a function to the first word of a format."""
    if form.template.startswith("{1}"):
        return replace(form, months=tuple(map(function, form.months)))
    if form.template.startswith("{3}"):
        return replace(form, weekdays=tuple(map(function, form.weekdays)))
    return form if form.template.startswith("{") else replace(form, template=function(form.template))


def max_characters(form: DateFormat) -> int:
    """The length of the longest date in this format."""
    parts = (form.years, form.months, form.days, form.weekdays)
    return len(form.template.format(*(max(texts, key=len) for texts in parts)))


# -------------------------------------------------------------------- which dates a format may write

LEAP_YEAR = 2024  # one year with all 366 days is enough, because all formats write the year in full
ANY_WEEKDAY = "\ue000"  # replaces weekday names, which must not distinguish two dates
IGNORED_PUNCTUATION = str.maketrans(".,،", "   ")


def unambiguous_days(formats: list[DateFormat]) -> list[frozenset[tuple[int, int]]]:
    """For each format, the (month, day) pairs whose text no other format would read as a different date."""
    year = [date(LEAP_YEAR, 1, 1) + timedelta(days=n) for n in range(366)]
    normalized = [replace(map_words(form, str.casefold), language="", weekdays=(ANY_WEEKDAY,) * 7) for form in formats]
    readings: dict[str, set[tuple[int, int]]] = {}
    listed: dict[DateFormat, list[tuple[str, tuple[int, int]]]] = {}
    for form in dict.fromkeys(normalized):  # formats that differ only in case or weekdays have the same readings
        texts = [form.write(day.year, day.month, day.day, 0) for day in year]
        listed[form] = [
            (normalize_for_ambiguity(text), (day.month, day.day)) for text, day in zip(texts, year, strict=True)
        ]
        for key, month_day in listed[form]:
            readings.setdefault(key, set()).add(month_day)
    kept = {form: frozenset(pair for key, pair in pairs if len(readings[key]) == 1) for form, pairs in listed.items()}
    return [kept[form] for form in normalized]


def normalize_for_ambiguity(text: str) -> str:
    """A text without the differences that readers ignore: case, dots, commas, leading zeros, the script of digits."""
    words = text.casefold().translate(IGNORED_PUNCTUATION)
    return " ".join(re.sub(r"\d+", lambda digits: str(int(digits[0])), words).split())
