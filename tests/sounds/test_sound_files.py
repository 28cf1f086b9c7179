"""Sound files of many kinds, good and bad, in folders, tables and Kaldi's folders."""

import io
import json
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sound_files import encode, soundfile, tone

from qkv.data import DataFiles, Problems
from qkv.data.problems import InvalidRecord
from qkv.data.sounds import SoundFormat
from qkv.errors import QkvError
from qkv.sounds import files
from qkv.sounds.config import LogMelConfig
from qkv.sounds.files import Samples, read_samples

FORMAT = SoundFormat(LogMelConfig())
TONE = tone(440, 0.5)
WAV = encode(TONE)


def correlation(one: np.ndarray, two: np.ndarray) -> float:
    size = min(len(one), len(two))
    return float(np.corrcoef(one[:size], two[:size])[0, 1])


@pytest.mark.parametrize(
    "choices",
    [
        *({"format": name} for name in ("WAV", "FLAC", "OGG", "OPUS", "MP3")),
        *({"subtype": name} for name in ("PCM_24", "PCM_32", "PCM_U8", "FLOAT", "DOUBLE", "ULAW")),
        *({"rate": rate} for rate in (8_000, 22_050, 44_100, 48_000)),
    ],
    ids=str,
)
@pytest.mark.parametrize("channels", [1, 2])
def test_files_of_any_kind_are_the_same_sound(choices: dict[str, Any], channels: int) -> None:
    rate = choices.get("rate", 16_000)
    sound = tone(440, 0.5, rate)
    content = encode(np.stack([sound] * channels, 1), **choices)
    found = read_samples(content, 16_000)
    assert abs(len(found) - 8_000) < (2_500 if choices.get("format") == "MP3" else 200)
    expected = np.sin(2 * np.pi * 440 * np.arange(len(found)) / 16_000)
    best = max(correlation(found[shift:], expected) for shift in range(1_200 if len(found) > 8_200 else 40))
    assert best > 0.98


def test_samples_of_any_type_are_fractions_of_the_full_scale() -> None:
    for values in (TONE, (TONE * 2**15).astype(np.int16), (TONE * 2**31).astype(np.int32), TONE[:, None]):
        np.testing.assert_allclose(read_samples(Samples(values, 16_000), 16_000), TONE, atol=1e-4)
    unsigned = ((TONE + 1) * 128).astype(np.uint8)
    np.testing.assert_allclose(read_samples(Samples(unsigned, 16_000), 16_000), TONE, atol=1e-2)
    assert np.abs(read_samples(Samples(8 * TONE, 16_000), 16_000)).max() == 1


def test_resampling_keeps_what_the_lower_rate_can_have() -> None:
    both = tone(1_000, 1.0, 48_000) + tone(11_000, 1.0, 48_000)  # the second is above half of 16,000 Hz
    found = np.abs(np.fft.rfft(read_samples(encode(both * 0.9, 48_000), 16_000)))[:8_000]
    assert found[1_000] > 1_000 * np.delete(found, slice(990, 1_010)).mean()
    assert found[5_000] < found[1_000] / 1_000, "11,000 Hz would be folded to 5,000 Hz"


LONG = np.zeros(16_000 * (files.MAX_SECONDS + 1), np.int16)
BAD = {
    "empty": (b"", "empty sound", "the file is empty"),
    "text": (b"hello, this is not a sound\n", "not a sound", "begins with b'hello"),
    "no samples": (encode(TONE[:0]), "empty sound", "no samples"),
    "NaN": (encode(np.array([0.1, np.nan, 0.2], np.float32), subtype="FLOAT"), "wrong samples", "not numbers"),
    "long": (encode(LONG, format="FLAC"), "long sound", "longer than 600 seconds"),
    "header only": (WAV[:20], "not a sound", "not a sound"),
    "not bytes": ("x.wav", "wrong type", "must be the bytes of a file"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_named_and_counted(name: str) -> None:
    value, category, message = BAD[name]
    with pytest.raises(InvalidRecord, match=message) as caught:
        FORMAT.store(value)
    assert caught.value.category == category


def test_odd_files_are_read_as_far_as_they_go() -> None:
    claims = WAV[:40] + struct.pack("<I", 2**32 - 1) + WAV[44:]  # the header of a stream: an unknown length
    assert len(read_samples(claims, 16_000)) == len(TONE)
    assert len(read_samples(WAV[:-4_000], 16_000)) == len(TONE) - 2_000
    silence, size = FORMAT.store(encode(np.zeros(1_600)))
    assert not silence.any()
    assert np.isfinite(FORMAT.decode(silence, size, 0)).all()
    clipped, _ = FORMAT.store(encode(np.sign(TONE)))
    assert clipped.max() == 2**15 - 1
    assert FORMAT.store(encode(TONE[:5]))[1] == (1, 1)


def write_folder(folder: Path, transcripts: str = "") -> Path:
    for name in ("yes/1.wav", "no/2.flac"):
        path = folder / name
        path.parent.mkdir(parents=True)
        path.write_bytes(encode(TONE, format=path.suffix[1:].upper()))
        if transcripts == ".txt":
            path.with_suffix(".txt").write_text(f"say {path.parent.name}\n")
        elif transcripts:
            (path.parent / "a.trans.txt").write_text(f"{path.stem} say {path.parent.name}\n")
    return folder


def write_table(path: Path) -> Path:
    write_folder(path.parent / "clips")
    rows = [{"audio": f"clips/{name}", "text": f"say {name[:-6]}"} for name in ("yes/1.wav", "no/2.flac")]
    rows[1]["text"] = "say no"
    rows[0]["text"] = "say yes"
    if path.suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    elif path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        rows = [{**one, "audio": {"bytes": (path.parent / one["audio"]).read_bytes(), "path": None}} for one in rows]
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        mark = "\t" if path.suffix == ".tsv" else ","
        path.write_text(
            "\n".join(mark.join(one) for one in [("audio", "text"), *(row.values() for row in rows)]) + "\n"
        )
    return path


def write_kaldi(folder: Path) -> Path:
    write_folder(folder / "wav")
    (folder / "wav.scp").write_text("a wav/yes/1.wav\nb wav/no/2.flac\nc sph2pipe x.sph |\n")
    (folder / "text").write_text("a say yes\nb say no\n")
    (folder / "utt2spk").write_text("a anna\nb bert\n")
    for path in (folder / "wav").rglob("*.*"):
        path.rename(folder / path.name)
    (folder / "wav.scp").write_text("a 1.wav\nb 2.flac\nc sph2pipe x.sph |\n")
    return folder / "wav.scp"


SOURCES: dict[str, Any] = {
    "folder": lambda folder: write_folder(folder / "a", ".txt"),
    "LibriSpeech": lambda folder: write_folder(folder / "a", ".trans.txt"),
    "kaldi": lambda folder: write_kaldi(folder / "a"),
    **{
        name: lambda folder, name=name: write_table(folder / f"a.{name}") for name in ("tsv", "csv", "jsonl", "parquet")
    },
}


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_gives_the_same_records(name: str, tmp_path: Path) -> None:
    problems = Problems(max_invalid_fraction=1)
    found = DataFiles(SOURCES[name](tmp_path), file_fields=("audio",))
    records = list(found.records(problems))
    assert sorted(one.fields["text"] for one in records) == ["say no", "say yes"]
    for record in records:
        assert correlation(read_samples(record.fields["audio"], 16_000), TONE) > 0.99
    assert problems.num_invalid == (name == "kaldi"), "a command is counted, and never run"
    assert found.content_key(str)


def test_a_folder_of_classes_has_labels_and_an_archive_too(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "clips")
    (folder / "README.txt").write_text("about these clips\n")
    problems = Problems()
    assert {one.fields["label"] for one in DataFiles(folder).records(problems)} == {"yes", "no"}
    assert "other file" in problems.categories
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(folder, "clips")
    assert {one.fields["label"] for one in DataFiles(tmp_path / "a.tar").records(Problems())} == {"yes", "no"}


@pytest.mark.parametrize("format", ["WAV", "FLAC", "OPUS"])
def test_parts_of_a_long_file_are_found(format: str, tmp_path: Path) -> None:
    rate = 48_000 if format == "OPUS" else 16_000
    pieces = [tone(hertz, 0.5, rate) for hertz in (300, 500, 800)]
    (tmp_path / "long.x").write_bytes(encode(np.concatenate(pieces * 8), rate, format))
    rows = [f"long.x\t{number / 2}\t{number / 2 + 0.5}\t{number % 3}" for number in range(24)]
    odd = ["long.x\t1\t1\tempty", "long.x\t99\t\tafter", "long.x\tsoon\t2\tword", "long.x\t\t\twhole"]
    (tmp_path / "a.tsv").write_text("\n".join(["audio\tstart\tend\ttext", *rows, *odd]) + "\n")
    problems = Problems(max_invalid_fraction=1)
    records = list(DataFiles(tmp_path / "a.tsv", file_fields=("audio",)).records(problems))
    assert len(records) == 25
    for number, record in enumerate(records[:24]):
        found = read_samples(record.fields["audio"], 16_000)
        assert len(found) == 8_000
        assert np.abs(np.fft.rfft(found)).argmax() == pytest.approx((150, 250, 400)[number % 3], abs=2)
    assert {name: one.count for name, one in problems.categories.items()} == {
        "wrong times": 1,
        "empty sound": 1,
        "not a number": 1,
    }


def test_a_file_of_hours_is_read_in_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "hours.flac"
    with soundfile.SoundFile(path, "w", 8_000, 1, "PCM_16") as file:
        for _ in range(20):
            file.write(np.zeros(8_000 * 60, np.int16))
    monkeypatch.setattr(files, "BLOCK", 1_000)
    with pytest.raises(files.BadSound, match="name its parts in the columns start and end"):
        read_samples(path, 8_000)
    assert len(read_samples(path, 8_000, 1_100, 1_101)) == 8_000


def test_without_the_package_an_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "soundfile", None)
    with pytest.raises(QkvError, match=r'pip install "qkv\[sound\]"'):
        FORMAT.store(WAV)


def test_bytes_and_paths_are_read_alike(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(WAV)
    found = [
        FORMAT.load(value)[0] for value in (WAV, tmp_path / "a.wav", str(tmp_path / "a.wav"), io.BytesIO(WAV).read())
    ]
    assert all((one == found[0]).all() for one in found)
    np.testing.assert_allclose(FORMAT.load(TONE)[0], found[0], atol=0.2)
    with pytest.raises(InvalidRecord, match=r"'missing.wav' cannot be read: No such file"):
        FORMAT.load("missing.wav")
