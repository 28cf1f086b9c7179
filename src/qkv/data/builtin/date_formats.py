"""The ways to write a date, as tables: each language's formats with its names of months and days, from CLDR by Babel.

A `Form` is one way: a format with its names and digits filled in, so that writing a date is four look-ups. Which dates
a form may write is worked out once, from a reverse index over all forms: a text that any form of the set would read as
another date is left out (03/04/2021 is in March in the United States and in April in France).
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Any

from qkv.errors import QkvError

YEARS = range(1950, 2051)
MAX_CHARACTERS = 48  # characters; longer ways to write a date are left out
# Language -> the CLDR locales whose formats it has.
LOCALES = {
    "ar": ["ar"],
    "bn": ["bn"],
    "cs": ["cs"],
    "da": ["da"],
    "de": ["de"],
    "el": ["el"],
    "en": ["en", "en_GB"],
    "es": ["es"],
    "fa": ["fa"],
    "fi": ["fi"],
    "fr": ["fr"],
    "he": ["he"],
    "hi": ["hi"],
    "hu": ["hu"],
    "id": ["id"],
    "it": ["it"],
    "ja": ["ja"],
    "ko": ["ko"],
    "nl": ["nl"],
    "pl": ["pl"],
    "pt": ["pt"],
    "ro": ["ro"],
    "ru": ["ru"],
    "sv": ["sv"],
    "th": ["th"],
    "tr": ["tr"],
    "uk": ["uk"],
    "vi": ["vi"],
    "zh": ["zh", "zh_Hant"],
}
ZERO_DIGITS = {
    "arab": "٠",
    "arabext": "۰",
    "beng": "০",
    "deva": "०",
}  # the digit 0; the other nine follow it in Unicode
PATTERN_FIELD = re.compile(r"'([^']*)'|(y+|M+|L+|d+|E+|c+|G+)|([A-Za-z])|([^A-Za-z']+)")
INVISIBLE = dict.fromkeys(map(ord, "\u200e\u200f\u061c"))  # marks of direction, which nobody types
SPACES = {ord("\u00a0"): " ", ord("\u202f"): " ", ord("\u2009"): " "}


@dataclass(frozen=True)
class DateFormat:
    """One way to write a date. Each table gives a field's text: by month 1–12, day 1–31, weekday 0–6 from Monday."""

    language: str
    template: str  # for str.format: {0} year, {1} month, {2} day, {3} weekday
    years: tuple[str, ...]  # by year since the first of `YEARS`
    months: tuple[str, ...]
    days: tuple[str, ...]
    weekdays: tuple[str, ...]

    def write(self, year: int, month: int, day: int, weekday: int) -> str:
        """The date in this form."""
        texts = self.years[year - YEARS.start], self.months[month], self.days[day], self.weekdays[weekday]
        return self.template.format(*texts)


# -------------------------------------------------------------------- from CLDR


def date_formats(languages: Iterable[str]) -> list[DateFormat]:
    """Every form of the languages, in a fixed order, none twice."""
    found: dict[DateFormat, None] = {}
    for language in languages:
        for code in LOCALES[language]:
            for pattern, locale in locale_patterns(code):
                for form in formats_from_pattern(language, pattern, locale):
                    found.update(dict.fromkeys(case_variants(form)))
    return [form for form in found if max_characters(form) <= MAX_CHARACTERS]


def locale_patterns(code: str) -> Iterator[tuple[str, Any]]:
    """A locale's patterns for a whole date, and the ones made from them with longer or shorter names."""
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
    """A pattern of CLDR as forms, in Latin digits and in the locale's own; none where it has no whole date."""
    zero = ZERO_DIGITS.get(locale.default_numbering_system, "0")
    for first in dict.fromkeys(["0", zero]):
        digits = str.maketrans("0123456789", "".join(chr(ord(first) + n) for n in range(10)))
        fields: dict[str, tuple[str, ...]] = {}
        layout = ""
        for quoted, field, other, literal in PATTERN_FIELD.findall(pattern):
            if other:
                break  # a field that is no part of a date, or not one we know
            if not field:
                layout += (quoted or literal or "'").replace("{", "{{").replace("}", "}}")
                continue
            name, texts = field_texts(field, locale)
            if name in fields or not texts:
                break
            fields[name] = tuple(text.translate(digits) for text in texts)
            layout += {"year": "{0}", "month": "{1}", "day": "{2}", "weekday": "{3}"}.get(name, texts[0])
        else:
            if {"year", "month", "day"} <= fields.keys():
                years = tuple(str(year).translate(digits) for year in YEARS)
                weekdays = fields.get("weekday", ("",) * 7)
                form = DateFormat(language, layout, years, fields["month"], fields["day"], weekdays)
                yield normalize_spaces(form)


def field_texts(field: str, locale: Any) -> tuple[str, tuple[str, ...]]:
    """What a field of a pattern stands for: its name and its texts; none for a year of two digits."""
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
    """The form with ordinary spaces and without invisible marks, as a person types it."""
    tidy = {**INVISIBLE, **SPACES}
    return replace(
        form,
        template=form.template.translate(tidy).strip(),
        months=tuple(text.translate(tidy) for text in form.months),
        weekdays=tuple(text.translate(tidy) for text in form.weekdays),
    )


# -------------------------------------------------------------------- as people write

UPPER = {"tr": str.maketrans("iı", "İI")}  # where a language's capitals are not Unicode's plain ones
LOWER = {"tr": str.maketrans("Iİ", "ıi")}
NO_UPPER = {"el"}  # Greek capitals drop their accents, which Python's do not


def case_variants(form: DateFormat) -> Iterator[DateFormat]:
    """The form itself, with a capital first letter, in small letters and in capitals."""

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
    """The form with all its words changed."""
    return replace(
        form,
        template=function(form.template),  # its places, {0} to {3}, have no case
        months=tuple(map(function, form.months)),
        weekdays=tuple(map(function, form.weekdays)),
    )


def map_first_word(form: DateFormat, function: Callable[[str], str]) -> DateFormat:
    """The form with the word it begins with changed."""
    if form.template.startswith("{1}"):
        return replace(form, months=tuple(map(function, form.months)))
    if form.template.startswith("{3}"):
        return replace(form, weekdays=tuple(map(function, form.weekdays)))
    return form if form.template.startswith("{") else replace(form, template=function(form.template))


def max_characters(form: DateFormat) -> int:
    """The most characters a date may take in this form."""
    parts = (form.years, form.months, form.days, form.weekdays)
    return len(form.template.format(*(max(texts, key=len) for texts in parts)))


# -------------------------------------------------------------------- which dates a form may write

LEAP_YEAR = 2024  # has every day of a year; a text always holds its year in full, so one year stands for all
ANY_WEEKDAY = "\ue000"  # in place of the weekday's name, which therefore never tells two dates apart


def unambiguous_days(forms: list[DateFormat]) -> list[frozenset[tuple[int, int]]]:
    """For each form, the (month, day) that it can write without any form of the list reading another date."""
    days = [date(LEAP_YEAR, 1, 1) + timedelta(days=n) for n in range(366)]
    likenesses = [replace(map_words(form, str.casefold), language="", weekdays=(ANY_WEEKDAY,) * 7) for form in forms]
    readings: dict[str, set[tuple[int, int]]] = {}
    listed: dict[DateFormat, list[tuple[str, tuple[int, int]]]] = {}
    for form in dict.fromkeys(likenesses):  # forms that differ in case or weekdays only are read alike
        texts = [(form.write(day.year, day.month, day.day, 0), (day.month, day.day)) for day in days]
        listed[form] = [(reading_key(text), place) for text, place in texts]
        for key, place in listed[form]:
            readings.setdefault(key, set()).add(place)
    kept = {form: frozenset(p for key, p in pairs if len(readings[key]) == 1) for form, pairs in listed.items()}
    return [kept[form] for form in likenesses]


def reading_key(text: str) -> str:
    """A text as a hasty reader takes it: case, dots, commas, leading zeros and the script of digits do not count."""
    words = text.casefold().translate(IGNORED_PUNCTUATION)
    return " ".join(re.sub(r"\d+", lambda digits: str(int(digits[0])), words).split())


IGNORED_PUNCTUATION = str.maketrans(".,،", "   ")
