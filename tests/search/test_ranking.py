"""The best k, fusion, BM25 and vector search against slow references."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.search import vectors as vector_search
from qkv.search.ranking import bm25_weights, fuse, rank_matches, top_k
from qkv.search.vectors import VectorSearch, normalize
from qkv.text.bm25 import BM25, K1, B, InvertedIndexBuilder, normalized_words

WORDS = ["a", "b", "ab", "é", "E\u0301", "Zebra", "zebra", "東京", "3", "x_y", ",", ".", "दिन", "दान"]
passages = st.lists(st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join), min_size=1, max_size=12)


def reference_bm25(texts: list[str], query: str) -> list[float]:
    """The definition, one passage and one word at a time."""
    documents = [normalized_words(text) for text in texts]
    mean = sum(map(len, documents)) / len(documents) or 1.0
    scores = []
    for document in documents:
        counts, score = Counter(document), 0.0
        for word, occurrences in Counter(normalized_words(query)).items():
            with_word = sum(word in other for other in documents)
            idf = math.log(1 + (len(documents) - with_word + 0.5) / (with_word + 0.5))
            f = counts[word]
            if f:
                score += occurrences * idf * (f * (K1 + 1) / (f + K1 * (1 - B + B * len(document) / mean)))
        scores.append(score)
    return scores


def index_words(texts: list[str]) -> BM25:
    builder = InvertedIndexBuilder()
    for text in texts:
        builder.add(text)
    return BM25(builder.arrays())


@settings(max_examples=60, deadline=None)
@given(passages, st.lists(st.sampled_from([*WORDS, "unknown"]), max_size=5).map(" ".join), st.integers(1, 15))
def test_bm25_equals_its_definition(texts: list[str], query: str, top: int) -> None:
    expected = reference_bm25(texts, query)
    index = index_words(texts)
    assert index.scores(query).tolist() == pytest.approx(expected, rel=1e-12)
    found, scores = rank_matches(index.scores(query), top)
    best = sorted((i for i, score in enumerate(expected) if score > 0), key=lambda i: (-index.scores(query)[i], i))
    assert found.tolist() == best[:top]
    assert scores.tolist() == index.scores(query)[found].tolist()
    assert all(score < index.max_score(query) for score in scores)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("दिन, दान", ["दिन", "दान"]),  # vowel signs
        ("தமிழ் কলকাতা", ["தமிழ்", "কলকাতা"]),
        ("𑄌𑄋𑄴𑄟𑄳𑄦", ["𑄌𑄋𑄴𑄟𑄳𑄦"]),  # Chakma, above U+FFFF
        ("כָּתַב كَتَبَ", ["כָּתַב", "كَتَبَ"]),  # points
        ("x\u0304 Cafe\u0301, cafe", ["x\u0304", "café", "cafe"]),  # an accent without a composed letter
        ("กินข้าว ฿5", ["กิ", "น", "ข้", "า", "ว", "5"]),  # no spaces between words
        ("セ゚・東京", ["セ゚", "東", "京"]),
        ("❤\ufe0f 1\ufe0f\u20e3 \u0301a", ["1", "a"]),  # variation selectors, and a mark without a letter
    ],
)
def test_marks_belong_to_words(text: str, words: list[str]) -> None:
    assert normalized_words(text) == words


def test_words_are_found_by_binary_search() -> None:
    words = ["zebra", "apple", "é", "東", "a", "app", "apples"]
    index = index_words([" ".join(words)])
    numbers = {word: index.find_word(word) for word in words}
    assert sorted(words, key=lambda word: word.encode()) == sorted(words, key=lambda word: numbers[word] or 0)
    assert index.find_word("appl") is None
    assert index.find_word("") is None


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0]), min_size=1, max_size=20), st.integers(1, 25))
def test_top_k_breaks_ties_by_index(scores: list[float], k: int) -> None:
    assert top_k(np.array(scores), k).tolist() == sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:k]


@given(st.lists(st.permutations(range(12)).map(lambda order: order[:7]), min_size=2, max_size=3), st.integers(1, 14))
def test_fusion_equals_its_definition(rankings: list[list[int]], top: int) -> None:
    expected: dict[int, float] = {}
    for ranking in rankings:
        for rank, passage in enumerate(ranking, 1):
            expected[passage] = expected.get(passage, 0.0) + 1 / (60 + rank)
    best = sorted(expected, key=lambda passage: (-expected[passage], passage))[:top]
    found, scores = fuse([np.array(ranking) for ranking in rankings], top)
    assert found.tolist() == best
    assert scores.tolist() == [expected[passage] for passage in best]


def test_fusion_weighs_matches() -> None:
    found, scores = fuse([np.array([7, 3]), np.array([5, 3])], 3, weights=[1.0, np.array([0.5, 0.25])])
    assert found.tolist() == [3, 7, 5]
    assert scores.tolist() == [1 / 62 + 0.25 / 62, 1 / 61, 0.5 / 61]


def test_words_that_no_passage_has_lower_the_weight_of_matches() -> None:
    index = index_words(["a house of glass", "a ship of wood", "of late"])
    assert bm25_weights(index.scores("house"), index.max_score("house")).tolist() == [1, 0, 0]
    weights = bm25_weights(index.scores("of Africa"), index.max_score("of Africa"))
    assert 0 < max(weights) < 0.5


def brute_force(vectors: np.ndarray, query: np.ndarray, top: int) -> list[int]:
    scores = [float((vector.astype(np.float64) * query.astype(np.float64)).sum()) for vector in vectors]
    return sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:top]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_vector_search_equals_brute_force_for_every_chunk_size(dtype: type) -> None:
    rng = np.random.default_rng(0)
    vectors = normalize(rng.normal(size=(300, 24))).astype(dtype)
    vectors[100:120] = vectors[7]  # ties
    vectors[200:240] = normalize(vectors[7] + 1e-8 * rng.normal(size=(40, 24))).astype(dtype)  # almost ties
    queries = normalize(np.concatenate([rng.normal(size=(17, 24)), vectors[7:8]]))
    for top in (1, 15, 400):
        expected = [brute_force(vectors, query, top) for query in queries]
        for chunk_rows in (1, 37, 300, 1000):
            found = VectorSearch(vectors, chunk_rows=chunk_rows).search(queries, top)
            assert [passages.tolist() for passages, _ in found] == expected, (top, chunk_rows)


def test_vector_search_without_the_margin_would_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Float32 similarities alone order vectors that differ by less than their rounding error at random."""
    rng = np.random.default_rng(1)
    query = normalize(rng.normal(size=(1, 512)))
    vectors = normalize(query + 1e-6 * rng.normal(size=(2000, 512)))
    expected = brute_force(vectors, query[0], 20)
    assert VectorSearch(vectors).search(query, 20)[0][0].tolist() == expected
    monkeypatch.setattr(vector_search, "MAX_ROUNDING", 0.0)
    assert VectorSearch(vectors).search(query, 20)[0][0].tolist() != expected


def test_path_for_gpus_gives_the_same_results(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    vectors, queries = normalize(rng.normal(size=(90, 16))), normalize(rng.normal(size=(3, 16)))
    expected = VectorSearch(vectors).search(queries, 9)
    monkeypatch.setattr(VectorSearch, "_similarities_on_cpu", VectorSearch._similarities_on_gpu)
    for (found, scores), (numbers, cosines) in zip(
        VectorSearch(vectors, "cpu", 20).search(queries, 9), expected, strict=True
    ):
        assert found.tolist() == numbers.tolist()
        assert scores.tolist() == cosines.tolist()
