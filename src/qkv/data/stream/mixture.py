"""Several datasets mixed by weight, each with its own epochs.

A pool is a group of examples that are packed together (see `order`). The pools before pool p have ⌊p · rate⌋ examples
of a dataset, where `rate` is its number of examples per pool. So any pool can be computed directly, without counters.
"""

from collections.abc import Mapping
from math import isfinite

from qkv.data.objectives import Objective
from qkv.data.stream.order import EpochOrder, ExampleRefs, data_fingerprint
from qkv.data.stream.random_bits import hash64
from qkv.errors import UsageError, suggest_name

FRACTION_SCALE = 2**32  # rates are fixed-point integers with this scale, so that rounding errors do not accumulate


class MixtureOrder:
    """Pools of about `pool_size` examples with a fixed fraction of each dataset."""

    def __init__(self, objectives: Mapping[str, Objective], weights: Mapping[str, float], seed: int, pool_size: int):
        self.names = tuple(objectives)
        self.seed = seed
        self.pool_size = pool_size
        self.epoch_orders = tuple(
            EpochOrder(objective, hash64(seed, "source", name), dataset)
            for dataset, (name, objective) in enumerate(objectives.items())
        )
        total = sum(weights[name] for name in self.names)
        self.scaled_rates = tuple(
            max(1, round(weights[name] / total * pool_size * FRACTION_SCALE)) for name in self.names
        )

    def positions_at(self, pool: int) -> tuple[int, ...]:
        """The number of examples of each dataset in all pools before `pool`."""
        return tuple(pool * rate // FRACTION_SCALE for rate in self.scaled_rates)

    def pool(self, index: int) -> ExampleRefs:
        """The examples of a pool."""
        ranges = zip(self.epoch_orders, self.positions_at(index), self.positions_at(index + 1), strict=True)
        return ExampleRefs.concatenate([order.refs(first, last) for order, first, last in ranges])

    def epoch_of(self, pool: int) -> int:
        """The lowest epoch of all datasets at the start of a pool."""
        positions = zip(self.epoch_orders, self.positions_at(pool), strict=True)
        return min(order.epoch_at(position) for order, position in positions)

    def num_pools(self, epochs: int) -> int:
        """Raise an error, because the datasets of a mixture have no common epochs."""
        raise UsageError(
            "a mixture cannot be limited by epochs, because its datasets have different epochs; limit it by steps, or "
            "read the datasets one by one"
        )

    def resume_state(self) -> dict[str, int]:
        """Values that a checkpoint stores. Resuming is an error if one of them has changed."""
        examples = sum(order.num_examples(0) for order in self.epoch_orders)
        mixture = hash64(*self.names, *self.scaled_rates) % 2**53  # exact in JSON
        settings = {"seed": self.seed, "pool_size": self.pool_size, "examples": examples, "mixture": mixture}
        return {**settings, "data": data_fingerprint(self.epoch_orders)}


def mixture_fractions(
    objectives: Mapping[str, Objective], weights: Mapping[str, float] | None = None
) -> dict[str, float]:
    """The fraction of examples from each dataset. The fractions sum to 1.

    `weights` has a number for each name. Without weights, datasets are weighted by their number of examples.
    """
    if weights is None:
        weights = {name: float(objective.counts.examples) for name, objective in objectives.items()}
    for name in weights:
        if name not in objectives:
            raise UsageError(f"weights names {name!r}, which is not a dataset; {suggest_name(name, objectives)}")
    missing = [name for name in objectives if name not in weights]
    if missing:
        raise UsageError(f"weights lacks the datasets {', '.join(missing)}; add a number above 0 for each")
    wrong = [name for name, value in weights.items() if not (isfinite(value) and value > 0)]
    if wrong:
        raise UsageError(f"weights[{wrong[0]!r}] = {weights[wrong[0]]}: a weight must be above 0")
    total = sum(weights.values())
    return {name: value / total for name, value in weights.items()}
