"""For each objective, a small network that learns it and a batch of it."""

import torch
from synthetic_data import OBJECTIVES

from qkv.blocks import HeadConfig, StackConfig
from qkv.data.load.batch import Batch
from qkv.data.load.loader import Loader
from qkv.data.stream.sequences import SequenceStream
from qkv.models import Config, Network, build

STACK = StackConfig(vocab_size=400, width=16, layers=1, heads=2, ffn_width=32, token_types=2)
LM = HeadConfig(kind="lm", outputs=400)

# Which network learns which objective.
CASES = {
    "next token": ("decoder", LM),
    "masked": ("encoder", HeadConfig(kind="mlm", outputs=400, dense="gelu", dense_norm=True)),
    "next sentence": ("encoder", HeadConfig(kind="mlm", outputs=400, next_sentence_classes=2)),
    "pairs": ("seq2seq", LM),
    "span corruption": ("seq2seq", LM),
    "denoise": ("seq2seq", LM),
    "classify": ("encoder", HeadConfig(kind="classify", outputs=5)),
    "tags": ("encoder", HeadConfig(kind="tag", outputs=5)),
    "answers": ("encoder", HeadConfig(kind="span", outputs=2)),
    "contrast": ("encoder", HeadConfig(kind="embed", pool="mean", normalize=True)),
}


def network(family: str, head: HeadConfig) -> Network:
    torch.manual_seed(0)
    sides = {"decoder": ("decoder",), "encoder": ("encoder",), "seq2seq": ("encoder", "decoder")}[family]
    return build(Config(**dict.fromkeys(sides, STACK), head=head), dtype=torch.float64)


def a_batch(name: str, tokens: int = 1200) -> Batch:
    objective = OBJECTIVES[name]()
    return next(iter(Loader(SequenceStream(objective, batch_tokens=max(tokens, sum(objective.max_lengths)), seed=1))))
