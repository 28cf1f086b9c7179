"""Real data packs to at most 3 % padding: Multi30k pairs, and Python's own sources."""

import gzip
import os
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from synthetic_data import tokenizer

from qkv.data.cache.examples import InMemoryExamples
from qkv.data.objectives.causal_lm import CausalLMObjective
from qkv.data.objectives.seq2seq import Seq2SeqObjective
from qkv.data.stream.sequences import SequenceStream

SHARED = Path(os.environ.get("QKV_SHARED", Path(__file__).parents[4] / "shared"))
MULTI30K = SHARED / "data" / "multi30k"


@pytest.mark.skipif(not MULTI30K.exists(), reason=f"Multi30k is not there: {MULTI30K} (set QKV_SHARED)")
@pytest.mark.parametrize("length", [256, 512, 1024])
def test_multi30k_pairs(length):
    sides = []
    for language in ("en", "de"):
        with gzip.open(MULTI30K / f"train.{language}.gz", "rt", encoding="utf-8") as lines:
            sides.append([range(len(line.split())) for line in lines])  # words: the lengths are what matters here
    pairs = InMemoryExamples([{"source": a, "target": b} for a, b in zip(*sides, strict=True)])
    objective = Seq2SeqObjective(pairs, tokenizer(), max_length=length)
    packed = SequenceStream(objective, batch_tokens=64 * length)
    everything = packed.order.num_pools(1)
    assert packed.padding_fraction(everything) <= 0.03
    padded = SequenceStream(objective, batch_tokens=64 * length, layout="padded")
    assert padded.padding_fraction(everything) > 0.05  # what packing saves, even over batches of similar length


@pytest.mark.parametrize("length", [256, 1024])
def test_the_standard_library(length):
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    documents = [np.frombuffer(path.read_bytes(), np.uint8).astype(np.int32) + 106 for path in sources]
    rows = SequenceStream(
        CausalLMObjective(InMemoryExamples([{"ids": ids} for ids in documents]), tokenizer(), max_length=length),
        batch_tokens=64 * length,
    )
    assert rows.padding_fraction(rows.order.num_pools(1)) <= 0.03
