"""Models that speak: durations from an aligner, frames from an encoder, files from the commands and the server."""

import json
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sound_files import encode, soundfile

import qkv
from qkv.data.cache.examples import InMemoryExamples
from qkv.data.objectives.speech import PAUSE, TYPES, SpeechObjective, SpokenTokens
from qkv.data.stream.random_bits import EpochRng
from qkv.errors import UsageError
from qkv.inside.doctor.subject import random_batch
from qkv.sounds.config import GriffinLimConfig
from qkv.sounds.durations import align_tokens, find_silences
from qkv.sounds.files import read_samples, to_int16
from qkv.sounds.write import encode_sound
from qkv.tasks.metrics.sounds import correlate_sounds, duration_ratio, warp
from qkv.tasks.prepare import aligner

RECIPE = """
run = "{folder}/run"
[data]
train = "{folder}/clips.tsv"
valid_fraction = 0.1
max_length = 120
layout = "padded"
cache_dir = "{folder}/cache"
[tokenizer]
kind = "char"
lowercase = true
[model]
width = 64
layers = 2
heads = 2
dropout = 0.0
[model.audio]
rate = 8000
mels = 40
[objective]
kind = "speech"
[train]
steps = 150
batch_tokens = 1000
lr = 0.01
optimizer = "muon"
device = "cpu"
num_threads = 1
eval_examples = 4
eval_every = 1000
log_every = 100
"""
RATE = 8_000
PITCHES = {"a": 500, "b": 1000, "c": 2000}
LENGTHS = {"a": 0.1, "b": 0.2, "c": 0.14}  # seconds
VOICES = {"low": 1.0, "high": 1.4}


def say(word: str, voice: str) -> np.ndarray:
    """Each letter is a tone, after 60 ms of silence."""
    tones = []
    for letter in word:
        time = np.arange(round(LENGTHS[letter] * RATE)) / RATE
        tones.append(0.4 * np.sin(2 * np.pi * VOICES[voice] * PITCHES[letter] * time))
    sound = np.concatenate([np.zeros(480), *tones, np.zeros(480)])
    return (sound + 1e-4 * np.random.default_rng(0).normal(size=len(sound))).astype(np.float32)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, qkv.Model]:
    folder = tmp_path_factory.mktemp("speaker")
    rows, rng = ["audio\ttext\tspeaker"], np.random.default_rng(0)
    for number in range(40):
        word, voice = "".join(rng.choice(list(PITCHES), 1 + number % 3)), ("low", "high")[number % 2]
        (folder / f"{number}.wav").write_bytes(encode(say(word, voice), RATE))
        rows.append(f"{number}.wav\t{word.upper() if number == 3 else word}\t{voice}")
    (folder / "clips.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    (folder / "recipe.toml").write_text(RECIPE.format(folder=folder), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aligner, "MIN_STEPS", 60)
        qkv.train(folder / "recipe.toml")
    return folder, qkv.load(folder / "run")


def loudest(samples: np.ndarray) -> float:
    """The strongest frequency."""
    return float(np.abs(np.fft.rfft(samples)).argmax() * RATE / len(samples))


def test_a_model_speaks_with_the_voice_and_the_durations_of_a_speaker(trained: tuple[Path, qkv.Model]) -> None:
    model = trained[1]
    assert model.config.task in (None, "speak")
    for voice, factor in VOICES.items():
        for letter, pitch in PITCHES.items():
            said = model.speak(letter, speaker=voice)
            assert said.rate == RATE
            assert 0.8 < loudest(said.samples) / (factor * pitch) < 1.25, (voice, letter)
            assert abs(said.duration - LENGTHS[letter] - 0.12) < 0.07
    whole = model.speak("ab bc", speaker="low")
    assert whole.samples.tolist() == model.speak("AB  bc", speaker="low").samples.tolist()
    assert model.speak("abbc", speaker="low", speed=2).duration < 0.7 * whole.duration
    long = model.speak(" ".join(["abc"] * 12), speaker="low")
    assert long.duration == pytest.approx(12 * (model.speak("abc", speaker="low").duration - 0.06), rel=0.4)
    assert model.speak(["a", "ccc"], speaker="high")[0].samples == pytest.approx(
        model.speak("a", speaker="high").samples, abs=1e-3
    )


def test_the_doctor_examines_a_model_without_its_data(trained: tuple[Path, qkv.Model]) -> None:
    batch = random_batch(trained[1].config)
    assert batch.labels["frames"].shape == (*batch.inputs.ids.shape, 81)
    assert int(batch.token_labels_per_sequence[0]) == int((batch.inputs.document_ids[0] != 0).sum())


def test_wrong_calls_say_what_to_do(trained: tuple[Path, qkv.Model]) -> None:
    model = trained[1]
    for call, message in (
        (lambda: model.speak("a", speaker="hihg"), "did you mean 'high'"),
        (lambda: model.speak(" "), "text 1 is empty"),
        (lambda: model.speak(["a", "a7"]), "text 2 has '7'"),
        (lambda: model.speak("a" * 400), "is too long to be spoken"),
        (lambda: model.speak("a", speed=9), "at most 4"),
        (lambda: model.speak("a").save("said.mid"), r"name it said\.wav"),
        (lambda: qkv.new("bert-tiny").speak("a"), "speak"),
    ):
        with pytest.raises(UsageError, match=message):
            call()


def test_the_commands_write_sounds_and_evaluate(trained: tuple[Path, qkv.Model], run_qkv: Any) -> None:
    folder, model = trained
    run = str(folder / "run")
    for ending in ("wav", "flac", "ogg", "opus"):
        out = folder / f"said.{ending}"
        assert run_qkv(["run", run, "ab", "--out", str(out), "--speaker", "low"]).out.startswith(f"wrote {out}: 0.")
        expected = len(model.speak("ab", speaker="low").samples)
        assert len(read_samples(str(out), RATE)) == pytest.approx(expected, abs=200)
    shown = json.loads(run_qkv(["run", run, "ab", "--out", str(folder / "x.wav"), "--json"]).out)
    assert shown["rate"] == RATE
    assert "the ending must be one of" in run_qkv(["run", run, "ab", "--out", str(folder / "x.txt")], 2).err
    found = json.loads(run_qkv(["eval", run, str(folder / "clips.tsv"), "--json"]).out)["metrics"]
    assert found["mel_correlation"] > 0.7
    assert found["duration_ratio"] > 0.8


@pytest.fixture(scope="module")
def server(trained: tuple[Path, qkv.Model]) -> Iterator[Any]:
    serving = pytest.importorskip("serving", reason="starlette is not installed")
    with serving.client({"tones": trained[1]}, gather_seconds=0.0) as opened:
        yield opened


def test_a_server_speaks(trained: tuple[Path, qkv.Model], server: Any) -> None:
    expected = trained[1].speak("ab", speaker="high")

    def send(**fields: Any) -> Any:
        return server.post("/v1/audio/speech", json={"input": "ab", "voice": "high", **fields})

    assert send(model="tones").content == expected.encode("wav")
    pcm = np.frombuffer(send(response_format="pcm").content, "<i2")
    assert pcm / 2**15 == pytest.approx(expected.samples, abs=1e-4)
    for format in ("flac", "opus", "ogg"):
        assert soundfile.info(BytesIO(send(response_format=format).content)).frames > 0
    assert len(send(speed=2.0).content) < 0.8 * len(expected.encode("wav"))
    for fields, message in (
        ({"voice": "nobody"}, "voice of this model"),
        ({"input": "xyz"}, "training data lacks"),
        ({"input": "a" * 5000}, "at most 4,096"),
        ({"response_format": "mp3"}, "response_format"),
        ({"speed": 5}, "speed"),
    ):
        refused = send(**fields)
        assert (refused.status_code, message in refused.text) == (400, True), refused.text
    assert server.post("/speak", json={"texts": "ab", "speaker": "high"}).json()["results"][0]["rate"] == RATE


def test_durations_fill_the_sound_and_find_its_borders(trained: tuple[Path, qkv.Model]) -> None:
    """The recogniser of the run knows where each tone begins; one of random weights does not."""
    folder, model = trained
    ids = model.tokenizer.encode("acb", add_special_tokens=False)
    samples = encode_sound(say("acb", "low"), RATE, "pcm")
    config = model.config.back_ends[0]
    network = aligner.build_recogniser(config, model.tokenizer, 0)
    utterance = [(np.frombuffer(samples, "<i2"), list(ids))]
    blind = aligner.SpeechAligner(config, network, "").align(utterance)[0]
    network.load_state_dict(aligner.load_file(next((folder / "cache" / aligner.FOLDER).iterdir())))
    (found,) = aligner.SpeechAligner(config, network, "").align(utterance)
    expected = np.array([0.06, 0.1, 0.14, 0.2, 0.06]) / 0.02
    assert found is not None
    assert blind is not None
    assert found.sum() == blind.sum() == 28
    assert np.abs(found - expected).max() <= 2
    assert np.abs(blind - expected).max() > 2
    assert aligner.SpeechAligner(config, network, "").align([(np.zeros(100, np.int16), list(ids))]) == [None]


def test_alignments_and_silences() -> None:
    scores = np.log(np.array([[8, 1, 1], [8, 1, 1], [1, 8, 1], [1, 1, 8], [1, 1, 8]]) / 10)
    assert align_tokens(scores).tolist() == [2, 1, 2]
    assert align_tokens(scores[:3]).tolist() == [1, 1, 1]
    frames = np.full((10, 4), -1.0)
    frames[4:7] = 1.0
    assert find_silences(frames, 2) == (2, 1)
    ids, types = SpokenTokens(np.array([5, 6]), np.array([0, 2])).spread(1)
    assert (ids.tolist(), types.tolist()) == ([6, 6], [12, 16])


def test_sounds_are_compared_after_an_alignment() -> None:
    one = np.random.default_rng(0).normal(size=(20, 8)).repeat(3, axis=0)
    slower, other = one.repeat(2, axis=0), np.random.default_rng(1).normal(size=(60, 8))
    assert correlate_sounds(one, slower) == pytest.approx(1)
    assert correlate_sounds(one, other) < 0.7
    assert duration_ratio([one], [slower]) == 0.5
    pairs = warp(np.abs(np.arange(4)[:, None] - np.array([0, 0, 1, 3, 3])[None]).astype(float))
    assert pairs[0].tolist() == [0, 0]
    assert pairs[-1].tolist() == [3, 4]


def test_records_of_a_speaker_are_joined_with_a_pause(trained: tuple[Path, qkv.Model]) -> None:
    tokenizer = trained[1].tokenizer
    config = GriffinLimConfig(rate=RATE, mels=40, speakers=("high", "low"))
    sounds = [(say("ab", "low"), 1), (say("c", "low"), 1), (say("a", "high"), 0), (say("bb", "high"), 0)]
    rows = []
    for sound, speaker in sounds:
        size = (config.frames.count_frames(len(sound)), 1)
        positions = config.frames.length(size)
        rows.append(
            {
                "source": [5],
                "durations": [2, positions - 4, 2],
                "speaker": [speaker],
                "audio": to_int16(sound),
                "audio_size": list(size),
            }
        )
    examples = InMemoryExamples(rows)
    objective = SpeechObjective(examples, tokenizer, config, max_length=60)
    assert objective.num_examples(EpochRng(0)) == 8
    seen = set()
    for epoch in range(8):
        rng, chosen = EpochRng(0, epoch), np.arange(8)
        joined, is_joined = objective.choose_joined(chosen, rng)
        built = objective.build(chosen, rng)
        ends = np.cumsum(built.lengths)
        assert built.lengths.tolist() == objective.lengths(chosen, rng)[:, 0].tolist()
        assert built.lengths.max() <= 60
        labels, types = built.labels["frames"], built.token_type_ids
        assert types is not None
        for number, (end, length) in enumerate(zip(ends, built.lengths, strict=True)):
            records = joined[number][is_joined[number]]
            seen.add(len(records))
            speaker = sounds[number % 4][1]
            assert {sounds[record][1] for record in records} == {speaker}
            part, own = labels[end - length : end], types[end - length : end]
            assert {int(one) // TYPES for one in own} == {speaker}
            total = objective.positions[records].sum() + PAUSE * (len(records) - 1)
            if number < 4:
                assert length == total
                assert np.isfinite(part[:-1, :-1]).mean() > 0.95
                assert not np.isfinite(part[:, -1]).any()
            else:
                assert np.expm1(part[:, -1]).sum() == pytest.approx(total, rel=1e-4)
    assert seen >= {1, 2}
