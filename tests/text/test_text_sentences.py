"""Sentences and words have exact spans, and nothing but white space is left out."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.text.sentences import fit_spans, split_sentences, split_to_fit
from qkv.text.words import include_marks, split_words

Spans = list[tuple[int, int]]


def texts(text: str, spans: Spans) -> list[str]:
    return [text[start:end] for start, end in spans]


def left_out(text: str, spans: Spans) -> str:
    """What is between the spans, which must be in order."""
    edges = [(0, 0), *spans, (len(text), len(text))]
    assert all(start < end for start, end in spans)
    assert all(before[1] <= after[0] for before, after in pairwise(edges))
    return "".join(text[before[1] : after[0]] for before, after in pairwise(edges))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Two men. A dog runs.", ["Two men.", "A dog runs."]),
        ("Dr. Who met Mrs. J. R. Smith. He left.", ["Dr. Who met Mrs. J. R. Smith.", "He left."]),
        ("It costs 3.5 euros, e.g. today. See No. 5.", ["It costs 3.5 euros, e.g. today.", "See No. 5."]),
        ("No. I will not. So do I. You?", ["No.", "I will not.", "So do I.", "You?"]),
        ('"Stop!" he said. “Why?” She ran…', ['"Stop!" he said.', "“Why?”", "She ran…"]),
        ("Am 3. Mai kam er. Sie auch.", ["Am 3. Mai kam er.", "Sie auch."]),
        ("1. One thing\n2. Another", ["1. One thing", "2. Another"]),
        ("彼は来た。はい！", ["彼は来た。", "はい！"]),
        ("a title\n\n  a text  ", ["a title", "a text"]),
        (" \n ", []),
        ("", []),
    ],
)
def test_sentences(text: str, expected: list[str]) -> None:
    assert texts(text, split_sentences(text)) == expected


@given(st.text(alphabet="ab .!?1A\n。,\u0301😀", max_size=60))
def test_sentences_and_words_leave_out_only_white_space(text: str) -> None:
    assert not left_out(text, split_sentences(text)).strip()
    assert not left_out(text, split_words(text)).strip()


@given(st.text(alphabet="ab ,.\n\u0301😀", max_size=80), st.integers(1, 20))
def test_parts_fit_and_leave_out_only_white_space(text: str, limit: int) -> None:
    spans = fit_spans(text, lambda part: len(part) <= limit)
    assert not left_out(text, spans).strip()
    assert all(end - start <= limit for start, end in spans)


def test_long_sentences_are_split_after_clauses_then_words() -> None:
    text = "when the rain had stopped, the dog ran out"
    assert texts(text, split_to_fit(text, (0, len(text)), lambda part: len(part) < 30)) == [
        "when the rain had stopped,",
        "the dog ran out",
    ]
    assert texts("aaaa bbbb", split_to_fit("aaaa bbbb", (0, 9), lambda part: len(part) < 6)) == ["aaaa", "bbbb"]
    assert split_to_fit("abcd", (0, 4), lambda part: False) == [(0, 1), (1, 2), (2, 3), (3, 4)]


def test_spans_do_not_cut_a_character_from_its_marks() -> None:
    text = "Zoe\u0301\u0302 👍🏽!"
    assert include_marks(text, 0, 3) == (0, 5)
    assert include_marks(text, 3, 5) == (2, 5)
    assert include_marks(text, 6, 7) == (6, 8)
    assert include_marks(text, 0, 2) == (0, 2)
    assert include_marks("\u0301" * 100, 50, 51)[1] <= 51 + 16


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Anna's dog-house, 3.5 km!", ["Anna's", "dog-house", ",", "3.5", "km", "!"]),
        ("cafe\u0301s नमस्ते x\u00ady", ["cafe\u0301s", "नमस्ते", "x\u00ady"]),
        ("👩🏽\u200d🚀 𝒜bc", ["👩🏽\u200d🚀", "𝒜bc"]),
        ("a\u200bb", ["a", "\u200b", "b"]),
    ],
)
def test_marks_stay_with_their_word(text: str, expected: list[str]) -> None:
    assert texts(text, split_words(text)) == expected
