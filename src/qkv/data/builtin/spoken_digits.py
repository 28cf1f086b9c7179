"""`spoken-digits` and `digit-voices`: one to five English digits, spoken by a synthesiser. Endless and seeded.

No voice of `spoken-digits` is in two of the splits train, valid and test.
"""

import hashlib
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from qkv.data.builtin.dataset import BuiltinDataset, assign_split, random_stream_start, splitmix64
from qkv.data.builtin.scenes import LazyFields
from qkv.sounds.files import to_int16, write_wav
from qkv.sounds.formants import DIGITS, RATE, Voice, make_voice, say_digits

VERSION = 1  # increase it if examples change
NUM_VOICES = 400
MAX_DIGITS = 5


class SpokenDigits(BuiltinDataset):
    """Sounds of digits with their words.

    >>> SpokenDigits().example("train", 7)["text"]
    'eight three'
    """

    name = "spoken-digits"
    description = "English digits, spoken by a synthesiser in 400 voices"
    licence = "none needed: the sounds are generated"
    fields: tuple[str, ...] = ("audio", "text")

    def length(self, split: str) -> None:
        """Return None, because every split is endless."""

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the version and of the digits."""
        return hashlib.sha256(repr([self.name, VERSION, NUM_VOICES, MAX_DIGITS, DIGITS]).encode()).hexdigest()[:32]

    @cached_property
    def voices(self) -> dict[str, list[int]]:
        """The numbers of the voices of each split."""
        found: dict[str, list[int]] = {split: [] for split in self.splits}
        for number in range(NUM_VOICES):
            found[assign_split(splitmix64(number))].append(number)
        return found

    def example(self, split: str, i: int, seed: int = 0) -> Any:
        """Example `i`: a mapping of the fields, each of which is made when it is read."""
        self.check_index(split, i)
        rng = np.random.default_rng(splitmix64(random_stream_start(seed, split) + i))
        words = [str(word) for word in rng.choice(list(DIGITS), rng.integers(1, MAX_DIGITS + 1))]
        voice = make_voice(np.random.default_rng(int(rng.choice(self.voices[split]))))
        return LazyFields(audio=lambda: write_wav(to_int16(say_digits(words, voice, rng)), RATE), text=" ".join(words))


class DigitVoices(SpokenDigits):
    """The same digits with the name of the speaker: four voices, which all splits have.

    >>> example = DigitVoices().example("train", 7)
    >>> example["text"], example["speaker"] in DigitVoices.speakers
    ('eight', True)
    """

    name = "digit-voices"
    description = "English digits, spoken by a synthesiser in four named voices"
    fields = ("audio", "text", "speaker")
    speakers: ClassVar = {
        "alto": Voice(200, 1.12, 1.0),
        "bass": Voice(95, 0.94, 0.9),
        "tenor": Voice(140, 1.02, 1.0),
        "treble": Voice(240, 1.2, 1.1),
    }

    def example(self, split: str, i: int, seed: int = 0) -> Any:
        """Example `i`: a mapping of the fields, each of which is made when it is read."""
        self.check_index(split, i)
        rng = np.random.default_rng(splitmix64(random_stream_start(seed, split) + i))
        words = [str(word) for word in rng.choice(list(DIGITS), rng.integers(1, 4))]
        speaker = str(rng.choice(list(self.speakers)))
        return LazyFields(
            audio=lambda: write_wav(to_int16(say_digits(words, self.speakers[speaker], rng)), RATE),
            text=" ".join(words),
            speaker=speaker,
        )
