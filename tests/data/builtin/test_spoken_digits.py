"""`spoken-digits`: sounds that follow from a seed, a split and a number."""

import hashlib

import numpy as np

from qkv.data.builtin import find_dataset
from qkv.data.builtin.spoken_digits import DigitVoices, SpokenDigits
from qkv.sounds.files import read_samples
from qkv.sounds.formants import DIGITS, RATE, VOWELS, Voice, add_harmonics, say_digits

DATA = SpokenDigits()


def test_examples_follow_from_their_number() -> None:
    found = [DATA.example("train", 5, seed) for seed in (0, 0, 1)]
    assert dict(found[0]) == dict(found[1]) != dict(found[2])
    texts = "\n".join(DATA.example(split, number)["text"] for split in DATA.splits for number in range(20))
    assert hashlib.sha256(texts.encode()).hexdigest()[:16] == "4958d9e53c80a008"
    assert isinstance(find_dataset("spoken-digits"), SpokenDigits)


def test_no_voice_is_in_two_splits() -> None:
    assert sorted(number for numbers in DATA.voices.values() for number in numbers) == list(range(400))
    assert all(DATA.voices.values())


def test_longer_texts_are_longer_sounds_and_digits_differ() -> None:
    examples = [DATA.example("valid", number) for number in range(12)]
    lengths = [len(read_samples(one["audio"], RATE)) / RATE for one in examples]
    counts = [len(one["text"].split()) for one in examples]
    assert np.corrcoef(lengths, counts)[0, 1] > 0.9
    sounds = [say_digits([word], Voice(120, 1.0, 1.0), np.random.default_rng(0)) for word in DIGITS]
    assert len({len(one) for one in sounds}) > 3
    assert all(0.1 < np.abs(one).max() <= 1 for one in sounds)


def test_the_spectrum_of_a_vowel_has_its_formants() -> None:
    formants = np.tile(np.array(VOWELS["iy"], float), (RATE, 1))
    spectrum = np.abs(np.fft.rfft(add_harmonics(np.full(RATE, 100.0), formants)))

    def near(hertz: float) -> float:
        return float(spectrum[int(hertz) - 100 : int(hertz) + 100].max())

    assert near(2_290) > 5 * near(1_200)
    assert near(270) > 5 * near(1_200)


def test_named_voices_are_in_all_splits_and_differ_in_pitch() -> None:
    data = DigitVoices()
    examples = [data.example(split, number) for split in data.splits for number in range(24)]
    assert {one["speaker"] for one in examples} == set(DigitVoices.speakers)
    assert {len(one["text"].split()) for one in examples} == {1, 2, 3}
    assert read_samples(examples[0]["audio"], RATE).std() > 0.01
