"""A language that a small model learns in a hundred steps: walks of a random Markov chain.

Each state has `NUM_SUCCESSORS` successors with equal probability. Apart from the first token of a walk, a model that
knows the chain has a loss of ln 2 = 0.69, and one that ignores the tokens before has about ln 32 = 3.5.
"""

import json
import random

from qkv.lab.experiment import Experiment

NUM_STATES = 32
NUM_SUCCESSORS = 2


def write_markov_chain(experiment: Experiment, num_walks: int, num_tokens: int) -> dict[str, object]:
    """Write walks of `num_tokens` states, one in 20 for validation, and return the recipe keys for a causal LM."""
    rng = random.Random(experiment.seed)
    successors = [rng.sample(range(NUM_STATES), NUM_SUCCESSORS) for _ in range(NUM_STATES)]
    walks = []
    for _ in range(num_walks):
        states = [rng.randrange(NUM_STATES)]
        while len(states) < num_tokens:
            states.append(rng.choice(successors[states[-1]]))
        walks.append(json.dumps({"text": " ".join(f"s{state}" for state in states)}))
    num_valid = max(num_walks // 20, 1)
    return {
        "data.train": experiment.write_lines("train.jsonl", walks[num_valid:]),
        "data.valid": experiment.write_lines("valid.jsonl", walks[:num_valid]),
        "data.max_length": num_tokens + 2,  # with BOS and EOS
        "tokenizer.kind": "word",
        "tokenizer.min_frequency": 1,
        "objective.kind": "causal_lm",
    }
