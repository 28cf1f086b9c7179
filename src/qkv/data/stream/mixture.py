"""Several sources dealt together by weight, each running through its own epochs.

How far a source has come at window w is ⌊w · its share of a window⌋: a formula, not a count that must be kept, so any
window can be had at once and a cursor stays as small as for one source.
"""

from collections.abc import Mapping
from math import isfinite

from qkv.data.objectives import Objective
from qkv.data.stream.order import EpochOrder, ExampleRefs, data_fingerprint
from qkv.data.stream.random_bits import hash64
from qkv.errors import UsageError, suggest_name

MixtureWeights = Mapping[str, float] | str
FRACTION_SCALE = 2**32  # shares are whole numbers of 1/FINE examples a window, so that nothing is rounded twice


class MixtureOrder:
    """Windows of about `size` examples, of each source its share. The order is a pure function of (seed, window)."""

    def __init__(self, objectives: Mapping[str, Objective], weights: Mapping[str, float], seed: int, pool_size: int):
        self.names = tuple(objectives)
        self.seed = seed
        self.pool_size = pool_size
        self.epoch_orders = tuple(
            EpochOrder(objective, hash64(seed, "source", name), source)
            for source, (name, objective) in enumerate(objectives.items())
        )
        total = sum(weights[name] for name in self.names)
        self.scaled_rates = tuple(
            max(1, round(weights[name] / total * pool_size * FRACTION_SCALE)) for name in self.names
        )

    def positions_at(self, pool: int) -> tuple[int, ...]:
        """The position that each source has come to when a window begins."""
        return tuple(pool * pace // FRACTION_SCALE for pace in self.scaled_rates)

    def pool(self, index: int) -> ExampleRefs:
        steps = zip(self.epoch_orders, self.positions_at(index), self.positions_at(index + 1), strict=True)
        return ExampleRefs.concatenate([course.refs(first, last) for course, first, last in steps])

    def epochs_at(self, pool: int) -> dict[str, int]:
        """The epoch that each source is in when a window begins."""
        steps = zip(self.names, self.epoch_orders, self.positions_at(pool), strict=True)
        return {name: course.epoch_at(position) for name, course, position in steps}

    def epoch_of(self, pool: int) -> int:
        """The epoch of the source that has come least far."""
        return min(self.epochs_at(pool).values())

    def num_pools(self, epochs: int) -> int:
        raise UsageError(
            "the sources of a mixture have epochs of their own: limit it by steps, or read them one by one"
        )

    def invariants(self) -> dict[str, int]:
        paces = hash64(*self.names, *self.scaled_rates) % 2**53  # a JSON number that every reader keeps exact
        examples = sum(course.num_examples(0) for course in self.epoch_orders)
        same = {"seed": self.seed, "window_size": self.pool_size, "examples": examples, "mixture": paces}
        return {**same, "data": data_fingerprint(self.epoch_orders)}


def mixture_fractions(
    objectives: Mapping[str, Objective], weights: MixtureWeights, temperature: float = 1.0
) -> dict[str, float]:
    """The share of examples that each source gets, adding up to 1.

    `weights` is "proportional" (to the number of examples), "equal", or a number for each name. A `temperature` above 1
    lifts small sources: proportional shares are raised to 1 / temperature.
    """
    if isinstance(weights, str):
        if weights not in ("proportional", "equal"):
            known = ("proportional", "equal")
            raise UsageError(f"weights = {weights!r}: give a number for each source, or {suggest_name(weights, known)}")
        if not (isfinite(temperature) and temperature > 0):
            raise UsageError(f"temperature = {temperature} must be above 0")
        size = {name: float(objective.tally.examples) for name, objective in objectives.items()}
        raw = {name: 1.0 if weights == "equal" else value ** (1 / temperature) for name, value in size.items()}
    else:
        for name in weights:
            if name not in objectives:
                raise UsageError(f"weights name {name!r}, which is no source; {suggest_name(name, objectives)}")
        missing = [name for name in objectives if name not in weights]
        if missing:
            raise UsageError(f"weights are missing for: {', '.join(missing)}")
        wrong = [name for name, value in weights.items() if not (isfinite(value) and value > 0)]
        if wrong:
            raise UsageError(f"weights must be above 0; that of {wrong[0]!r} is {weights[wrong[0]]}")
        raw = dict(weights)
    total = sum(raw.values())
    return {name: value / total for name, value in raw.items()}
