"""Excerpts of the passages that were found."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.search.results import MAX_EXCERPT_CHARS, SearchHit, SearchResult, cut_excerpt, find_match

FILLER = "word " * 60


def test_match_is_found_as_bm25_finds_words() -> None:
    assert find_match("foxes, E\u0301clair", "ÉCLAIR fox") == len("foxes, ")
    assert find_match("no such word", "fox") == find_match("fox", "?!") == 0


def test_match_is_where_most_words_of_the_query_are() -> None:
    text = f"The start. {FILLER}fox. {FILLER}the end: the brown fox"
    assert find_match(text, "the brown fox") == find_match(text, "the fox?") == text.index("the brown")
    assert find_match(text, "fox") == text.index("fox")
    assert find_match(f"a {FILLER}passport", "a passport") == len(f"a {FILLER}")


def test_a_passage_that_was_found_by_its_meaning_is_shown_from_its_beginning() -> None:
    text = "Travel documents are extended at the town hall.\n" + "Bring a photo.\n" * 8 + "Then I leave."
    assert find_match(text, "how do I renew my passport") == 0
    assert find_match(text, "when do I leave") == text.index("I leave")


@pytest.mark.parametrize(
    ("text", "starts_late", "ends_early"),
    [
        ("a\n  fox", False, False),
        (f"fox {FILLER}", False, True),
        (f"{FILLER}fox {FILLER}", True, True),
        (f"{FILLER}fox", True, False),
    ],
)
def test_excerpt_has_an_ellipsis_where_text_is_left_out(text: str, starts_late: bool, ends_early: bool) -> None:
    excerpt = cut_excerpt(text, text.index("fox"))
    assert (excerpt.startswith("…"), excerpt.endswith("…")) == (starts_late, ends_early)
    assert " ".join(text.split()).count(excerpt.strip("…")) == 1
    assert not excerpt.startswith("…ord")


@given(st.text("ab 東\n", max_size=300), st.text("ab 東\n", max_size=300))
def test_printed_table_shows_every_match(before: str, after: str) -> None:
    text = f"{before} fox {after}".strip()
    result = SearchResult("Fox", "bm25", [SearchHit("a.txt", 5, 9, 1.0, text, 0)])
    ((location, _, excerpt),) = result.rows()
    assert location == f"a.txt:{5 + text[: text.index('fox')].count(chr(10))}"
    assert len(excerpt) <= MAX_EXCERPT_CHARS
    assert "fox" in str(result)
