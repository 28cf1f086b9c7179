"""Rows from the token cache: tokens a second that one process makes, and how much of a batch is padding.

    python bench/rows.py [--multi30k train.en train.de] [--seconds 2] [--json FILE]

The documents are Python's own standard library; the pairs are Multi30k's (looked for under $QKV_SHARED, too), or
made-up ones of the same lengths. Tokens are real ones, padding not counted; batches are finished torch tensors. The
fastest training step measured on one H200 consumes about 0.55M tokens/s of a 124M decoder and 1.5M (source and target
together) of a base encoder-decoder: rows must come faster than that.
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

from qkv.data import (
    CausalLM,
    Denoising,
    EncodePair,
    EncodeText,
    MaskedLM,
    Objective,
    Problems,
    Seq2SeqLM,
    SequenceStream,
    SpanCorruption,
    TokenCache,
    read,
)
from qkv.data.builtin import find_dataset
from qkv.data.load.loader import Loader
from qkv.data.records import FileLocation, Record
from qkv.data.stream.pack import group_by_length, pack
from qkv.text import Tokenizer

SHARED = Path(os.environ.get("QKV_SHARED", Path(__file__).parents[2] / "shared")) / "data" / "multi30k"
ROLES = ("pad", "bos", "eos", "mask", "sep", "cls")


def documents(folder: Path) -> tuple[TokenCache, Tokenizer]:
    """The standard library, a document a file, in a cache."""
    texts = [example["text"] for example in find_dataset("stdlib").examples("train")]
    tokenizer = Tokenizer.train(
        "byte-bpe", iter(texts[::8]), vocab_size=8192, special_tokens=ROLES, num_sentinels=100, template="bert"
    )
    made = [Record({"text": text}, FileLocation("stdlib", number)) for number, text in enumerate(texts)]
    return TokenCache.build(made, EncodeText(tokenizer), folder / "stdlib"), tokenizer


def pairs(files: list[str] | None, folder: Path) -> tuple[TokenCache, Tokenizer, str]:
    """Multi30k, English to German, in a cache; pairs of about its lengths where it is not there."""
    if files is None and SHARED.exists():
        files = [str(SHARED / "train.en.gz"), str(SHARED / "train.de.gz")]
    if files is not None:
        told = "Multi30k"
        records = list(read({"source": files[0], "target": files[1]}, problems=Problems()))
    else:
        told = "made-up pairs"
        random = np.random.default_rng(0)
        source = np.clip(random.lognormal(2.55, 0.35, 29_000), 3, 45).astype(int)
        target = np.maximum(3, source + random.integers(-4, 4, len(source)))
        sides = zip(source.tolist(), target.tolist(), strict=True)
        records = [Record({"source": "a " * one, "target": "b " * two}, FileLocation("made up")) for one, two in sides]
    texts = [record.fields[side] for record in records[::2] for side in ("source", "target")]
    tokenizer = Tokenizer.train("byte-bpe", iter(texts), vocab_size=8192, special_tokens=ROLES)
    return TokenCache.build(records, EncodePair(tokenizer), folder / "pairs"), tokenizer, told


def speed(name: str, objective: Objective, seconds: float, workers: int = 0, **choices: Any) -> dict[str, Any]:
    """Batches of about 32k places for so many seconds, after the first one."""
    begin = time.perf_counter()
    rows = SequenceStream(objective, batch_tokens=32_768, **choices)
    loader = Loader(rows, num_workers=workers)
    batches = iter(loader)
    next(batches)
    ready = time.perf_counter() - begin
    tokens = count = made = 0
    padding = 0.0
    begin = time.perf_counter()
    while (passed := time.perf_counter() - begin) < seconds:
        batch = next(batches)
        tokens += batch.num_tokens
        padding += batch.padding_fraction
        made += batch.batch_size
        count += 1
    loader.close()
    return {
        "rows": name,
        "workers": workers,
        "shape": " + ".join(map(str, rows.capacity)),
        "rows/s": made / passed,
        "M tokens/s": tokens / passed / 1e6,
        "padding %": 100 * padding / count,
        "first batch, ms": 1e3 * ready,
    }


def plain_padding(lengths: np.ndarray, batch: int = 32) -> float:
    """Batches of examples in random order, padded to the longest of each."""
    lengths = lengths[np.random.default_rng(0).permutation(len(lengths))]
    places = sum(
        int(part.max(axis=0).sum()) * len(part)
        for part in (lengths[i : i + batch] for i in range(0, len(lengths), batch))
    )
    return 1 - lengths.sum() / places


def padding(name: str, objective: Objective) -> dict[str, Any]:
    """The share of padding in three ways of making batches, over all examples of the data."""
    rows = SequenceStream(objective, batch_tokens=32 * sum(objective.capacity))
    draw = rows.order.epoch_orders[0].rng(0)
    lengths = objective.lengths(np.arange(objective.num_examples(draw)), draw)
    begin = time.perf_counter()
    pack(lengths[: rows.order.size], objective.capacity, rows.max_documents)
    took = (time.perf_counter() - begin) / len(lengths[: rows.order.size])
    _, first, widths = group_by_length(lengths, 32 * sum(objective.capacity))
    return {
        "examples of": name,
        "rows": " + ".join(map(str, objective.capacity)),
        "examples": len(lengths),
        "packed %": 100 * rows.padding_fraction(rows.order.num_pools(1)),
        "by length %": 100 * (1 - lengths.sum() / (np.diff(first)[:, None] * widths).sum()),
        "plain %": 100 * plain_padding(lengths),
        "packing, µs each": 1e6 * took,
    }


def table(title: str, rows: list[dict[str, Any]]) -> Table:
    shown = Table(title=title, title_justify="left")
    for number, name in enumerate(rows[0]):
        shown.add_column(name, justify="right" if number else "left")
    for row in rows:
        shown.add_row(
            *(
                f"{cell:,.2f}"
                if isinstance(cell, float) and cell < 100
                else f"{cell:,.0f}"
                if isinstance(cell, int | float)
                else cell
                for cell in row.values()
            )
        )
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--multi30k", nargs=2, metavar=("SOURCE", "TARGET"))
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        text, tokenizer = documents(Path(temporary))
        pair, pair_tokenizer, told = pairs(arguments.multi30k, Path(temporary))
        next_token = CausalLM(text, tokenizer, max_length=1024)
        translation = Seq2SeqLM(pair, pair_tokenizer, max_length=1024)
        timed = [
            ("next token", next_token, {}),
            ("next token", next_token, {"workers": 1}),
            ("next token, shifted", CausalLM(text, tokenizer, max_length=1024, random_offset=True), {}),
            (f"pairs: {told}", translation, {}),
            (f"pairs: {told}", translation, {"workers": 1}),
            (f"pairs: {told}", Seq2SeqLM(pair, pair_tokenizer, max_length=256), {}),
            (f"pairs: {told}, padded", Seq2SeqLM(pair, pair_tokenizer, max_length=256), {"layout": "padded"}),
            ("masked", MaskedLM(text, tokenizer, max_length=512), {}),
            ("span corruption", SpanCorruption(text, tokenizer, max_source_length=512), {}),
            ("denoising", Denoising(text, tokenizer, max_length=512), {}),
        ]
        speeds = [speed(name, objective, arguments.seconds, **choices) for name, objective, choices in timed]
        shares = [padding(told, Seq2SeqLM(pair, pair_tokenizer, max_length=length)) for length in (256, 512, 1024)]
        shares += [padding("stdlib", CausalLM(text, tokenizer, max_length=length)) for length in (256, 1024, 2048)]
    about = {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
    }
    console = Console(width=110)
    console.print(table("Rows from the cache, one process (workers: beside it)", speeds))
    console.print(table("Padding", shares))
    console.print(about)
    if arguments.json:
        arguments.json.write_text(json.dumps({"about": about, "speed": speeds, "padding": shares}, indent=2) + "\n")


if __name__ == "__main__":
    main()
