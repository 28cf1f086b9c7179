"""Batches from the token cache: tokens per second of one process, and the fraction of padding.

    python bench/batches.py [--multi30k train.en train.de] [--seconds 2] [--json FILE]

The documents are the standard library of Python; the pairs are Multi30k's (also searched in $QKV_SHARED), or generated
ones of similar lengths. Padding is not counted as tokens; batches are complete torch tensors. On one H200 the fastest
training step consumes about 0.55M tokens/s for a 124M decoder and 1.5M (source and target together) for a base
encoder-decoder: batches must be built faster than that.
"""

import argparse
import json
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from qkv.data import EncodeText, Objective, Problems, SequenceStream, TokenCache, read
from qkv.data.builtin import find_dataset
from qkv.data.load.loader import Loader
from qkv.data.objectives.causal_lm import CausalLMObjective
from qkv.data.objectives.denoising import DenoisingObjective
from qkv.data.objectives.masked_lm import MaskedLMObjective
from qkv.data.objectives.seq2seq import EncodePair, Seq2SeqObjective
from qkv.data.objectives.span_corruption import SpanCorruptionObjective
from qkv.data.records import FileLocation, Record
from qkv.data.stream.pack import group_by_length, pack
from qkv.text import Tokenizer

SHARED = Path(os.environ.get("QKV_SHARED", Path(__file__).parents[2] / "shared")) / "data" / "multi30k"
SPECIAL_TOKENS = ("pad", "bos", "eos", "mask", "sep", "cls")


def documents(folder: Path) -> tuple[TokenCache, Tokenizer]:
    """A cache of the standard library, one file a document."""
    texts = [example["text"] for example in find_dataset("stdlib").examples("train")]
    tokenizer = Tokenizer.train(
        "byte-bpe", iter(texts[::8]), vocab_size=8192, special_tokens=SPECIAL_TOKENS, num_sentinels=100, template="bert"
    )
    made = [Record({"text": text}, FileLocation("stdlib", number)) for number, text in enumerate(texts)]
    return TokenCache.build(made, EncodeText(tokenizer), folder / "stdlib"), tokenizer


def pairs(files: list[str] | None, folder: Path) -> tuple[TokenCache, Tokenizer, str]:
    """A cache of Multi30k, English to German; without the files, generated pairs of similar lengths."""
    if files is None and SHARED.exists():
        files = [str(SHARED / "train.en.gz"), str(SHARED / "train.de.gz")]
    if files is not None:
        corpus = "Multi30k"
        records = list(read({"source": files[0], "target": files[1]}, problems=Problems()))
    else:
        corpus = "generated pairs"
        random = np.random.default_rng(0)
        source = np.clip(random.lognormal(2.55, 0.35, 29_000), 3, 45).astype(int)
        target = np.maximum(3, source + random.integers(-4, 4, len(source)))
        sides = zip(source.tolist(), target.tolist(), strict=True)
        records = [
            Record({"source": "a " * one, "target": "b " * two}, FileLocation("generated")) for one, two in sides
        ]
    texts = [record.fields[side] for record in records[::2] for side in ("source", "target")]
    tokenizer = Tokenizer.train("byte-bpe", iter(texts), vocab_size=8192, special_tokens=SPECIAL_TOKENS)
    return TokenCache.build(records, EncodePair(tokenizer), folder / "pairs"), tokenizer, corpus


def speed(name: str, objective: Objective, seconds: float, workers: int = 0, **choices: Any) -> dict[str, Any]:
    """Build batches of 32k tokens for this many seconds, after the first one."""
    begin = time.perf_counter()
    stream = SequenceStream(objective, batch_tokens=32_768, **choices)
    loader = Loader(stream, num_workers=workers)
    batches = iter(loader)
    next(batches)
    ready = time.perf_counter() - begin
    tokens = count = num_sequences = 0
    padding = 0.0
    begin = time.perf_counter()
    while (passed := time.perf_counter() - begin) < seconds:
        batch = next(batches)
        tokens += batch.num_tokens
        padding += batch.padding_fraction
        num_sequences += batch.batch_size
        count += 1
    loader.close()
    return {
        "batches": name,
        "workers": workers,
        "shape": " + ".join(map(str, stream.max_lengths)),
        "sequences/s": num_sequences / passed,
        "M tokens/s": tokens / passed / 1e6,
        "padding %": 100 * padding / count,
        "first batch, ms": 1e3 * ready,
    }


def unsorted_padding(lengths: np.ndarray, batch: int = 32) -> float:
    """Batches of examples in random order, padded to the longest of each."""
    lengths = lengths[np.random.default_rng(0).permutation(len(lengths))]
    positions = sum(
        int(part.max(axis=0).sum()) * len(part)
        for part in (lengths[i : i + batch] for i in range(0, len(lengths), batch))
    )
    return 1 - lengths.sum() / positions


def padding(name: str, objective: Objective) -> dict[str, Any]:
    """The fraction of padding with three ways to form batches, over all examples of the data."""
    stream = SequenceStream(objective, batch_tokens=32 * sum(objective.max_lengths))
    rng = stream.order.epoch_orders[0].rng(0)
    lengths = objective.lengths(np.arange(objective.num_examples(rng)), rng)
    begin = time.perf_counter()
    pool = lengths[: stream.order.pool(0).example.size]
    pack(pool, objective.max_lengths, stream.max_documents)
    took = (time.perf_counter() - begin) / len(pool)
    _, first, widths = group_by_length(lengths, 32 * sum(objective.max_lengths))
    return {
        "examples of": name,
        "length": " + ".join(map(str, objective.max_lengths)),
        "examples": len(lengths),
        "packed %": 100 * stream.padding_fraction(stream.order.num_pools(1)),
        "by length %": 100 * (1 - lengths.sum() / (np.diff(first)[:, None] * widths).sum()),
        "unsorted %": 100 * unsorted_padding(lengths),
        "packing, µs each": 1e6 * took,
    }


def table(title: str, rows: list[dict[str, Any]]) -> Table:
    shown = Table(title=title, title_justify="left")
    for number, name in enumerate(rows[0]):
        shown.add_column(name, justify="right" if number else "left")
    for row in rows:
        shown.add_row(*map(format_cell, row.values()))
    return shown


def format_cell(value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.2f}" if isinstance(value, float) and value < 100 else f"{value:,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--multi30k", nargs=2, metavar=("SOURCE", "TARGET"))
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        text, tokenizer = documents(Path(temporary))
        pair, pair_tokenizer, corpus = pairs(arguments.multi30k, Path(temporary))
        causal = CausalLMObjective(text, tokenizer, max_length=1024)
        translation = Seq2SeqObjective(pair, pair_tokenizer, max_length=1024)
        timed = [
            ("causal_lm", causal, {}),
            ("causal_lm", causal, {"workers": 1}),
            ("causal_lm, random offset", CausalLMObjective(text, tokenizer, max_length=1024, random_offset=True), {}),
            (f"seq2seq: {corpus}", translation, {}),
            (f"seq2seq: {corpus}", translation, {"workers": 1}),
            (f"seq2seq: {corpus}", Seq2SeqObjective(pair, pair_tokenizer, max_length=256), {}),
            (
                f"seq2seq: {corpus}, padded",
                Seq2SeqObjective(pair, pair_tokenizer, max_length=256),
                {"layout": "padded"},
            ),
            ("masked_lm", MaskedLMObjective(text, tokenizer, max_length=512), {}),
            ("span_corruption", SpanCorruptionObjective(text, tokenizer, max_source_length=512), {}),
            ("denoising", DenoisingObjective(text, tokenizer, max_length=512), {}),
        ]
        speeds = [speed(name, objective, arguments.seconds, **choices) for name, objective, choices in timed]
        paddings = [
            padding(corpus, Seq2SeqObjective(pair, pair_tokenizer, max_length=length)) for length in (256, 512, 1024)
        ]
        paddings += [
            padding("stdlib", CausalLMObjective(text, tokenizer, max_length=length)) for length in (256, 1024, 2048)
        ]
    about = {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
    }
    console = Console(width=110)
    console.print(table("Batches from the cache, one process (and its workers)", speeds))
    console.print(table("Padding", paddings))
    console.print(about)
    if arguments.json:
        arguments.json.write_text(json.dumps({"about": about, "speed": speeds, "padding": paddings}, indent=2) + "\n")


if __name__ == "__main__":
    main()
