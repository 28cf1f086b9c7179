"""Exact search among many vectors: `VectorSearch.search` beside faiss's flat index, on random unit vectors.

    OMP_NUM_THREADS=2 python bench/search.py --vectors 1000000 --width 384 --queries 1 16
    python bench/search.py --device cuda

The vectors are in float32, as `qkv index` writes them by default, or in float16, which faiss converts to float32 when
they are added. Times are elapsed time and CPU time of one call, the median of `--repeats`. Both must find the same
vectors.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from qkv.search.vectors import VectorSearch, normalize

TOP = 10
CHUNK = 1 << 16


def make_vectors(count: int, width: int, dtype: str) -> np.ndarray:
    """Random unit vectors."""
    random = np.random.default_rng(0)
    vectors = np.empty((count, width), dtype)
    for start in range(0, count, CHUNK):
        vectors[start : start + CHUNK] = normalize(
            random.standard_normal((min(CHUNK, count - start), width), np.float32)
        )
    return vectors


def measure(call: Callable[[], Any], repeats: int) -> str:
    """The median elapsed time and CPU time of a call, in milliseconds, after a first call."""
    call()
    elapsed, cpu = [], []
    for _ in range(repeats):
        begin, cpu_begin = time.perf_counter(), time.process_time()
        call()
        elapsed.append(1e3 * (time.perf_counter() - begin))
        cpu.append(1e3 * (time.process_time() - cpu_begin))
    return f"{statistics.median(elapsed):8.0f} ms elapsed {statistics.median(cpu):8.0f} ms of CPU time"


def main() -> None:
    """Measure both for each number of queries."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--dtype", choices=("float32", "float16"), default="float32")
    parser.add_argument("--queries", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    vectors = make_vectors(options.vectors, options.width, options.dtype)
    queries = normalize(np.random.default_rng(1).standard_normal((max(options.queries), options.width), np.float32))
    print(
        f"{options.vectors:,} vectors of width {options.width} in {options.dtype}; load average",
        *map("{:.2f}".format, os.getloadavg()),
    )
    search = VectorSearch(vectors, options.device)
    found = search.search(queries, TOP)
    for count in options.queries:
        print(f"qkv, {count:3} queries   {measure(lambda n=count: search.search(queries[:n], TOP), options.repeats)}")
    try:
        import faiss
    except ImportError:
        print("faiss is not installed; pip install 'qkv[faiss]'")
        return
    index = faiss.IndexFlatIP(options.width)
    for start in range(0, len(vectors), CHUNK):
        index.add(vectors[start : start + CHUNK].astype(np.float32))
    for count in options.queries:
        print(f"faiss, {count:3} queries {measure(lambda n=count: index.search(queries[:n], TOP), options.repeats)}")
    numbers = index.search(queries, TOP)[1]
    same = sum(set(ours[0].tolist()) == set(theirs.tolist()) for ours, theirs in zip(found, numbers, strict=True))
    print(f"the same {TOP} vectors for {same} of {len(queries)} queries")


if __name__ == "__main__":
    main()
