"""Trap 21 with real networks: the loss of packed sequences is that of separate examples; documents do not mix."""

import numpy as np
import pytest
import torch
from synthetic_data import OBJECTIVES, parts
from torch.nn import functional as F

from qkv.blocks import HeadConfig, Inputs, StackConfig
from qkv.data.load.loader import Loader
from qkv.data.objectives import IGNORE_INDEX
from qkv.data.stream.random_bits import EpochRng
from qkv.data.stream.sequences import SequenceStream
from qkv.models import build
from qkv.models.config import Config

STACK = StackConfig(vocab_size=400, width=16, layers=2, heads=2, ffn_width=32)
HEAD = HeadConfig(kind="lm", outputs=400)


def network(family: str) -> torch.nn.Module:
    torch.manual_seed(0)
    sides = {"decoder": ("decoder",), "encoder": ("encoder",), "seq2seq": ("encoder", "decoder")}[family]
    return build(Config(**dict.fromkeys(sides, STACK), head=HEAD), dtype=torch.float64).eval()


def loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(outputs.flatten(0, -2), labels.flatten(), ignore_index=IGNORE_INDEX, reduction="sum")


CASES = [
    ("next token", "decoder"),
    ("masked", "encoder"),
    ("pairs", "seq2seq"),
    ("span corruption", "seq2seq"),
    ("denoise", "seq2seq"),
]


@pytest.mark.parametrize(("name", "family"), CASES)
def test_the_loss_of_packed_sequences_is_that_of_separate_examples(name, family):
    objective, model = OBJECTIVES[name](), network(family)
    with torch.no_grad():
        alone = 0.0
        for part in parts(objective.build(np.arange(objective.num_examples(EpochRng(0))), EpochRng(0))):
            source = Inputs(torch.tensor([part["source_ids"]])) if "source_ids" in part else None
            inputs = Inputs(torch.tensor([part["ids"]]), source=source)
            alone += float(loss(model(inputs), torch.tensor([part["tokens"]])))
        for layout in ("packed", "padded"):
            loader = Loader(SequenceStream(objective, batch_tokens=900, layout=layout), epochs=1)
            together = sum(float(loss(model(batch.inputs), batch.labels["tokens"])) for batch in loader)
            assert together == pytest.approx(alone, rel=1e-12)


def test_no_gradient_flows_between_documents_of_a_sequence():
    model = network("decoder")
    batch = next(iter(Loader(SequenceStream(OBJECTIVES["next token"](), batch_tokens=320, pool_size=50))))
    sequence = int(np.argmax([len(examples) for examples in batch.examples]))
    seen: list[torch.Tensor] = []
    model.embedding.register_forward_hook(lambda _, __, out: seen.append(out.requires_grad_().retain_grad() or out))
    outputs = model(batch.inputs)
    mine = batch.inputs.document_ids[sequence] == 2
    loss(outputs[sequence, mine], batch.labels["tokens"][sequence, mine]).backward()
    gradient = seen[0].grad.abs().sum(-1)
    assert (gradient[sequence, mine] > 0).all()
    assert (gradient[sequence, ~mine] == 0).all()
    gradient[sequence] = 0
    assert (gradient == 0).all()
