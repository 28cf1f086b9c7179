"""`spoken-digits`: one to five English digits, spoken by a synthesiser. Endless and seeded.

No voice is in two of the splits train, valid and test.
"""

import hashlib
from functools import cached_property
from typing import Any

import numpy as np

from qkv.data.builtin.dataset import BuiltinDataset, assign_split, random_stream_start, splitmix64
from qkv.data.builtin.scenes import LazyFields
from qkv.sounds.files import to_int16, write_wav
from qkv.sounds.formants import DIGITS, RATE, make_voice, say_digits

VERSION = 1  # increase it if examples change
NUM_VOICES = 400
MAX_DIGITS = 5


class SpokenDigits(BuiltinDataset):
    """Sounds of digits with their words.

    >>> SpokenDigits().example("train", 7)["text"]
    'seven eight five four four'
    """

    name = "spoken-digits"
    description = "English digits, spoken by a synthesiser in 400 voices"
    licence = "none needed: the sounds are generated"
    fields = ("audio", "text")

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
