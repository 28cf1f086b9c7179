"""Images in folders, archives, tables, Parquet and IDX files become records with the bytes of files."""

import base64
import gzip
import io
import json
import struct
import tarfile
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_files import colour_file, encode, picture

from qkv.data import DataFiles, Problems
from qkv.data.images import ImageFormat
from qkv.data.problems import InvalidRecord
from qkv.errors import QkvError
from qkv.images.config import PatchesConfig
from qkv.images.files import open_image

FILES = {"cats/1.png": colour_file((200, 30, 30)), "dogs/2.png": colour_file((30, 30, 200))}
RECORDS = [("cats", FILES["cats/1.png"]), ("dogs", FILES["dogs/2.png"])]


def write_folder(folder: Path) -> Path:
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_bytes(content)
    return folder


def write_tar(path: Path, mode: str) -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in {**FILES, "README.txt": b"hello"}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def write_zip(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in FILES.items():
            archive.writestr(name, content)
    return path


def write_table(path: Path) -> Path:
    write_folder(path.parent / "pictures")
    rows = [f"pictures/{name}\t{name[:4]}" for name in FILES]
    path.write_text("\n".join(["image\tlabel", *rows]) + "\n", encoding="utf-8")
    return path


def write_json(path: Path) -> Path:
    urls = {name[:4]: "data:image/png;base64," + base64.b64encode(file).decode() for name, file in FILES.items()}
    path.write_text("\n".join(json.dumps({"image": url, "label": label}) for label, url in urls.items()) + "\n")
    return path


def write_parquet(path: Path) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{"image": {"bytes": file, "path": None}, "label": name[:4]} for name, file in FILES.items()]
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


SOURCES: dict[str, Any] = {
    "folder": lambda folder: write_folder(folder / "pictures"),
    "tar": lambda folder: write_tar(folder / "a.tar", "w"),
    "tar.gz": lambda folder: write_tar(folder / "a.tar.gz", "w:gz"),
    "tar.xz": lambda folder: write_tar(folder / "a.tar.xz", "w:xz"),
    "tgz": lambda folder: write_tar(folder / "a.tgz", "w:gz"),
    "zip": lambda folder: write_zip(folder / "a.zip"),
    "tsv": lambda folder: write_table(folder / "a.tsv"),
    "jsonl": lambda folder: write_json(folder / "a.jsonl"),
    "parquet": lambda folder: write_parquet(folder / "a.parquet"),
}


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("columns", [None, {"image": "image", "label": "label"}])
def test_every_source_gives_the_same_records(name: str, columns: dict[str, str] | None, tmp_path: Path) -> None:
    problems = Problems()
    path = SOURCES[name](tmp_path)
    if name == "parquet" and columns:
        columns = {"image": "image.bytes", "label": "label"}
    files = DataFiles.from_options(path, columns=columns)
    files = DataFiles(files.paths, options=files.options, file_fields=("image",))
    records = list(files.records(problems))
    assert [(one.fields["label"], one.fields["image"]) for one in records] == RECORDS
    assert problems.num_seen == 2
    assert not problems.num_invalid
    assert files.content_key(lambda path: path.name)


def test_a_folder_with_images_has_only_images(tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / "README.txt").write_text("about these pictures\n")
    problems = Problems()
    assert len(list(DataFiles(tmp_path).records(problems))) == 2
    assert "other file" in problems.categories


def test_a_missing_file_is_named_and_counted(tmp_path: Path) -> None:
    path = write_table(tmp_path / "a.tsv")
    path.write_text(path.read_text() + "pictures/cats/3.png\tcats\n\tcats\n")
    problems = Problems(max_invalid_fraction=1)
    files = DataFiles(path, file_fields=("image",))
    assert len(list(files.records(problems))) == 2
    assert {name: one.count for name, one in problems.categories.items()} == {"unreadable file": 1, "no file": 1}
    assert "'pictures/cats/3.png' cannot be read: No such file" in str(problems.summary())


def test_a_changed_picture_changes_the_key_of_the_cache(tmp_path: Path) -> None:
    path = write_table(tmp_path / "a.tsv")
    files = DataFiles(path, file_fields=("image",))
    before = files.content_key(str)
    assert files.content_key(str) == before
    (tmp_path / "pictures" / "cats" / "1.png").write_bytes(FILES["dogs/2.png"] + b"\0")
    assert files.content_key(str) != before


@pytest.mark.parametrize("compress", [False, True])
def test_idx_files_are_images_with_labels(compress: bool, tmp_path: Path) -> None:
    pixels = picture(5, 4)[..., 0][None].repeat(3, 0)
    images = struct.pack(">HBBIII", 0, 8, 3, *pixels.shape) + pixels.tobytes()
    labels = struct.pack(">HBBI", 0, 8, 1, 3) + bytes([7, 0, 9])
    suffix, pack = (".gz", gzip.compress) if compress else ("", bytes)
    (tmp_path / f"train-images-idx3-ubyte{suffix}").write_bytes(pack(images))
    (tmp_path / f"train-labels-idx1-ubyte{suffix}").write_bytes(pack(labels))
    files = DataFiles(tmp_path / f"train-images-idx3-ubyte{suffix}", file_fields=("image",))
    records = list(files.records(Problems()))
    assert [one.fields["label"] for one in records] == ["7", "0", "9"]
    image = open_image(records[0].fields["image"])
    assert image.size == (4, 5)
    assert np.asarray(image)[0, :, 0].tolist() == pixels[0, 0].tolist()


def test_a_cut_archive_is_reported(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar.gz", "w:gz")
    path.write_bytes(path.read_bytes()[:-200])
    problems = Problems(max_invalid_fraction=1)
    with suppress(QkvError):  # the first member may be cut, too
        list(DataFiles(path).records(problems))
    assert any(one.severity == "broken" for one in problems.categories.values())


def test_files_that_cannot_be_decoded_are_problems() -> None:
    format = ImageFormat(PatchesConfig(size=8, patch=4))
    for value, category in ((b"", "empty image"), (encode(picture())[:60], "damaged image"), ("x.png", "wrong type")):
        with pytest.raises(InvalidRecord) as caught:
            format.store(value)
        assert caught.value.category == category
