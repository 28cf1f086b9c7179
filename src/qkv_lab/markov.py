"""Languages that a small model learns in a few hundred steps: walks of a random Markov chain.

The next state depends on the last state or, in a chain of order n, on the last n states. It is one of `NUM_SUCCESSORS`
states with equal probability, so a model that knows the chain has a loss of ln 2 = 0.69 nats per token, apart from the
first tokens of a walk.
"""

import random
from itertools import product

from qkv_lab.experiment import Experiment

NUM_STATES = 32
NUM_SUCCESSORS = 2
MAX_LEARNED_LOSS = 2.0
"""Runs above this loss have not learned. Token frequencies alone give about 3, the chain itself about 0.7."""


class MarkovChain:
    """A random Markov chain. Its walks are texts of words, one word for each state."""

    def __init__(self, rng: random.Random, num_states: int = NUM_STATES, order: int = 1) -> None:
        self.rng, self.num_states, self.order = rng, num_states, order
        self.successors = {
            history: rng.sample(range(num_states), NUM_SUCCESSORS)
            for history in product(range(num_states), repeat=order)
        }

    def walk(self, num_tokens: int) -> str:
        """A walk from random first states."""
        states = [self.rng.randrange(self.num_states) for _ in range(self.order)]
        while len(states) < num_tokens:
            states.append(self.rng.choice(self.successors[tuple(states[-self.order :])]))
        return " ".join(f"s{state}" for state in states)


def write_walks(
    experiment: Experiment, chain: MarkovChain, num_walks: int, num_tokens: int, max_length: int = 0
) -> dict[str, object]:
    """Write walks, one in 20 of them for validation, and return the recipe keys of a language model.

    With a `max_length`, longer walks are split into sequences. Otherwise a sequence is a walk with BOS and EOS.
    """
    walks = [chain.walk(num_tokens) for _ in range(num_walks)]
    num_valid = max(num_walks // 20, 1)
    return {
        "data.train": experiment.write_texts("train.jsonl", walks[num_valid:]),
        "data.valid": experiment.write_texts("valid.jsonl", walks[:num_valid]),
        "data.max_length": max_length or num_tokens + 2,
        "tokenizer.kind": "word",
        "tokenizer.min_frequency": 1,
        "objective.kind": "causal_lm",
    }


def write_markov_chain(experiment: Experiment, num_walks: int, num_tokens: int) -> dict[str, object]:
    """Write walks of a chain of order 1, which depends on the seed of the experiment; see `write_walks`."""
    return write_walks(experiment, MarkovChain(random.Random(experiment.seed)), num_walks, num_tokens)
