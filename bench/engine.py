"""The engine (continuous batching) on a GPU beside `generate`, GPT-2 124M, bfloat16 and random weights.

    python bench/engine.py --out engine.json     about three minutes on one GPU
    python bench/engine.py --tiny                a tiny model anywhere, to see that it runs

    equal       as many requests as slots, of one length, beside one `generate` call with the same number of sequences
    arrivals    three times as many requests as slots, of unequal lengths: they come and go
    tokens      milliseconds between two tokens of a request, without and with a prompt of 8,192 tokens that arrives

"tokens/s" is the rate of all of the work: prefill, steps, results on the host. "steps" is the rate while every slot is
in use. "of generate" compares with the rate of the `generate` call. Prompts never begin alike: every prompt is read.
"""

import argparse
import itertools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from decode import CONSOLE, Row, made, show
from decode_peers import DEVICE, free, prompts_of, timed
from qkv.decode import Engine, GenerationOptions, Request, generate
from qkv.models.tables import presets

PROMPT, NEW = 32, 224
FRESH = itertools.count(100)
Work = Sequence[tuple[int, int]]
"""The length of the prompt and the number of new tokens of each request."""


def network_of(tiny: bool, positions: int) -> Any:
    size = {"n_embd": 64, "n_layer": 2, "n_head": 2} if tiny else {}
    return made(presets.find_preset("gpt2", n_positions=positions, **size))


def fresh_prompt(length: int) -> list[int]:
    return [next(FRESH) % 50_000, *prompts_of(1, length)[0][1:]]


def submit(engine: Engine, length: int, new: int, **options: Any) -> Request:
    return engine.submit(fresh_prompt(length), GenerationOptions(max_tokens=new), **options)


def serve(engine: Engine, work: Work) -> tuple[float, float]:
    """Serve requests. Returns the tokens per second of all, and while every slot is in use."""
    running, slots = engine._scheduler.running, engine._scheduler.max_sequences
    prompts = [fresh_prompt(length) for length, _ in work]
    written, began = engine.stats.generated_tokens, time.perf_counter()
    for prompt, (_, new) in zip(prompts, work, strict=True):
        engine.submit(prompt, GenerationOptions(max_tokens=new))
    full: list[tuple[float, int]] = []
    while engine.step():
        if len(running) == slots:
            full.append((time.perf_counter(), engine.stats.generated_tokens))
    rate = (engine.stats.generated_tokens - written) / (time.perf_counter() - began)
    (first, few), (last, many) = (full[0], full[-1]) if len(full) > 1 else ((0.0, 0), (1.0, 0))
    return rate, (many - few) / (last - first)


def throughput(tiny: bool, all_slots: Sequence[int]) -> list[Row]:
    network, rows = network_of(tiny, 1024), []
    for slots in (4,) if tiny else all_slots:
        prompt, new = (4, 8) if tiny else (PROMPT, NEW)
        options = GenerationOptions(max_tokens=new)
        prompts = prompts_of(slots, prompt)
        seconds = timed(lambda prompts=prompts, options=options: generate(network, prompts, options), runs=2)
        reached = slots * new / seconds
        rows.append({"slots": slots, "work": "generate", "tokens/s": reached, "steps": None, "of generate": 1.0})
        lengths = np.random.default_rng(0).integers(4, 64, 3 * slots).tolist()
        unequal = [(length, new // 2 + length % (new // 2)) for length in lengths]
        for name, work in (("equal", [(prompt, new)] * slots), ("arrivals", unequal)):
            engine = Engine(network, max_sequences=slots, num_pages=2 * slots * (64 + new) // 16)
            for _ in range(2):
                serve(engine, work)  # loads kernels, and captures what a server would have captured long ago
            rate, steps = max(serve(engine, work) for _ in range(2))
            row = {"slots": slots, "work": name, "tokens/s": rate, "steps": steps, "of generate": rate / reached}
            rows.append(row)
        free()
    return rows


def gaps(engine: Engine, slots: int, prompt: int, new: int, long_prompt: int) -> list[float]:
    """Milliseconds between the tokens of `slots` − 1 requests. A long prompt, if any, arrives after a quarter."""
    times: dict[int, list[float]] = {}

    def heard(request: Request) -> None:
        times.setdefault(request.request_id, []).append(time.perf_counter())

    for _ in range(slots - 1):
        submit(engine, prompt, new, on_change=heard)
    steps = itertools.count()
    while engine.step():
        if next(steps) == new // 4 and long_prompt:
            submit(engine, long_prompt, 4)
    return [1e3 * gap for all_times in times.values() for gap in np.diff(all_times)]


def between_tokens(tiny: bool) -> list[Row]:
    slots, prompt, new, long_prompt = (4, 4, 12, 40) if tiny else (32, PROMPT, NEW, 8192)
    network, rows = network_of(tiny, 64 if tiny else 9216), []
    engine = Engine(network, max_sequences=slots, num_pages=(long_prompt + slots * (prompt + new)) // 16 + 2 * slots)
    for arriving in (0, long_prompt):
        for _ in range(3):
            found = gaps(engine, slots, prompt, new, arriving)
        row: Row = {"slots": slots, "prompt that arrives": arriving}
        rows.append(row | {f"p{p} ms": float(np.percentile(found, p)) for p in (50, 99, 100)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a tiny model, to see that it runs")
    parser.add_argument("--slots", type=int, nargs="+", default=[32, 128, 256], help="the numbers of slots to measure")
    parser.add_argument("--out", type=Path, help="a JSON file for the rows")
    arguments = parser.parse_args()
    CONSOLE.print(f"torch {torch.__version__} on {torch.cuda.get_device_name() if DEVICE == 'cuda' else 'a CPU'}")
    told = {}
    measures = {"throughput": lambda: throughput(arguments.tiny, arguments.slots)}
    measures["between tokens"] = lambda: between_tokens(arguments.tiny)
    for section, measure in measures.items():
        begin = time.perf_counter()
        told[section] = measure()
        show(section, told[section])
        CONSOLE.print(f"{section}: {time.perf_counter() - begin:.0f} s")
    if arguments.out:
        arguments.out.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
