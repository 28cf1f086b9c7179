"""Tags in a possible order: an `I-PER` only after a `B-PER` or an `I-PER`.

If the tags of the training data are in such an order, the tags of a sentence are decoded together, as the most probable
sequence in a possible order (Viterbi 1967).

n words, V tags
"""

from collections.abc import Sequence
from functools import cache

import numpy as np

CONTINUING, CONTINUED = "IEL", "BI"
IMPOSSIBLE = -1e9


def can_follow(tag: str, before: str) -> bool:
    """Whether a tag is possible after another one, which is "" at the start of a sentence.

    >>> can_follow("I-PER", "B-PER"), can_follow("I-PER", "O"), can_follow("I-PER", ""), can_follow("B-PER", "O")
    (True, False, False, True)
    """
    prefix, _, kind = tag.partition("-")
    return prefix not in CONTINUING or (before[:1] in CONTINUED and before[2:] == kind and before != "")


def is_possible(tags: Sequence[str]) -> bool:
    """Whether each tag can follow the one before it."""
    return all(map(can_follow, tags, ["", *tags[:-1]]))


def most_probable_order(probabilities: np.ndarray, classes: tuple[str, ...]) -> np.ndarray:
    """The most probable possible sequence: the probabilities of the tags of n words, (n, V) → classes, (n,).

    >>> most_probable_order(np.array([[0.6, 0.4, 0.0], [0.3, 0.1, 0.6]]), ("O", "B-X", "I-X")).tolist()
    [1, 2]
    """
    best: np.ndarray = probabilities.argmax(-1)
    if is_possible([classes[one] for one in best]):
        return best
    start, follow = _transitions(classes)
    scores = np.log(np.maximum(probabilities, 1e-30))
    total, origins = scores[0] + start, []
    for row in scores[1:]:
        paths = total[:, None] + follow  # (V, V): from, to
        origins.append(paths.argmax(0))
        total = paths.max(0) + row
    path = [int(total.argmax())]
    for origin in reversed(origins):
        path.append(int(origin[path[-1]]))
    return np.array(path[::-1])


@cache
def _transitions(classes: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """What is added to the score of a tag at the start (V,), and after each other tag (V, V)."""
    allowed = np.array([[can_follow(tag, before) for tag in classes] for before in ("", *classes)])
    scores = np.where(allowed, 0.0, IMPOSSIBLE)
    return scores[0], scores[1:]
