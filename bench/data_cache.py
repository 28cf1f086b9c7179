"""Reading files and building the token cache: records and MB per second, beside the raw `tokenizers` call.

    python bench/data_cache.py [--megabytes 8] [--repeats 5] [--json FILE]

The text is the source code of the Python standard library. The cache is timed from the file to the finished folder
(hash, read, encode, write, fsync); the raw call encodes the same texts in memory and takes out the ids. On a machine
that does other work too, the ratio of CPU times is the fairer one.
"""

import argparse
import csv
import gzip
import json
import os
import platform
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from rich.console import Console
from rich.table import Table

from qkv.data.cache.token_cache import TokenCache, token_cache
from qkv.data.encode.encoders import EncodeText
from qkv.data.problems import Problems
from qkv.data.readers import DataFiles, ReadOptions
from qkv.text import Tokenizer


def stdlib_lines(megabytes: float) -> list[str]:
    """Lines of the standard library that are not blank or very short, until there are enough of them."""
    lines: list[str] = []
    size = 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" in path.parts:
            continue
        for line in path.read_text("utf-8", "ignore").replace("\0", "").split("\n"):
            if len(line.strip()) > 3 and "\r" not in line:
                lines.append(line)
                size += len(line) + 1
        if size > megabytes * 1e6:
            return lines
    return lines


def write_formats(lines: list[str], folder: Path) -> dict[str, DataFiles]:
    """The same lines in every format that needs no package besides pyarrow and zstandard."""
    text = "\n".join(lines) + "\n"
    files: dict[str, DataFiles] = {}

    def add(name: str, data: bytes, **options: Any) -> None:
        (folder / name).write_bytes(data)
        files[name] = DataFiles(folder / name, options=ReadOptions(**options))

    add("lines.txt", text.encode())
    add("document.txt", text.encode(), unit="document")
    add("sentences.txt", "\n".join(" ".join(lines[n : n + 3]) for n in range(0, len(lines), 3)).encode())
    spaced = "".join(line + ("\n\n" if n % 16 == 15 else "\n") for n, line in enumerate(lines))
    add("paragraphs.txt", spaced.encode(), unit="paragraph")
    add("crlf.txt", text.replace("\n", "\r\n").encode())
    add("utf16.txt", text.encode("utf-16"))
    add("lines.txt.gz", gzip.compress(text.encode(), 6))
    add("rows.jsonl", "".join(json.dumps({"text": line, "n": n}) + "\n" for n, line in enumerate(lines)).encode())
    with (folder / "rows.csv").open("w", newline="") as out:
        csv.writer(out).writerows([["text", "n"], *([line, n] for n, line in enumerate(lines))])
    files["rows.csv"] = DataFiles(folder / "rows.csv")
    add(
        "rows.tsv",
        ("text\tn\n" + "".join(line.replace("\t", " ") + f"\t{n}\n" for n, line in enumerate(lines))).encode(),
    )
    add("tokens.conll", "".join("\n".join(f"{word} O" for word in line.split()) + "\n\n" for line in lines).encode())
    (folder / "train.en").write_text(text)
    (folder / "train.fr").write_text(text)
    files["train.en + train.fr"] = DataFiles({"source": folder / "train.en", "target": folder / "train.fr"})
    try:
        import pyarrow
        import pyarrow.parquet
        import zstandard
    except ImportError:
        return files
    add("lines.txt.zst", zstandard.ZstdCompressor(3).compress(text.encode()))
    pyarrow.parquet.write_table(pyarrow.table({"text": lines}), folder / "rows.parquet")
    files["rows.parquet"] = DataFiles(folder / "rows.parquet")
    return files


def seconds(work: Callable[[], Any], repeats: int = 3) -> float:
    """The best of a few runs."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def bench_reading(files: dict[str, DataFiles], characters: int) -> list[dict[str, Any]]:
    rows = []
    for name, source in files.items():
        count = sum(1 for _ in source.records(Problems(max_invalid_fraction=1)))
        took = seconds(lambda source=source: sum(1 for _ in source.records(Problems(max_invalid_fraction=1))), 2)  # type: ignore[misc]
        rows.append(
            {"format": name, "records": count, "records/s": count / took, "MB/s of text": characters / took / 1e6}
        )
    return rows


def bench_building(
    title: str, source: DataFiles, texts: list[str], tokenizer: Tokenizer, folder: Path, repeats: int
) -> tuple[list[dict[str, Any]], TokenCache]:
    """Time the raw call and the cache alternately, so that other load affects both."""
    size = sum(map(len, texts))
    times: dict[str, list[tuple[float, float]]] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        wall, used = time.perf_counter(), time.process_time()
        result = work()
        times.setdefault(name, []).append((time.perf_counter() - wall, time.process_time() - used))
        return result

    raw = tokenizer.backend.encode_batch_fast
    for turn in range(repeats):
        timed("raw tokenizers call", lambda: [one.ids for one in raw(texts, add_special_tokens=False)])
        for workers in (1, 2):
            root = folder / f"cache {title} {turn} {workers}"
            work = lambda root=root, workers=workers: token_cache(source, EncodeText(tokenizer), root, workers=workers)  # noqa: E731
            cache = timed(f"cache, {workers} in flight", work)
        timed("cache, found again", lambda root=root: token_cache(source, EncodeText(tokenizer), root))  # type: ignore[misc]
    base = [min(one) for one in zip(*times["raw tokenizers call"], strict=True)]
    rows = []
    for name, measured in times.items():
        wall, used = (min(one) for one in zip(*measured, strict=True))
        ratios = {"of raw": base[0] / wall, "of raw, CPU": base[1] / used}
        rows.append({"texts": f"{title} of {size // len(texts)}", "work": name, "MB/s": size / wall / 1e6, **ratios})
    return rows, cache


def bench_access(cache: TokenCache) -> list[dict[str, Any]]:
    chosen = np.random.default_rng(0).integers(0, len(cache), 20_000)
    one = seconds(lambda: [cache[int(index)] for index in chosen]) / len(chosen)
    many = seconds(lambda: cache.gather("ids", chosen))
    tokens = int(cache.lengths("ids")[chosen].sum())
    return [
        {"work": "cache[i]", "microseconds each": one * 1e6, "tokens/s": tokens / len(chosen) / one},
        {"work": "gather of 20,000", "microseconds each": many / len(chosen) * 1e6, "tokens/s": tokens / many},
    ]


def table(title: str, rows: list[dict[str, Any]]) -> Table:
    shown = Table(title=title, title_justify="left")
    for name in rows[0]:
        shown.add_column(name, justify="left" if isinstance(rows[0][name], str) else "right", no_wrap=True)
    for row in rows:
        shown.add_row(*map(format_cell, row.values()))
    return shown


def format_cell(value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.2f}" if isinstance(value, float) and value < 100 else f"{value:,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--megabytes", type=float, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        lines = stdlib_lines(arguments.megabytes)
        files = write_formats(lines, folder)
        characters = sum(map(len, lines))
        reading = bench_reading(files, characters)
        tokenizer = Tokenizer.train("byte-bpe", iter(lines[:: max(1, len(lines) // 50_000)]), vocab_size=8192)
        building, cache = bench_building("lines", files["lines.txt"], lines, tokenizer, folder, arguments.repeats)
        for name in ("sentences", "paragraphs"):
            source = files[f"{name}.txt"]
            texts = [record.fields["text"] for record in source.records(Problems())]
            building += bench_building(name, source, texts, tokenizer, folder, arguments.repeats)[0]
        access = bench_access(cache)
        tokens = cache.meta["fields"]["ids"]["tokens"]
    about = {
        "lines": len(lines),
        "characters": characters,
        "tokens": tokens,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "tokenizers": tokenizers.__version__,
        "numpy": np.__version__,
    }
    console = Console(width=100, markup=False)
    console.print(about)
    for title, rows in (("Reading", reading), ("Building the cache", building), ("Access", access)):
        console.print(table(title, rows))
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"about": about, "reading": reading, "building": building, "access": access}, indent=1)
        )


if __name__ == "__main__":
    main()
