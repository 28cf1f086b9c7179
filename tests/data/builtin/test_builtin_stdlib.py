"""The standard library as a corpus, and the registry of built-in datasets."""

import ast

import pytest

from qkv.data.builtin import DATASETS, BuiltinDataset, Stdlib, find_dataset
from qkv.data.builtin.dataset import SPLITS
from qkv.errors import QkvError, UsageError


@pytest.fixture(scope="module")
def library() -> Stdlib:
    return Stdlib()


@pytest.fixture
def small(tmp_path) -> Stdlib:
    for number in range(60):
        tmp_path.joinpath(f"m{number:02}.py").write_text(f"# module {number}\n")
    for path in ("pkg/inner.py", "site-packages/other.py", "test/test_a.py", "pkg/tests/b.py", "_sysconfigdata_x.py"):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x = 1\n")
    tmp_path.joinpath("latin.py").write_bytes("# größe\n".encode("latin-1"))
    tmp_path.joinpath("empty.py").write_text("\n")
    return Stdlib(tmp_path)


def test_the_library_is_there_and_large(library):
    documents = [library.example(split, i) for split in SPLITS for i in range(library.length(split))]
    assert sum(len(document["text"]) for document in documents) > 4_000_000
    assert {"json/__init__.py", "argparse.py", "collections/__init__.py"} <= {
        document["path"] for document in documents
    }


def test_documents_are_whole_python_files(library):
    for example in library.examples("valid", stop=10):
        ast.parse(example["text"])
        assert tuple(example) == library.fields


def test_splits_share_no_file_and_keep_their_order(library):
    listed = [path for split in SPLITS for path in library.paths[split]]
    assert len(listed) == len(set(listed))
    assert all(library.paths[split] == sorted(library.paths[split]) for split in SPLITS)
    assert min(library.length(split) for split in SPLITS) >= 10
    assert library.length("train") > 0.8 * len(listed)


def test_what_is_not_the_library_is_left_out(small):
    listed = [path for split in SPLITS for path in small.paths[split]]
    assert "pkg/inner.py" in listed
    assert len(listed) == 61


def test_a_file_that_is_not_utf8_is_counted(small):
    assert small.paths
    assert small.skipped == ["latin.py"]


def test_a_file_s_split_does_not_depend_on_the_others(small):
    before = {path: split for split in SPLITS for path in small.paths[split]}
    small.folder.joinpath("a_new_one.py").write_text("y = 2\n")
    small.folder.joinpath("m00.py").unlink()
    after = {path: split for split in SPLITS for path in Stdlib(small.folder).paths[split]}
    assert {path: after[path] for path in before if path != "m00.py"} == {
        path: split for path, split in before.items() if path != "m00.py"
    }


def test_the_fingerprint_follows_the_text(small):
    before = Stdlib(small.folder).fingerprint
    assert Stdlib(small.folder).fingerprint == before
    small.folder.joinpath("m01.py").write_text("# changed\n")
    assert Stdlib(small.folder).fingerprint != before


def test_a_python_without_sources_says_so(tmp_path):
    with pytest.raises(QkvError, match="has no Python sources"):
        Stdlib(tmp_path).length("train")


def test_a_document_beyond_the_end_is_refused(small):
    with pytest.raises(UsageError, match="has no example 1000: the numbers are 0 to"):
        small.example("train", 1000)


# -------------------------------------------------------------------- the registry


@pytest.mark.parametrize("name", DATASETS)
def test_every_dataset_describes_itself(name):
    dataset = find_dataset(name)
    assert isinstance(dataset, BuiltinDataset)
    assert dataset.name == name
    assert dataset.splits[:3] == SPLITS
    assert dataset.description
    assert dataset.licence
    example = dataset.example("train", 0)
    assert tuple(example) == dataset.fields
    assert all(isinstance(value, str | bytes) for value in example.values())
    assert len(dataset.fingerprint) == 32


def test_a_wrong_name_suggests_the_nearest():
    with pytest.raises(UsageError, match="'stdlb'; did you mean 'stdlib'"):
        find_dataset("stdlb")
