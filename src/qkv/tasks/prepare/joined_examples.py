"""Several sets of encoded examples as one: the validation data of a mixture."""

from collections.abc import Sequence

import numpy as np

from qkv.data.cache.examples import EncodedExamples


class JoinedExamples(EncodedExamples):
    """A concatenation of several sets of encoded examples."""

    def __init__(self, parts: Sequence[EncodedExamples]):
        self.parts = tuple(parts)
        self.ends = np.cumsum([len(part) for part in self.parts])
        super().__init__(int(self.ends[-1]), self.parts[0].fields)

    @property
    def fingerprint(self) -> str:
        """The fingerprints of all sets."""
        return "+".join(part.fingerprint for part in self.parts)

    def _locate(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For each example of (n,) indices, the number of its set and its index in that set."""
        part = np.searchsorted(self.ends, indices, "right")
        return part, indices - (self.ends - [len(one) for one in self.parts])[part]

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        part, inside = self._locate(np.array([index]))
        return self.parts[int(part[0])][int(inside[0])]

    def lengths(self, field: str) -> np.ndarray:
        """The lengths of a field in all examples."""
        return np.concatenate([part.lengths(field) for part in self.parts])

    def gather(
        self, field: str, indices: np.ndarray, starts: np.ndarray | None = None, counts: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Slices of a field, concatenated, and their offsets; examples are read one by one (there are few)."""
        if not len(indices):
            return self.parts[0].gather(field, np.zeros(0, np.int64))
        part, inside = self._locate(np.asarray(indices))
        found: list[np.ndarray] = []
        for i in range(len(indices)):
            one = slice(i, i + 1)
            bounds = [None if values is None else values[one] for values in (starts, counts)]
            found.append(self.parts[int(part[i])].gather(field, inside[one], *bounds)[0])
        return np.concatenate(found), np.concatenate([[0], np.cumsum([len(values) for values in found])])
