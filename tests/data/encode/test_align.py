"""Characters ⇄ tokens, for tokenizers of every kind."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_data import quick, tokens_to_char_span

from qkv.data.encode.align import char_span_to_tokens, sentence_starts, word_indices
from qkv.text import Tokenizer

SAMPLE = ["the cat sat on the mat", "a cat, a hat and a bat", "naïve café! ¿qué?", "東京 は 大きい 。"]


@pytest.fixture(scope="module", params=["byte", "byte-bpe", "bpe", "wordpiece", "unigram", "char"])
def trained(request) -> Tokenizer:
    return Tokenizer.train(request.param, iter(SAMPLE * 20), vocab_size=320, min_frequency=1)


@pytest.mark.parametrize("text", SAMPLE)
def test_a_word_s_characters_are_found_and_given_back(trained, text):
    _, offsets = trained.encode_with_offsets(text)
    begin = 0
    for word in text.split(" "):
        end = begin + len(word)
        span = char_span_to_tokens(offsets, begin, end)
        if span is not None:  # a sign that the tokenizer does not know may have no token
            assert tokens_to_char_span(text, offsets, *span) == (begin, end)
        begin = end + 1


@quick
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), min_size=1, max_size=12), st.data())
def test_token_spans_survive_the_way_through_characters(gaps, data):
    """Any tokens with any gaps between them: tokens → characters → the same tokens."""
    offsets, place = [], 0
    for gap, size in gaps:
        offsets.append((place + gap, place + gap + size))
        place += gap + size
    text = "x" * place
    first = data.draw(st.integers(0, len(offsets) - 1))
    last = data.draw(st.integers(first, len(offsets) - 1))
    assert char_span_to_tokens(offsets, *tokens_to_char_span(text, offsets, first, last)) == (first, last)


@quick
@given(st.integers(0, 30), st.integers(0, 30))
def test_tokens_of_is_every_token_that_touches(begin, end):
    offsets = [(0, 3), (3, 4), (4, 9), (11, 12), (12, 20), (20, 20), (20, 26)]
    touching = [i for i, (a, b) in enumerate(offsets) if a < end and b > begin]
    found = char_span_to_tokens(offsets, begin, end)
    assert found == ((touching[0], touching[-1]) if touching and begin < end else None)


@pytest.mark.parametrize("kind", ["byte", "byte-bpe", "wordpiece", "char", "unigram"])
def test_every_token_knows_its_word(kind):
    made = Tokenizer.train(kind, iter(SAMPLE * 20), vocab_size=320, min_frequency=1)
    text = "the cat, a hat"
    ids, offsets = made.encode_with_offsets(text)
    words = word_indices(text, offsets)
    assert len(words) == len(ids)
    spans: dict[int, list[int]] = {}
    for word, offset in zip(words, offsets, strict=True):
        spans.setdefault(word, []).extend(offset)
    assert [text[min(span) : max(span)].strip() for span in spans.values()] == ["the", "cat", ",", "a", "hat"]


def test_ideographs_are_words_by_themselves():
    text = "東京is大"
    assert word_indices(text, [(i, i + 1) for i in range(5)]) == [0, 1, 2, 2, 3]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three?", ["One. ", "Two! ", "Three?"]),
        ('He said "no." Then left.', ['He said "no." ', "Then left."]),
        ("3.14 is pi", ["3.14 is pi"]),
        ("line\nnext\n\nlast", ["line\n", "next\n\n", "last"]),
        ("東京。大阪！", ["東京。", "大阪！"]),
        ("Wait… what", ["Wait… ", "what"]),
        ("", []),
        ("   ", ["   "]),
    ],
)
def test_sentences(text, expected):
    starts = sentence_starts(text, [(i, i + 1) for i in range(len(text))])
    assert [text[a:b] for a, b in pairwise([*starts, len(text)])] == expected


@pytest.mark.parametrize("character", [" ", "\n", "!", ".", "a", "。", '"'])
def test_a_megabyte_of_one_character_is_no_trap(character):
    text = character * 10**6  # a search that is not linear would not end
    edges = [(0, 1), (999_999, 1_000_000)]
    assert word_indices(text, edges)[0] == 0
    assert sentence_starts(text, edges)[0] == 0
