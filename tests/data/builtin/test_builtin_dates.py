"""Written dates: against Babel, without ambiguity, held-out dates apart, and every example a function of its number."""

import json
import os
import random
import re
import subprocess
import sys
from datetime import date, timedelta

import pytest

pytest.importorskip("babel")

from babel.dates import format_date

from qkv.data.builtin import Dates
from qkv.data.builtin.dataset import SPLITS
from qkv.data.builtin.date_formats import LOCALES, MAX_CHARACTERS, YEARS, normalize_for_ambiguity
from qkv.errors import QkvError, UsageError


@pytest.fixture(scope="module")
def dates() -> Dates:
    return Dates()


@pytest.fixture(scope="module")
def sample(dates) -> list[dict[str, str]]:
    return [dates.example(split, i) for split in SPLITS for i in range(20_000)]


def test_at_least_24_languages_and_all_of_them_occur(dates, sample):
    assert len(dates.languages) >= 24
    assert {example["language"] for example in sample} == set(dates.languages)


def test_english_is_four_times_as_likely_as_each_other_language(dates, sample):
    share = len(sample) / (len(dates.languages) + 3)
    for language in dates.languages:
        expected = 4 * share if language == "en" else share
        found = sum(example["language"] == language for example in sample)
        assert 0.85 * expected < found < 1.15 * expected, language


def test_english_dates_with_the_month_first_are_common(sample):
    """At least one of 20 texts is like March 7, 1994."""
    month_first = re.compile(r"(\w+, )?[A-Za-z]{3,9} \d{1,2}, \d{4}")
    english = [example["written"] for example in sample if example["language"] == "en"]
    assert sum(bool(month_first.fullmatch(text)) for text in english) > len(sample) / 20


def test_every_form_is_used(dates):
    """None is left out altogether, and each can write most days of a year."""
    for forms in dates.formats:
        assert len(forms) >= 5
        assert all(len(places) > 150 for _, places in forms)


def test_texts_are_short_and_of_plain_characters(sample):
    assert max(len(example["written"]) for example in sample) <= MAX_CHARACTERS
    seen = {character for example in sample for character in example["written"]}
    assert seen.isdisjoint("\u00a0\u202f\u200e\u200f\n\t")


@pytest.mark.parametrize("language", LOCALES)
def test_texts_are_what_babel_writes(language, dates):
    """Full, long and medium formats of CLDR are among a language's texts, to the letter but for the kind of space."""
    place = dates.languages.index(language)
    draw = random.Random(language)
    for code in LOCALES[language]:
        for size in ("full", "long", "medium"):
            for _ in range(10):
                day = date(2000, 1, 1) + timedelta(days=draw.randrange(9000))
                expected = format_date(day, size, locale=code).translate({0xA0: " ", 0x202F: " ", 0x200F: None})
                written = {form.write(day.year, day.month, day.day, day.weekday()) for form, _ in dates.formats[place]}
                assert expected in written


def test_the_iso_date_is_the_one_written(dates, sample):
    """The slow way round: find the form that wrote the text by trying every one of its language on the answer."""
    for example in sample[::97]:
        day = date.fromisoformat(example["iso"])
        forms = dates.formats[dates.languages.index(example["language"])]
        assert any(
            form.write(day.year, day.month, day.day, day.weekday()) == example["written"]
            for form, places in forms
            if (day.month, day.day) in places
        )


# -------------------------------------------------------------------- ambiguity


@pytest.fixture(scope="module")
def reverse_index(dates) -> dict[str, set[str]]:
    """All that any form, unrestricted, would write for any day of one year: text → the dates it could mean."""
    index: dict[str, set[str]] = {}
    days = [date(2024, 1, 1) + timedelta(days=n) for n in range(366)]
    for day in days:
        fields = (day.year, day.month, day.day, day.weekday())
        for forms in dates.formats:
            for form, _ in forms:
                index.setdefault(form.write(*fields), set()).add(day.isoformat())
    return index


def test_no_text_means_two_dates(dates, reverse_index):
    """Every text that the dataset can give for that year is read as one date only."""
    for day in (date(2024, 1, 1) + timedelta(days=n) for n in range(366)):
        for forms in dates.formats:
            for form, places in forms:
                if (day.month, day.day) in places:
                    text = form.write(day.year, day.month, day.day, day.weekday())
                    assert reverse_index[text] == {day.isoformat()}, text


def test_there_was_ambiguity_to_leave_out(reverse_index):
    """The negative control: without the restriction, many texts mean two dates."""
    assert sum(len(meanings) > 1 for meanings in reverse_index.values()) > 100
    assert reverse_index["3/4/2024"] == {"2024-04-03", "2024-03-04"}


def test_a_sample_of_all_years_has_one_meaning_each(sample):
    meanings: dict[str, set[str]] = {}
    for example in sample:
        meanings.setdefault(normalize_for_ambiguity(example["written"]), set()).add(example["iso"])
    assert all(len(dates) == 1 for dates in meanings.values())


def test_a_two_digit_year_never_occurs(sample):
    for example in sample:
        assert example["iso"][:4] in normalize_for_ambiguity(example["written"]), example


@pytest.mark.parametrize(
    ("text", "reading"), [("03.04.2021", "3 4 2021"), ("۳ مه ۲۰۲۱", "3 مه 2021"), ("4 MAY", "4 may")]
)
def test_reading_ignores_what_readers_ignore(text, reading):
    assert normalize_for_ambiguity(text) == reading


# -------------------------------------------------------------------- splits and order


def test_splits_share_no_date(dates, sample):
    days = {split: {day[0] for day in dates.days[split]} for split in SPLITS}
    assert (
        sum(map(len, days.values())) == len(set().union(*days.values())) == (date(2051, 1, 1) - date(1950, 1, 1)).days
    )
    assert min(len(listed) for listed in days.values()) > 1500
    for place, split in enumerate(SPLITS):
        assert {example["iso"] for example in sample[place * 20_000 :][:20_000]} <= days[split]


def test_held_out_dates_do_not_depend_on_the_seed(dates):
    training = {day[0] for day in dates.days["train"]}
    for seed in (0, 1, 12345, -7):
        assert training.isdisjoint(dates.example("test", i, seed)["iso"] for i in range(500))


def test_an_example_is_a_function_of_seed_split_and_number(dates):
    for split in SPLITS:
        for i in (0, 1, 10**12):
            assert dates.example(split, i, 5) == dates.example(split, i, 5)
    different = {dates.example("train", 3, seed)["written"] for seed in range(50)}
    assert len(different) > 40
    assert len({dates.example(split, 3)["written"] for split in SPLITS}) == 3


def test_another_process_gives_the_same(dates):
    code = (
        "import json; from qkv.data.builtin import find_dataset; d = find_dataset('dates'); "
        "print(json.dumps([d.example('train', i, 9) for i in range(20)] + [d.fingerprint]))"
    )
    environment = os.environ | {"PYTHONHASHSEED": "77"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert json.loads(result.stdout) == [*(dates.example("train", i, 9) for i in range(20)), dates.fingerprint]


def test_a_language_s_forms_do_not_depend_on_the_others(dates):
    """Babel shares tables between locales; a name that leaked from one to another would show here."""
    code = (
        "import sys; from qkv.data.builtin import Dates; "
        "print(*[Dates([language]).formats[0][0][0] for language in sys.argv[1:]], sep='\\n')"
    )
    some = ["zh", "fi", "ru", "hi", "en"]
    result = subprocess.run([sys.executable, "-c", code, *some], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines() == [
        str(dates.formats[dates.languages.index(language)][0][0]) for language in some
    ]


def test_the_stream_of_examples_starts_anywhere(dates):
    assert list(dates.examples("valid", seed=2, start=5, stop=8)) == [dates.example("valid", i, 2) for i in (5, 6, 7)]
    assert dates.length("train") is None


def test_years_are_all_used(sample):
    assert {int(example["iso"][:4]) for example in sample} == set(YEARS)


def test_few_languages_are_less_ambiguous():
    """3/4 is no riddle where only French is asked for."""
    french = Dates(["fr"])
    assert all(len(places) == 366 for _, places in french.formats[0])


def test_wrong_calls_are_explained(dates):
    with pytest.raises(UsageError, match="no split 'dev'"):
        dates.example("dev", 0)
    with pytest.raises(UsageError, match="no example -1"):
        dates.example("train", -1)
    with pytest.raises(UsageError, match="no language 'eng'; did you mean 'en'"):
        Dates(["eng"])
    with pytest.raises(UsageError, match="needs at least one; choose one"):
        Dates([])


def test_without_babel_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "babel", None)
    with pytest.raises(QkvError, match=r"qkv\[dates\]"):
        Dates(["fr"]).example("train", 0)
