"""Candidates by faiss for many vectors: recall beside exact search, the file in the index, and search without faiss."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from search_models import make_embedder

import qkv
from qkv.search import approximate
from qkv.search.folder import IVF_FILE, DamagedIndex, read_manifest
from qkv.search.vectors import VectorSearch, normalize

needs_faiss = pytest.mark.skipif(not approximate.has_faiss(), reason="the extra faiss is not installed")


def make_vectors(num: int, seed: int = 0) -> np.ndarray:
    """Unit vectors around random centres, as embeddings of texts on different subjects."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(40, 24))
    return normalize(centres[rng.integers(40, size=num)] + 0.7 * rng.normal(size=(num, 24)))


def recall(found: list[tuple[np.ndarray, np.ndarray]], exact: list[tuple[np.ndarray, np.ndarray]]) -> float:
    hits = [len(np.intersect1d(ours[0], theirs[0])) / len(theirs[0]) for ours, theirs in zip(found, exact, strict=True)]
    return float(np.mean(hits))


@needs_faiss
def test_candidates_find_nearly_all_that_exact_search_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, queries = make_vectors(6000), make_vectors(40, seed=1)
    approximate.write_ivf(tmp_path / "ivf", vectors)
    ivf = approximate.IvfIndex(tmp_path / "ivf", vectors.shape)
    assert ivf.num_clusters > 100
    exact = VectorSearch(vectors).search(queries, 10)
    search = VectorSearch(vectors, ivf=ivf)
    found = search.search(queries, 10)
    assert recall(found, exact) > 0.95
    scores = {int(number): score for number, score in zip(*exact[0], strict=True)}
    for number, score in zip(*found[0], strict=True):
        assert scores.get(int(number), score) == score  # the cosines are exact
    assert len(found[0][0]) == 10
    assert len(search.search(queries[:1], 6000)[0][0]) == 6000  # all clusters are visited if that is needed
    monkeypatch.setattr(approximate, "MIN_CLUSTERS_VISITED", 1)  # a negative control
    monkeypatch.setattr(approximate, "VISITED_FRACTION", 0.0)
    monkeypatch.setattr(approximate, "VISITED_PER_CANDIDATE", 0)
    assert recall(search.search(queries, 10), exact) < 0.8


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    (tmp_path / "notes").mkdir()
    words = [
        "the",
        "quick",
        "brown",
        "fox",
        "jumps",
        "over",
        "lazy",
        "dog",
        "and",
        "sleeps",
        "in",
        "a",
        "warm",
        "house",
    ]
    for number in range(90):
        text = " ".join(words[(number * k) % len(words)] for k in range(1, 7))
        (tmp_path / f"notes/{number}.txt").write_text(f"{text} {number}")
    return tmp_path / "notes"


@needs_faiss
def test_a_large_index_has_candidates_with_a_checksum(notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, out = make_embedder(), notes.parent / "index"
    exact = qkv.Index.build(notes, model=model, out=out).search("the lazy dog", method="dense")
    assert IVF_FILE not in read_manifest(out)["checksums"]
    monkeypatch.setattr(approximate, "MAX_EXACT_VECTORS", 80)
    index = qkv.Index.build(notes, model=model, out=out)  # an update writes them
    assert (index.report.embedded_passages, index.report.notes) == (0, [])
    assert index.vectors.ivf is not None
    manifest = read_manifest(out)
    file = out / manifest["data"] / IVF_FILE
    assert IVF_FILE in manifest["checksums"]
    assert index.search("the lazy dog", method="dense").hits == exact.hits  # few clusters: all are visited
    assert qkv.open_index(out, model=model).search("fox", method="fused").hits

    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DamagedIndex, match="does not match its checksum"):
        qkv.open_index(out)
    file.write_bytes(b"something else")
    with pytest.raises(DamagedIndex, match=IVF_FILE):
        qkv.open_index(out, verify=False)
    file.unlink()
    with pytest.raises(DamagedIndex, match="missing"):
        qkv.open_index(out)


@needs_faiss
def test_candidates_of_other_vectors_are_refused(tmp_path: Path) -> None:
    approximate.write_ivf(tmp_path / "ivf", make_vectors(200))
    with pytest.raises(ValueError, match=r"shape \(200, 24\), not \(201, 24\)"):
        approximate.IvfIndex(tmp_path / "ivf", (201, 24))


def test_without_faiss_search_is_exact_and_says_what_to_install(
    notes: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, run_qkv: Any
) -> None:
    model = notes.parent / "model"
    make_embedder().save(model)
    monkeypatch.setattr(approximate, "MAX_EXACT_VECTORS", 80)
    monkeypatch.setattr(approximate, "find_spec", lambda name: None)
    out = notes.parent / "index"
    printed = run_qkv(["index", str(notes), "--model", str(model), "--out", str(out), "--json"])
    hint = "pip install 'qkv[faiss]'"
    assert hint in printed.err
    assert hint in json.loads(printed.out)["notes"][0]
    with caplog.at_level(logging.WARNING, "qkv"):
        index = qkv.open_index(out)
    assert hint in caplog.text
    assert index.vectors.ivf is None
    assert len(index.search("the lazy dog", method="dense").hits) == 10
