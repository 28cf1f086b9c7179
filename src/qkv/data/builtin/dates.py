"""`dates`: written dates in many languages and formats → the same dates in ISO 8601. An endless, seeded dataset.

| written                        | iso        | language |
|--------------------------------|------------|----------|
| Dienstag, 4. Mai 2021          | 2021-05-04 | de       |
| ۴ مهٔ ۲۰۲۱                       | 2021-05-04 | fa       |
| 2021年5月4日星期二               | 2021-05-04 | zh       |
"""

import hashlib
from collections.abc import Sequence
from dataclasses import astuple
from datetime import date, timedelta
from functools import cached_property

from qkv.data.builtin.dataset import SPLITS, BuiltinDataset, assign_split, random_stream_start, splitmix64
from qkv.data.builtin.date_formats import LOCALES, YEARS, DateFormat, date_formats, unambiguous_days
from qkv.errors import UsageError, suggest_name

DateRow = tuple[str, int, int, int, int]  # (ISO date, year, month, day, weekday)
WEIGHTS = {"en": 4}  # English is the language of most texts, and has two orders: March 7, 1994 and 7 March 1994


class Dates(BuiltinDataset):
    """Dates from 1950 to 2050 as people write them, to be converted to ISO 8601.

    A date belongs to one split only, for every seed. English is four times as likely as each other language; all
    formats of a language are equally likely. No text is ambiguous: another language or format never reads it as a
    different date. The tables are made from Babel's CLDR data on first use, which takes about a second.

    >>> dates = Dates(languages=["en"])
    >>> dates.example("train", 7) == dates.example("train", 7)
    True
    """

    name = "dates"
    description = "dates as written in many languages and formats → ISO 8601"
    licence = "Unicode-3.0 (CLDR's names and formats); the texts are generated"
    fields = ("written", "iso", "language")

    def __init__(self, languages: Sequence[str] | None = None) -> None:
        self.languages = tuple(LOCALES if languages is None else languages)
        if not self.languages:
            raise UsageError(
                "`languages` is empty, but the dataset dates needs at least one; choose one, or leave out "
                "`languages` for all of them"
            )
        for language in self.languages:
            if language not in LOCALES:
                raise UsageError(f"dates has no language {language!r}; {suggest_name(language, LOCALES)}")

        weights = [WEIGHTS.get(language, 1) for language in self.languages]
        # Each language's index in `languages`, repeated by its weight; each entry is then equally likely.
        self.turns = [place for place, weight in enumerate(weights) for _ in range(weight)]

    def length(self, split: str) -> None:
        """Return None, because every split is endless."""

    @cached_property
    def formats(self) -> list[list[tuple[DateFormat, frozenset[tuple[int, int]]]]]:
        """For each language, its formats with the (month, day) pairs that they may write."""
        formats = date_formats(self.languages)
        allowed = unambiguous_days(formats)
        return [
            [pair for pair in zip(formats, allowed, strict=True) if pair[0].language == language and pair[1]]
            for language in self.languages
        ]

    @cached_property
    def days(self) -> dict[str, list[DateRow]]:
        """The dates of each split."""
        days: dict[str, list[DateRow]] = {split: [] for split in SPLITS}
        day, end = date(YEARS.start, 1, 1), date(YEARS.stop, 1, 1)
        while day < end:
            days[assign_split(day.toordinal())].append((day.isoformat(), day.year, day.month, day.day, day.weekday()))
            day += timedelta(days=1)
        return days

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all formats, of the dates that they may write, and of the weights of the languages."""
        tables = [f"{astuple(form)} {sorted(days)}" for formats in self.formats for form, days in formats]
        return hashlib.sha256("\n".join([str(self.turns), *tables]).encode()).hexdigest()[:32]

    def example(self, split: str, i: int, seed: int = 0) -> dict[str, str]:
        """Example `i`: a date `written` in a `language`, and its `iso` form."""
        if i < 0 or split not in self.splits:
            self.check_index(split, i)
        days = self.days[split]
        number, turn = divmod(splitmix64(random_stream_start(seed, split) + i), len(self.turns))
        place = self.turns[turn]
        formats = self.formats[place]
        while True:
            rest, chosen = divmod(number, len(formats))
            form, allowed = formats[chosen]
            iso, year, month, day, weekday = days[rest % len(days)]
            if (month, day) in allowed:
                written = form.write(year, month, day, weekday)
                return {"written": written, "iso": iso, "language": self.languages[place]}
            number = splitmix64(number)
