"""Building, updating, opening and searching an index."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock
from search_models import make_embedder, write_files

import qkv
from qkv.cli import run_command
from qkv.errors import QkvError, UsageError
from qkv.files import partial_path, seal_json
from qkv.search import folder as index_folder
from qkv.search import index as index_module
from qkv.search.embedder import Embedder
from qkv.search.folder import DamagedIndex, read_arrays, read_manifest
from qkv.search.ranking import FULL_WEIGHT_FRACTION


@pytest.fixture(scope="module")
def model() -> qkv.Model:
    return make_embedder()


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return write_files(tmp_path / "notes")


def build(notes: Path, model: Any, **options: Any) -> qkv.Index:
    return qkv.Index.build(notes, model=model, out=notes.parent / "index", **({"max_tokens": 12} | options))


def contents(folder: Path) -> dict[str, Any]:
    manifest = read_manifest(folder)
    arrays = {name: np.array(array) for name, array in read_arrays(folder, manifest).items()}
    return {"files": manifest["files"], **arrays}


def assert_same_content(first: Path, second: Path) -> None:
    one, other = contents(first), contents(second)
    assert one.pop("files") == other.pop("files")
    np.testing.assert_allclose(one.pop("vectors"), other.pop("vectors"), atol=2e-6)
    for name, array in one.items():
        assert np.array_equal(array, other[name]), name


def test_results_have_file_lines_and_text(notes: Path, model: qkv.Model) -> None:
    index = build(notes, model)
    assert index.files == ["deep/dog.txt", "empty.txt", "fox.md"]
    assert set(index.report.skipped) == {"latin.txt", "picture.bin"}
    assert not any("secret" in index.passage_text(i) for i in range(len(index)))
    (hit,) = index.search("BROWN", method="bm25").hits
    assert (hit.file, hit.first_line, hit.last_line) == ("fox.md", 3, 4)
    assert hit.text == "The quick brown fox jumps.\nIt sleeps."
    result = index.search(hit.text, method="dense", top=2)
    assert result.hits[0].passage == hit.passage
    assert result.hits[0].score == pytest.approx(1, abs=1e-5)
    assert "fox.md:3" in str(result)
    assert "fox.md:3" in result._repr_html_()
    assert repr(result).startswith("<SearchResult")
    assert result.to_dict()["hits"][0]["first_line"] == 3
    assert not index.search("unknown", method="bm25").hits


def test_fused_search_fuses_both_rankings(notes: Path, model: qkv.Model) -> None:
    index = build(notes, model)
    dense, words = ([hit.passage for hit in index.search("the warm dog", method=m)] for m in ("dense", "bm25"))
    limit = FULL_WEIGHT_FRACTION * index.bm25.max_score("the warm dog")
    weights = [min(1, score / limit) for score in index.bm25.scores("the warm dog")]
    assert min(weights) < 1 == max(weights)
    scores = {i: 1 / (61 + dense.index(i)) for i in dense}
    for rank, i in enumerate(words, 1):
        scores[i] += weights[i] / (60 + rank)
    expected = sorted(scores, key=lambda i: (-scores[i], i))
    found = index.search("the warm dog").hits
    assert [hit.passage for hit in found] == expected
    assert [hit.score for hit in found] == pytest.approx([scores[i] for i in expected])
    assert index.search(["the warm dog", "sea"])[0].hits == found
    assert index.search([]) == []


def test_passages_that_share_only_a_frequent_word_do_not_displace_the_nearest(
    tmp_path: Path, model: qkv.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/giraffe.txt").write_text("a brown dog")
    for i in range(30):
        (tmp_path / f"texts/{i}.txt").write_text(f"the house by the sea {i}")
    index = qkv.Index.build(tmp_path / "texts", model=model, out=tmp_path / "index")
    nearest = index.vectors.vectors[index.files.index("giraffe.txt")]  # the query has the vector of this passage
    monkeypatch.setattr(Embedder, "embed_queries", lambda self, queries: nearest[None])
    assert index.search("tall animal by Africa", method="dense").hits[0].file == "giraffe.txt"
    assert "giraffe.txt" in [hit.file for hit in index.search("tall animal by Africa", top=3)]
    assert index.search("house", top=1).hits[0].file != "giraffe.txt"  # words that are the whole query still count


def test_update_embeds_only_changed_files(notes: Path, model: qkv.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    index = build(notes, model)
    (notes / "deep/dog.txt").rename(notes / "dog.txt")
    (notes / "new.txt").write_text("a quick dog")
    embedded: list[str] = []
    embed = Embedder.embed
    monkeypatch.setattr(Embedder, "embed", lambda self, texts: (embedded.extend(texts), embed(self, texts))[1])
    index = index.update()
    assert [text for text in embedded if "times" not in text] == [
        "a quick dog"
    ]  # and the sentence that tests the model
    report = index.report
    assert (report.files, report.embedded_files, report.embedded_passages, report.removed_files) == (4, 1, 1, 1)


def test_update_keeps_the_name_of_the_model(notes: Path, model: qkv.Model) -> None:
    model.save(notes.parent / "model")
    folder = build(notes, notes.parent / "model").folder
    updated = qkv.open_index(folder).update()
    assert updated.model_name == str(notes.parent / "model")
    assert qkv.open_index(folder).search("fox").hits
    assert build(notes, model, rebuild=True).model_name == ""  # a model in memory may be another one


def test_updated_index_equals_a_fresh_one(notes: Path, model: qkv.Model) -> None:
    build(notes, model)
    (notes / "fox.md").write_text("The fox.\n\nThe fox sleeps by the sea, in a warm house.")
    (notes / "empty.txt").unlink()
    build(notes, model)
    qkv.Index.build(notes, model=model, out=notes.parent / "fresh", max_tokens=12)
    assert_same_content(notes.parent / "index", notes.parent / "fresh")
    assert [path.name for path in (notes.parent / "index").glob("data-*")] == ["data-000002"]


def test_other_settings_embed_all_files_again(notes: Path, model: qkv.Model) -> None:
    build(notes, model)
    index = build(notes, model, max_tokens=30, dtype="float16")
    assert index.report.embedded_files == index.report.files
    assert index.vectors.vectors.dtype == np.float16
    assert index.update().report.embedded_files == 0  # type: ignore[union-attr] # the settings stay


def test_index_of_other_files_is_not_overwritten(notes: Path, model: qkv.Model) -> None:
    build(notes, model)
    with pytest.raises(UsageError, match=r"this is the index of .*notes, not of .*fox\.md"):
        qkv.Index.build(notes / "fox.md", model=model, out=notes.parent / "index")
    notes.rename(notes.parent / "moved")
    moved = qkv.Index.build(notes.parent / "moved", model=model, out=notes.parent / "index")
    assert moved.report.embedded_files == 0


def test_control_characters_have_no_effect_on_a_terminal(notes: Path, model: qkv.Model, run_qkv: Any) -> None:
    (notes / "evil.txt").write_text("red \x1b[31m herring")
    folder = build(notes, model, max_tokens=30).folder
    assert "red ␛[31m herring" in run_qkv(["search", str(folder), "herring", "--method", "bm25"]).out


def test_command_shows_the_line_and_the_text_of_the_match(notes: Path, model: qkv.Model, run_qkv: Any) -> None:
    (notes / "long.txt").write_text("In a warm sea.\n" * 12 + "At last the ZEBRA sleeps.\n")
    folder = build(notes, make_embedder(max_positions=200), max_tokens=150).folder
    captured = run_qkv(["search", str(folder), "the zebra", "--method", "bm25", "--top", "1"])
    location, _, excerpt = captured.out.strip().split("\t")
    assert location == "long.txt:13"
    assert excerpt.startswith("…")
    assert excerpt.endswith("warm sea. At last the ZEBRA sleeps.")
    (hit,) = json.loads(run_qkv(["search", str(folder), "zebra", "--method", "bm25", "--json"]).out)["hits"]
    assert (hit["first_line"], hit["text"][:13]) == (1, "In a warm sea")


def test_index_inside_the_indexed_folder_is_not_indexed(notes: Path, model: qkv.Model) -> None:
    for _ in range(2):
        index = qkv.Index.build(notes, model=model, out=notes / "index", max_tokens=12)
        assert index.files == ["deep/dog.txt", "empty.txt", "fox.md"]


def test_model_without_embedding_head_needs_pooling(notes: Path) -> None:
    plain = make_embedder(head="none")
    with pytest.raises(UsageError, match=r"cannot embed passages.*pooling"):
        build(notes, plain)
    index = build(notes, plain, pooling="mean")
    assert index.search("fox", method="dense").hits
    with pytest.raises(UsageError, match="shorten it"):
        index.search("fox " * 50)


def test_another_model_is_refused(notes: Path, model: qkv.Model) -> None:
    build(notes, model)
    other = make_embedder(seed=2)
    with pytest.raises(UsageError, match=r"a different model.*--rebuild"):
        build(notes, other)
    index = qkv.open_index(notes.parent / "index", model=other)
    assert index.search("fox", method="bm25").hits  # needs no model
    with pytest.raises(UsageError, match="a different model"):
        index.search("fox")
    with pytest.raises(QkvError, match="the model is unknown"):
        qkv.open_index(notes.parent / "index").search("fox")
    assert build(notes, other, rebuild=True).search("fox").hits


def test_pictures_are_skipped_unless_they_are_named(notes: Path, model: qkv.Model) -> None:
    for name in ("drawing.svg", "DRAWING2.SVG"):
        (notes / name).write_text("<svg><text>the quick zebra</text></svg>")
    report = build(notes, model, max_tokens=30).report
    assert report.skipped["drawing.svg"] == report.skipped["DRAWING2.SVG"] == "it is a picture"
    named = qkv.Index.build(notes / "drawing.svg", model=model, out=notes.parent / "named", max_tokens=30)
    assert named.search("zebra", method="bm25").hits


@pytest.mark.parametrize("name", ["manifest.json", "vectors.npy", "texts.txt", "posting_counts.npy", "lines.npy"])
def test_damaged_files_are_found(notes: Path, model: qkv.Model, name: str) -> None:
    folder = build(notes, model).folder
    (path,) = folder.rglob(name)
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedIndex, match=f"{name} does not match its checksum.*--rebuild"):
        qkv.open_index(folder)
    if name != "manifest.json":
        path.unlink()
        with pytest.raises(DamagedIndex, match=f"{name} is missing"):
            qkv.open_index(folder)
    assert len(build(notes, model, rebuild=True)) == len(qkv.open_index(folder))


@pytest.mark.parametrize("name", ["vectors.npy", "texts.txt", "lines.npy"])
@pytest.mark.parametrize("size", [0, 20, -2])
def test_update_of_an_index_with_a_short_file_names_the_file(
    notes: Path, model: qkv.Model, name: str, size: int
) -> None:
    folder = build(notes, model).folder
    (path,) = folder.rglob(name)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(DamagedIndex, match=f"damaged index: data-000001/{name} does not match .* cut short; build it"):
        build(notes, model)


@pytest.mark.parametrize("damage", [(b"{", b"("), (b"(", b"<")])  # a tokenizer's error, a parser's error
def test_update_of_an_index_with_a_damaged_header_names_the_file(
    notes: Path, model: qkv.Model, damage: tuple[bytes, bytes]
) -> None:
    folder = build(notes, model).folder
    (path,) = folder.rglob("lines.npy")
    path.write_bytes(path.read_bytes().replace(*damage, 1))
    with pytest.raises(DamagedIndex, match=r"damaged index: data-000001/lines\.npy does not match"):
        build(notes, model)


def test_errors_of_the_machine_do_not_mean_that_an_index_is_damaged(
    notes: Path, model: qkv.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = build(notes, model).folder

    def fail(*args: object, **options: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(np, "load", fail)
    with pytest.raises(OSError, match="Too many open files"):
        qkv.open_index(folder)


def test_arrays_that_do_not_belong_together_are_refused(notes: Path, model: qkv.Model) -> None:
    """Checksums alone do not help against a folder that somebody made."""
    folder = build(notes, model).folder
    for name, array in (("lines", np.zeros((1, 2), np.int32)), ("posting_passages", np.full(3, 99, np.int32))):
        np.save(next(folder.rglob(f"{name}.npy")), array)
        with pytest.raises(DamagedIndex):
            qkv.open_index(folder, verify=False)
        build(notes, model, rebuild=True)


def test_failed_update_keeps_the_old_index(notes: Path, model: qkv.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = build(notes, model).folder
    before = contents(folder)
    (notes / "new.txt").write_text("a quick dog")

    def fail(path: Path, content: str) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(index_folder, "write_atomically", fail)
        with pytest.raises(QkvError, match="No space left"):
            build(notes, model)
    assert contents(folder)["files"] == before["files"]
    assert len(list(folder.glob("data-*"))) == 1
    for path in notes.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(QkvError, match="no text found"):
        build(notes, model)
    assert contents(folder)["files"] == before["files"]


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="only POSIX systems allocate space in advance")
def test_space_for_vectors_is_allocated_before_it_is_mapped(
    notes: Path, model: qkv.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk, a write to memory that is mapped to a sparse file would kill the process."""

    def fail(descriptor: int, start: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", fail)
    with pytest.raises(QkvError, match="No space left"):
        build(notes, model)
    assert not (notes.parent / "index").exists()


def test_failed_build_leaves_nothing(notes: Path, model: qkv.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path, content: str) -> None:
        partial_path(path).write_text(content[:10])
        raise OSError(28, "No space left on device")

    (notes.parent / "empty").mkdir()
    for name in ("new", "empty"):
        with monkeypatch.context() as patch:
            patch.setattr(index_folder, "write_atomically", fail)
            with pytest.raises(QkvError, match="No space left"):
                qkv.Index.build(notes, model=model, out=notes.parent / name)
    assert not (notes.parent / "new").exists()
    assert list((notes.parent / "empty").iterdir()) == []  # the user's own folder stays


def test_writer_killed_at_the_manifest_is_cleaned_up(notes: Path, model: qkv.Model) -> None:
    folder = notes.parent / "index"
    (folder / "data-000001").mkdir(parents=True)
    (folder / "manifest.json.partial").write_text("{")
    build(notes, model)
    assert {path.name for path in folder.iterdir()} == {".lock", "manifest.json", "data-000002"}


def test_failed_writer_does_not_remove_the_folder_of_the_next(notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, entered = notes.parent / "index", []
    release = FileLock.release

    def release_and_let_another_in(self: FileLock, force: bool = False) -> None:
        monkeypatch.setattr(FileLock, "release", release)
        release(self, force)
        stack.enter_context(index_folder.lock_for_writing(folder))
        entered.append(folder)

    monkeypatch.setattr(FileLock, "release", release_and_let_another_in)
    with ExitStack() as stack:
        with index_folder.lock_for_writing(folder):
            pass
        assert entered
        assert folder.is_dir()


def test_index_that_is_replaced_while_it_is_opened(
    notes: Path, model: qkv.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = build(notes, model).folder

    def replace_and_read(*arguments: Any, **options: Any) -> dict[str, np.ndarray]:
        monkeypatch.setattr(index_module, "read_arrays", read_arrays)
        (notes / "new.txt").write_text("a quick dog")
        build(notes, model)
        return read_arrays(*arguments, **options)

    for verify in (True, False):
        monkeypatch.setattr(index_module, "read_arrays", replace_and_read)
        assert "new.txt" in qkv.open_index(folder, verify=verify).files


def test_file_that_vanishes_during_a_check_is_damage(
    notes: Path, model: qkv.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = build(notes, model).folder
    map_array = index_folder._map_array
    monkeypatch.setattr(index_folder, "_map_array", lambda path: (path.unlink(), map_array(path))[1])
    with pytest.raises(DamagedIndex, match=r"--rebuild"):
        qkv.open_index(folder)


def test_index_of_an_older_version_must_be_built_again(notes: Path, model: qkv.Model) -> None:
    """Version 1 split words at vowel signs, so its words would never be found."""
    folder = build(notes, model).folder
    (folder / "manifest.json").write_text(seal_json(read_manifest(folder) | {"version": 1}))
    for open_it in (lambda: qkv.open_index(folder), lambda: build(notes, model)):
        with pytest.raises(QkvError, match=r"version 1 of the index format.*--rebuild"):
            open_it()
    assert build(notes, model, rebuild=True).search("fox").hits


KILLED_WRITER = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from search_models import make_embedder
from qkv.search.build import DataWriter
from qkv.search import Index
write = DataWriter.write_vectors
def kill(*arguments):
    write(*arguments)
    os._exit(9)
DataWriter.write_vectors = kill
Index.build(sys.argv[2], model=make_embedder(), out=sys.argv[3], max_tokens=12)
"""


def test_killed_writer_leaves_the_old_index_intact(notes: Path, model: qkv.Model) -> None:
    folder = build(notes, model).folder
    before = contents(folder)
    (notes / "new.txt").write_text("a quick dog")
    arguments = [sys.executable, "-c", KILLED_WRITER, str(Path(__file__).parent), str(notes), str(folder)]
    assert subprocess.run(arguments, env=os.environ, timeout=120).returncode == 9
    assert len(list(folder.glob("data-*"))) == 2  # what the killed writer left
    assert contents(folder)["files"] == before["files"]
    assert len(build(notes, model)) == len(before["lines"]) + 1
    assert [path.name for path in folder.glob("data-*")] == ["data-000003"]


def test_folder_with_other_files_is_refused(notes: Path, model: qkv.Model) -> None:
    with pytest.raises(QkvError, match="other files, but no index"):
        qkv.Index.build(notes, model=model, out=notes / "deep")
    with pytest.raises(QkvError, match="this is a file"):
        qkv.Index.build(notes, model=model, out=notes / "fox.md")
    with index_folder.lock_for_writing(notes.parent / "index"), pytest.raises(QkvError, match="another process"):
        build(notes, model)


def test_commands(notes: Path, model: qkv.Model, run_qkv: Any) -> None:
    model.save(notes.parent / "model")
    out = str(notes.parent / "index")
    options = ["--model", str(notes.parent / "model"), "--max-tokens", "12"]
    printed = run_qkv(["index", str(notes), "--out", out, *options])
    assert "3 files, 4 passages; embedded 4 passages of 3 new" in printed.out
    assert "latin.txt: skipped: it is not UTF-8" in printed.err
    assert printed.err.startswith(f"{notes}: 5 files found; embedding 4 passages\n")
    printed = run_qkv(["index", str(notes), "--out", out, "--json"])
    assert json.loads(printed.out)["embedded_files"] == 0
    assert "embedding" not in printed.err
    assert run_qkv(["search", out, "brown", "fox", "--method", "bm25", "--top", "1"]).out.startswith("fox.md:3\t")
    assert json.loads(run_qkv(["search", out, "brown fox", "--json"]).out)["hits"][0]["file"] == "fox.md"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["search", "nothing", "fox"], "no such index"),
        (["search", "notes", "fox"], "not an index"),
        (["search", "notes"], "the query is empty"),
        (["index", "notes", "--out", "new"], "--model MODEL"),
        (["index", "nothing", "--out", "new"], "--model MODEL"),
    ],
)
def test_errors_say_what_to_do(
    notes: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(notes.parent)
    assert run_command(arguments) != 0
    assert message in capsys.readouterr().err


def test_wrong_options_are_refused(notes: Path, model: qkv.Model) -> None:
    index = build(notes, model)
    for options, message in (
        ({"method": "denser"}, "did you mean 'dense'"),
        ({"top": 0}, "top = 0 must be at least 1"),
        ({"top": "3"}, "top = '3' must be an integer"),
    ):
        with pytest.raises(UsageError, match=message):
            index.search("fox", **options)  # type: ignore[call-overload]
    for query in (5, None, b"fox", {"q1": "fox"}):
        with pytest.raises(UsageError, match="query must be a text or a list of texts, got "):
            index.search(query)  # type: ignore[call-overload]
    with pytest.raises(UsageError, match=r"model must be a folder, a hub id or a qkv.Model, got 5 \(int\)"):
        qkv.Index.build(notes, model=5, out=notes.parent / "other")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="query 2 is empty"):
        index.search(["fox", " "])
    with pytest.raises(QkvError, match="lone surrogate"):
        index.search("fox \udcff", method="bm25")
    assert not index.search("?!", method="bm25").hits
    assert index.search("?!").hits  # found by vectors alone
    with pytest.raises(UsageError, match="raise max_tokens"):
        build(notes, model, max_tokens=4, rebuild=True)
    with pytest.raises(UsageError, match="dtype = 'float8'"):
        build(notes, model, dtype="float8")
