"""How fast text becomes ids: `Tokenizer.encode_batch` beside the bare `tokenizers` call, for every kind.

    python bench/text.py [--json FILE] [--megabytes 8] [--rounds 5]

The text is the standard library's sources, in documents and in lines. Both sides do the same work, from strings to
lists of ids, in turns within one process; the figure is the best of the rounds. Target: at least 0.90 of the bare call.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import tokenizers

from qkv.data.builtin import find_dataset
from qkv.text import Tokenizer
from qkv.text.train import TOKENIZER_KINDS

TARGET = 0.90
SIZE = 8000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--megabytes", type=float, default=8.0, help="how much text")
    parser.add_argument("--rounds", type=int, default=5, help="how often each side runs")
    options = parser.parse_args()

    documents = corpus(int(options.megabytes * 1e6))
    shapes = {"documents": documents, "lines": [line for text in documents for line in text.split("\n")]}
    rows = []
    for kind in TOKENIZER_KINDS:
        tokenizer = Tokenizer.train(kind, iter(documents), SIZE)
        for shape, texts in shapes.items():
            rows.append({"kind": kind, "texts": shape} | compare(tokenizer, texts, options.rounds))
            show(rows[-1], first=len(rows) == 1)
    worst = min(rows, key=lambda row: row["ratio"])
    print(f"\nworst ratio {worst['ratio']:.3f} ({worst['kind']}, {worst['texts']}); target {TARGET:.2f}")
    report = {
        "bench": "text",
        "megabytes": sum(len(text.encode()) for text in documents) / 1e6,
        "target": TARGET,
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": len(os.sched_getaffinity(0))},
        "versions": {"python": platform.python_version(), "tokenizers": tokenizers.__version__},
        "threads": os.environ.get("RAYON_NUM_THREADS", "all"),
        "rows": rows,
    }
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


def corpus(size: int) -> list[str]:
    """Documents of the standard library, as many as make `size` bytes."""
    documents: list[str] = []
    room = size
    for example in find_dataset("stdlib").examples("train"):
        documents.append(example["text"])
        room -= len(example["text"].encode())
        if room <= 0:
            break
    return documents


def compare(tokenizer: Tokenizer, texts: list[str], rounds: int) -> dict[str, float]:
    """Both sides in turns, so that whatever else the machine does falls on both alike."""
    backend = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())

    def bare() -> object:
        return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]

    def ours() -> object:
        return tokenizer.encode_batch(texts)

    measured: dict[str, list[tuple[float, float]]] = {"bare": [], "ours": []}
    for turn in range(rounds):
        for side in (("bare", "ours"), ("ours", "bare"))[turn % 2]:
            measured[side].append(seconds({"bare": bare, "ours": ours}[side]))
    best = {side: [min(column) for column in zip(*rows, strict=True)] for side, rows in measured.items()}
    (bare_wall, bare_cpu), (wall, cpu) = best["bare"], best["ours"]
    tokens = sum(map(len, tokenizer.encode_batch(texts)))
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    return {
        "tokens_per_s": tokens / wall,
        "mb_per_s": megabytes / wall,
        "bare_mb_per_s": megabytes / bare_wall,
        "ratio": bare_wall / wall,
        "cpu_ratio": bare_cpu / cpu,
    }


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """By the clock, and of this process's own time, which what else runs on the machine touches less."""
    start, start_cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - start, time.process_time() - start_cpu


def show(row: dict, first: bool) -> None:
    if first:
        print(f"{'kind':<10} {'texts':<10} {'tokens/s':>12} {'MB/s':>8} {'bare MB/s':>10} {'ratio':>6} {'cpu':>6}")
    figures = (
        f"{row['tokens_per_s']:>12,.0f} {row['mb_per_s']:>8.2f} {row['bare_mb_per_s']:>10.2f} {row['ratio']:>6.3f}"
        f" {row['cpu_ratio']:>6.3f}"
    )
    print(f"{row['kind']:<10} {row['texts']:<10} {figures}", flush=True)


if __name__ == "__main__":
    main()
