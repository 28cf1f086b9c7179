"""The time of a step of the engine (continuous batching) while all of its slots are in use."""

import time

import torch

from qkv.decode import Engine, GenerationOptions
from qkv.models import Network

PAGE_SIZE = 16
FIRST_STEPS = 2
"""Steps after prefill that are not timed: on a GPU the engine captures its graphs in them."""


def time_engine_step(network: Network, prompts: list[list[int]], num_tokens: int) -> float:
    """Serve requests that all arrive at once and generate `num_tokens` each. Return the seconds of one step."""
    pages_per_sequence = (max(map(len, prompts)) + num_tokens) // PAGE_SIZE + 1
    num_pages = 2 * len(prompts) * pages_per_sequence
    engine = Engine(network, max_sequences=len(prompts), num_pages=num_pages, page_size=PAGE_SIZE)
    for prompt in prompts:
        engine.submit(prompt, GenerationOptions(max_tokens=num_tokens))
    times: list[tuple[float, int]] = []
    with torch.inference_mode():
        while engine.step():
            generated = engine.stats.generated_tokens
            if generated >= FIRST_STEPS * len(prompts):
                times.append((time.perf_counter(), generated))
    (first, few), (last, many) = times[0], times[-1]
    return (last - first) / (many - few) * len(prompts)
