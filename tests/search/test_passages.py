"""Splitting files into passages."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_models import write_files

from qkv.errors import QkvError
from qkv.search import passages
from qkv.search.passages import decode_source, find_files, read_source, split_passages


def count_words(texts: list[str]) -> list[int]:
    return [len(text.split()) for text in texts]


def split(text: str, max_tokens: int) -> list[tuple[str, int, int]]:
    return [(one.text, one.first_line, one.last_line) for one in split_passages(text, count_words, max_tokens)]


def test_paragraphs_stay_together_if_they_fit() -> None:
    text = "\none two.\nthree four.\n\nfive six.\n \nseven eight nine. Ten\n\n"
    assert split(text, 100) == [(text.strip(), 2, 7)]
    assert split(text, 6) == [("one two.\nthree four.\n\nfive six.", 2, 5), ("seven eight nine. Ten", 7, 7)]
    assert split(text, 3) == [
        ("one two.", 2, 2),
        ("three four.", 3, 3),
        ("five six.", 5, 5),
        ("seven eight nine.", 7, 7),
        ("Ten", 7, 7),
    ]


def test_a_sentence_that_is_too_long_is_split() -> None:
    assert [words for words, _, _ in split("a b c, d e f", 3)] == ["a b c,", "d e f"]
    assert split("", 3) == split(" \n\t", 3) == []


@settings(max_examples=80, deadline=None)
@given(st.text(st.sampled_from("ab. ,\n\n\t!é東"), max_size=120), st.integers(1, 9))
def test_passages_cover_the_text_in_order_with_exact_lines(text: str, max_tokens: int) -> None:
    found = split(text, max_tokens)
    position = 0
    for part, first, last in found:
        start = text.index(part, position)
        assert text[position:start].strip() == ""
        assert text.count("\n", 0, start) + 1 == first
        assert text.count("\n", 0, start + len(part)) + 1 == last
        assert part == part.strip()
        assert len(part.split()) <= max_tokens
        position = start + len(part)
    assert text[position:].strip() == ""


def test_finds_files_but_not_hidden_ones(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "notes")
    names = ["deep/dog.txt", "empty.txt", "fox.md", "latin.txt", "picture.bin"]
    assert find_files(folder) == (folder, names)
    assert find_files(folder, excluded=folder / "deep")[1] == names[1:]
    assert find_files(folder / "fox.md") == (folder, ["fox.md"])
    with pytest.raises(QkvError, match="did you mean"):
        find_files(tmp_path / "note")


def test_files_that_are_not_text_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_files(tmp_path / "notes")
    assert decode_source(read_source(folder / "deep/dog.txt")) == "The lazy dog.\n\nIt is warm.\n"
    with pytest.raises(QkvError, match="NUL"):
        read_source(folder / "picture.bin")
    with pytest.raises(QkvError, match="not UTF-8"):
        decode_source(read_source(folder / "latin.txt"))
    monkeypatch.setattr(passages, "MAX_TEXT_BYTES", 10)
    with pytest.raises(QkvError, match="at most 10"):
        read_source(folder / "fox.md")
