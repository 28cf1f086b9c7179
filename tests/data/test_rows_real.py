"""Real data packs to at most 3 % padding: Multi30k pairs, and Python's own sources."""

import gzip
import os
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from rows_made import tokenizer

from qkv.data.examples import MemoryExamples
from qkv.data.objectives import NextToken, Pairs
from qkv.data.rows import Rows

SHARED = Path(os.environ.get("QKV_SHARED", Path(__file__).parents[3] / "shared"))
MULTI30K = SHARED / "data" / "multi30k"


@pytest.mark.skipif(not MULTI30K.exists(), reason=f"Multi30k is not there: {MULTI30K} (set QKV_SHARED)")
@pytest.mark.parametrize("length", [256, 512, 1024])
def test_multi30k_pairs(length):
    sides = []
    for language in ("en", "de"):
        with gzip.open(MULTI30K / f"train.{language}.gz", "rt", encoding="utf-8") as lines:
            sides.append([range(len(line.split())) for line in lines])  # words: the lengths are what matters here
    pairs = MemoryExamples([{"source": a, "target": b} for a, b in zip(*sides, strict=True)])
    objective = Pairs(pairs, tokenizer(), length=length)
    packed = Rows(objective, batch_tokens=64 * length)
    everything = packed.order.windows(1)
    assert packed.padding(everything) <= 0.03
    padded = Rows(objective, batch_tokens=64 * length, layout="padded")
    assert padded.padding(everything) > 0.05  # what packing saves, even over batches of similar length


@pytest.mark.parametrize("length", [256, 1024])
def test_the_standard_library(length):
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    documents = [np.frombuffer(path.read_bytes(), np.uint8).astype(np.int32) + 106 for path in sources]
    rows = Rows(
        NextToken(MemoryExamples([{"ids": ids} for ids in documents]), tokenizer(), length=length),
        batch_tokens=64 * length,
    )
    assert rows.padding(rows.order.windows(1)) <= 0.03
