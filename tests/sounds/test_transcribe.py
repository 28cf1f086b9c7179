"""Transcription: a model learns which tones are spoken, and when."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sound_files import encode, tone

import qkv
from qkv.errors import UsageError
from qkv.inside.doctor.subject import Subject, random_batch
from qkv.inside.doctor.table import run_check
from qkv.serve.http.form import parse_form
from qkv.sounds import files as sound_files_of_qkv
from qkv.sounds.files import Samples
from qkv.sounds.windows import split_sound

WORDS = {"a": 350, "b": 900, "c": 2_200}
GAP, SPOKEN = 0.1, 0.15  # seconds
RECIPE = """
run = "{run}"
[data]
train = "{data}"
valid_fraction = 0.1
cache_dir = "{cache}"
max_length = 50
layout = "padded"
[tokenizer]
kind = "char"
[model]
width = 32
layers = 1
heads = 2
ffn_width = 64
[model.audio]
mels = 20
stride = 4
[objective]
kind = "transcription"
[train]
steps = 200
batch_tokens = 600
optimizer = "muon"
lr = 0.01
device = "cpu"
num_threads = 1
eval_every = 150
"""


def say(words: list[str], seed: int = 0, gap: float = GAP) -> np.ndarray:
    silence = np.random.default_rng(seed).normal(0, 0.001, round(gap * 16_000)).astype(np.float32)
    spoken = [
        part for number, one in enumerate(words) for part in (tone(WORDS[one], SPOKEN, seed=seed + number), silence)
    ]
    return np.concatenate([silence, *spoken])


def write_clips(folder: Path, count: int = 120) -> Path:
    rng, rows = np.random.default_rng(0), ["audio\ttext\tspeaker"]
    (folder / "clips").mkdir(parents=True)
    for number in range(count):
        words = [str(one) for one in rng.choice(list(WORDS), rng.integers(1, 7))]
        (folder / "clips" / f"{number}.wav").write_bytes(encode(say(words, number, rng.uniform(0.1, 0.2))))
        rows.append(f"clips/{number}.wav\t{' '.join(words)}\tme")
    (folder / "clips.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder / "clips.tsv"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, qkv.Model]:
    folder = tmp_path_factory.mktemp("transcriber")
    paths = {"run": folder / "run", "data": write_clips(folder), "cache": folder / "cache"}
    (folder / "recipe.toml").write_text(RECIPE.format(**paths), encoding="utf-8")
    qkv.train(folder / "recipe.toml")
    return folder, qkv.load(folder / "run")


def test_a_model_learns_words_and_their_times(trained: tuple[Path, qkv.Model]) -> None:
    _, model = trained
    said = ["b", "a", "a"]
    found = model.transcribe(say(said, 999))
    assert found.text == "b a a"
    assert [one.word for one in found.words] == said
    for number, one in enumerate(found.words):
        middle = GAP + number * (GAP + SPOKEN) + SPOKEN / 2
        assert one.start - 0.1 < middle < one.end + 0.1
    assert found.duration == pytest.approx(4 * GAP + 3 * SPOKEN, abs=0.01)
    assert model.transcribe(say(said, 999), beam=8).text == found.text
    other_rate = np.interp(np.arange(0, 16_000, 16 / 44.1), np.arange(16_000), np.pad(say(said, 999), 4_000)[:16_000])
    assert model.transcribe(other_rate, rate=44_100).text == found.text
    assert model.transcribe(other_rate).text != found.text, "at the wrong rate, other tones"


def test_a_long_sound_is_read_in_windows(trained: tuple[Path, qkv.Model]) -> None:
    _, model = trained
    said = ["a", "c", "b", "c", "a"] * 8
    found = model.transcribe(say(said, 5))
    assert found.duration == pytest.approx(40 * (GAP + SPOKEN) + GAP, abs=0.01)
    wrong = sum(ours != theirs for ours, theirs in zip(found.text.split(), said, strict=False))
    assert len(found.text.split()) == pytest.approx(40, abs=2)
    assert wrong <= 20
    assert [one.start for one in found.words] == sorted(one.start for one in found.words)
    assert found.to_srt().startswith("1\n00:00:00,")


def test_windows_are_cut_where_it_is_quiet() -> None:
    sound = say(["a"] * 40, 1)
    parts = list(split_sound(Samples(sound, 16_000), 16_000, 2.0))
    np.testing.assert_array_equal(np.concatenate([one.samples for one in parts]), sound)
    assert all(len(one.samples) <= 32_000 for one in parts)
    assert max(np.abs(one.samples[-200:]).max() for one in parts) < 0.1, "a tone would be cut"
    assert [one.start for one in parts] == [0, *np.cumsum([len(one.samples) for one in parts])[:-1]]


def test_the_commands_transcribe_and_evaluate(trained: tuple[Path, qkv.Model], run_qkv: Any) -> None:
    folder, _ = trained
    path = str(folder / "clips" / "0.wav")
    plain = run_qkv(["run", str(folder / "run"), path])
    assert set(plain.out.split()) <= set(WORDS)
    assert not plain.err
    shown = json.loads(run_qkv(["run", str(folder / "run"), path, "--json", "--beam", "4"]).out)
    assert {"text", "words", "duration"} <= shown.keys()
    assert {"word", "start", "end"} == shown["words"][0].keys()
    assert "-->" in run_qkv(["run", str(folder / "run"), path, "--srt"]).out
    found = json.loads(run_qkv(["eval", str(folder / "run"), str(folder / "clips.tsv"), "--json"]).out)["metrics"]
    assert found["word_error_rate"] < 0.1
    assert found["word_accuracy"] == pytest.approx(1 - found["word_error_rate"])


@pytest.fixture(scope="module")
def server(trained: tuple[Path, qkv.Model]) -> Iterator[Any]:
    serving = pytest.importorskip("serving", reason="starlette is not installed")
    with serving.client({"tones": trained[1]}, gather_seconds=0.0) as opened:
        yield opened


def test_a_server_transcribes_forms(trained: tuple[Path, qkv.Model], server: Any) -> None:
    content = encode(say(["b", "a", "c"], 999))
    expected = trained[1].transcribe(content)

    def send(**fields: Any) -> Any:
        return server.post("/v1/audio/transcriptions", files={"file": ("a.wav", content)}, data=fields)

    assert send(model="tones").json()["text"] == expected.text
    assert send(response_format="text").text == f"{expected.text}\n"
    assert "-->" in send(response_format="srt").text
    fields = {"response_format": "verbose_json", "timestamp_granularities[]": ["word", "segment"]}
    found = send(**fields).json()
    assert found["words"] == [vars(one) for one in expected.words]
    assert found["segments"][0]["text"] == expected.text
    assert found["duration"] == pytest.approx(expected.duration)
    url = "data:audio/wav;base64," + base64.b64encode(content).decode()
    assert server.post("/transcribe", json={"texts": url}).json()["results"][0]["text"] == expected.text


def test_wrong_forms_are_refused(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path, wav = "/v1/audio/transcriptions", encode(say(["a"]))
    monkeypatch.setattr(sound_files_of_qkv, "MAX_SECONDS", 1)
    cases: list[tuple[dict[str, Any], int, str]] = [
        ({"files": {"file": ("a.wav", b"hello")}}, 400, "not a sound"),
        ({"files": {"file": ("a.wav", encode(say(["a"] * 9)))}}, 400, "longer than 1 seconds"),
        ({"files": {"file": ("a.wav", b"")}}, 400, "the file is empty"),
        ({"files": {"other": ("a.wav", wav)}}, 400, "other"),
        ({"files": {"file": (None, "text")}}, 400, "send the sound as a file"),
        ({"files": {"file": ("a.wav", wav)}, "data": {"response_format": "xml"}}, 400, "response_format"),
        ({"files": {"file": ("a.wav", bytes(2**21))}}, 413, "max_body_bytes"),
        ({"json": {"file": "x"}}, 415, "multipart/form-data"),
        ({"content": b"--x", "headers": {"content-type": "multipart/form-data; boundary=x"}}, 400, "not complete"),
        ({"content": b"--x--", "headers": {"content-type": "multipart/form-data"}}, 400, "boundary"),
    ]
    for request, status, message in cases:
        refused = server.post(path, **request)
        assert (refused.status_code, message in refused.text) == (status, True), refused.text


@given(content=st.binary(max_size=200), text=st.text(max_size=20))
def test_a_form_is_read_as_it_was_written(content: bytes, text: str) -> None:
    httpx = pytest.importorskip("httpx")
    request = httpx.Request(
        "POST", "http://x", files={"file": ("ä b.wav", content)}, data={"text": text, "a[]": ["1", "2"]}
    )
    values, files = parse_form(request.read(), request.headers["content-type"])
    assert files == {"file": content}
    assert (values["text"], values["a"]) == (text, ["1", "2"])


def test_the_doctor_finds_nothing_and_finds_a_deaf_model(trained: tuple[Path, qkv.Model], run_qkv: Any) -> None:
    shown = run_qkv(["doctor", str(trained[0] / "run")]).out
    assert "✗" not in shown, shown
    assert "another payload changes the outputs" in shown
    deaf = qkv.load(trained[0] / "run").network
    for parameter in deaf.front_ends.parameters():
        parameter.data.zero_()
    found = run_check("payload", Subject(deaf, None, random_batch(deaf.config), has_random_batch=True))
    assert found.status == "failed"
    assert "ignores it" in found.advice


def test_noise_is_not_a_transcript(trained: tuple[Path, qkv.Model]) -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, 16_000)
    assert trained[1].transcribe(noise).text != trained[1].transcribe(say(["a", "b"], 3)).text
    assert trained[1].transcribe(np.zeros(8_000)).duration == 0.5


@pytest.mark.parametrize(
    ("value", "message"),
    [("missing.wav", "audio 1: the file 'missing.wav' cannot be read: No such file"), (b"", "the file is empty")],
    ids=str,
)
def test_wrong_sounds_are_refused(value: Any, message: str, trained: tuple[Path, qkv.Model]) -> None:
    with pytest.raises(UsageError, match=message):
        trained[1].transcribe([value])
    with pytest.raises(UsageError, match="rate"):
        trained[1].transcribe(say(["a"]), rate=0)
