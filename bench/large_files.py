"""Large text files end to end: wall time, CPU time and peak memory of each stage, from the survey to a resumed run.

    python bench/large_files.py FOLDER 10MB 200MB 1GB      a table; the files are written into FOLDER and deleted
    python bench/large_files.py FOLDER 10GB --stages survey tokenizer

Each stage is a process of its own, so its peak memory is that of the stage. `library` is the tokenizers library that
reads the file by itself, for comparison with `tokenizer`. The text is made of random words with the frequencies of
Zipf's law: 64 MB blocks, the first 16 of which differ.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

UNITS = {"MB": 10**6, "GB": 10**9}
STAGES = ("survey", "library", "tokenizer", "cache", "first step", "resume")
BLOCK_BYTES = 64 * 10**6
NUM_DISTINCT_BLOCKS = 16
NUM_WORDS = 200_000
WORDS_PER_LINE = 14
VOCAB_SIZE = 8000
RECIPE = f"""
run = "{{folder}}/run"
[data]
train = "{{folder}}/corpus.txt"
cache_dir = "{{folder}}/cache"
valid_fraction = 0.001
max_length = 256
[tokenizer]
vocab_size = {VOCAB_SIZE}
[model]
width = 64
layers = 2
heads = 4
[objective]
kind = "causal_lm"
[train]
steps = 1
batch_tokens = 4096
num_threads = 2
"""


def write_corpus(path: Path, size: int) -> None:
    """Write about `size` bytes of text."""
    rng = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwypvbgkqjxz"))
    lengths = rng.integers(2, 11, NUM_WORDS)
    words = np.array(["".join(letters[(rng.random(n) ** 2 * 26).astype(int)]) for n in lengths])
    frequency = 1 / np.arange(1, NUM_WORDS + 1)
    cumulative = np.cumsum(frequency / frequency.sum())
    blocks: list[bytes] = []
    written = 0
    with path.open("wb") as out:
        while written < size:
            if len(blocks) < NUM_DISTINCT_BLOCKS:
                count = min(BLOCK_BYTES, size - written) // 7
                chosen = words[np.searchsorted(cumulative, rng.random(max(count, 1)))].tolist()
                lines = (" ".join(chosen[i : i + WORDS_PER_LINE]) for i in range(0, len(chosen), WORDS_PER_LINE))
                blocks.append(("\n".join(lines) + "\n").encode())
            block = blocks[written // BLOCK_BYTES % NUM_DISTINCT_BLOCKS] if written >= BLOCK_BYTES else blocks[-1]
            out.write(block)
            written += len(block)


def run_stage(stage: str, folder: Path, size: int) -> None:
    """Run one stage in this process."""
    corpus, recipe_file = folder / "corpus.txt", folder / "recipe.toml"
    if stage == "corpus":
        write_corpus(corpus, size)
    elif stage == "survey":
        from qkv.data.dataset_stats import compute_stats
        from qkv.data.readers import DataFiles

        compute_stats(DataFiles(str(corpus)))
    elif stage == "library":
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        backend.train([str(corpus)], trainers.BpeTrainer(vocab_size=VOCAB_SIZE, min_frequency=2, show_progress=False))
    elif stage == "tokenizer":
        from qkv.tasks.prepare.sources import cache_root, open_sources
        from qkv.tasks.prepare.tokenizer import load_or_train_tokenizer
        from qkv.train.recipe.recipe_file import read

        recipe = read(recipe_file)
        sources = list(open_sources(recipe).train.values())
        print(load_or_train_tokenizer(recipe, sources, cache_root(recipe.data))[1])
    elif stage == "cache":
        from qkv.tasks.prepare.prepare import prepare
        from qkv.train.recipe.recipe_file import read

        prepare(read(recipe_file))
    else:
        from qkv.cli import run_command

        steps = 1 if stage == "first step" else 2
        sys.exit(run_command(["train", str(recipe_file), f"train.steps={steps}"]))


def measure(stage: str, folder: Path, size: int) -> str:
    """Run a stage in a process of its own: its wall time, CPU time and peak memory.

    This process must stay small, because a new process begins with the peak memory of the one that starts it.
    """
    command = [sys.executable, __file__, str(folder), "--stage", stage, "--bytes", str(size)]
    log = folder / "log.txt"
    start = time.perf_counter()
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
        _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if status:
        raise SystemExit(f"{stage} failed:\n{log.read_text()}")
    return f"{seconds:.0f} s ({usage.ru_utime + usage.ru_stime:.0f} s CPU), {usage.ru_maxrss * 1024 / 1e9:.2f} GB"


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("sizes", nargs="*")
    parser.add_argument("--stages", nargs="*", default=STAGES, choices=STAGES)
    parser.add_argument("--stage", choices=("corpus", *STAGES), help="run this stage in this process")
    parser.add_argument("--bytes", type=int, default=0)
    options = parser.parse_args()
    if options.stage:
        run_stage(options.stage, options.folder, options.bytes)
        return
    print("| text | " + " | ".join(options.stages) + " |")
    print("|---|" + "---|" * len(options.stages))
    for size in options.sizes:
        folder = options.folder / f"large-files-{size}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            num_bytes = int(float(size[:-2]) * UNITS[size[-2:]])
            measure("corpus", folder, num_bytes)
            (folder / "recipe.toml").write_text(RECIPE.format(folder=folder))
            cells = []
            for stage in options.stages:
                cells.append(measure(stage, folder, num_bytes))
                print(f"{size} {stage}: {cells[-1]}", file=sys.stderr, flush=True)
            print(f"| {size} | " + " | ".join(cells) + " |", flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
