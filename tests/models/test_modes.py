"""Training and evaluation: dropout acts in one and not in the other, and without dropout they are the same (trap 6)."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from qkv.blocks import HeadConfig, Inputs

FAMILIES = ["encoder", "decoder", "seq2seq"]
KERNELS = ["eager", "sdpa"]
Make = Callable[..., Any]
SEGMENT = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])


def logits(small: Any, ids: Make) -> torch.Tensor:
    one, other = ids(2, 5), ids(2, 5, seed=1)
    with torch.no_grad():
        if hasattr(small, "target_embedding"):
            return small(Inputs(other, document_ids=SEGMENT, source=Inputs(one, document_ids=SEGMENT)))
        return small(Inputs(one, document_ids=SEGMENT))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("family", FAMILIES)
def test_evaluation_is_the_same_twice_whatever_the_dropout(network: Make, ids: Make, family: str, kernel: str) -> None:
    small = network(family, kernel=kernel, dropout=0.5, attention_dropout=0.5, ffn_dropout=0.5)
    plain = network(family, kernel=kernel)
    assert torch.equal(logits(small, ids), logits(small, ids))
    assert torch.equal(logits(small, ids), logits(plain, ids))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("family", FAMILIES)
def test_without_dropout_training_is_evaluation(network: Make, ids: Make, family: str, kernel: str) -> None:
    small = network(family, kernel=kernel)
    expected = logits(small, ids)
    assert torch.equal(logits(small.train(), ids), expected)


@pytest.mark.parametrize("where", ["dropout", "attention_dropout", "ffn_dropout"])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("family", FAMILIES)
def test_each_dropout_acts_in_training(network: Make, ids: Make, family: str, kernel: str, where: str) -> None:
    small = network(family, kernel=kernel, **{where: 0.5}).train()
    torch.manual_seed(0)
    first, second = logits(small, ids), logits(small, ids)
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    assert torch.equal(logits(small, ids), first), "and a seed decides what is dropped"


def test_the_head_has_a_dropout_of_its_own(network: Make, ids: Make) -> None:
    small = network("encoder", head=HeadConfig(kind="tag", outputs=3, dropout=0.5)).train()
    assert not torch.equal(logits(small, ids), logits(small, ids))
    assert torch.equal(logits(small.eval(), ids), logits(small, ids))
