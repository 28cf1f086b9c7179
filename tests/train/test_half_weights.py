"""Copies of the weights that are made at once, and gradients that are widened at once, are autocast's own."""

import pytest
import torch
from test_learner import CASES, CPU, a_batch, network

from qkv.models import Encoder
from qkv.train.adapt import add_lora
from qkv.train.half_weights import HalfWeights, half_weights
from qkv.train.learner import Learner, lesson_of
from qkv.train.recipe import ObjectiveSection

ONE = torch.ones(())
HALVES = [torch.bfloat16, torch.float16]


def taught(run, learner: Learner, name: str, kind: torch.dtype) -> tuple[torch.Tensor, dict[str, torch.Tensor | None]]:
    """A loss and the gradients of all parameters."""
    learner.zero_grad(set_to_none=True)
    with torch.autocast("cpu", kind):
        loss = run(lesson_of(a_batch(name), CPU), ONE, ONE)
    loss.backward()
    return loss.detach(), {key: p.grad for key, p in learner.named_parameters()}


def assert_same(learner: Learner, name: str, kind: torch.dtype) -> None:
    want, gradients = taught(learner, learner, name, kind)
    loss, same = taught(HalfWeights(learner, kind), learner, name, kind)
    assert torch.equal(loss, want)
    for key, gradient in gradients.items():
        if gradient is None:
            assert same[key] is None, key
        else:
            assert gradient.isfinite().all(), key
            assert same[key].dtype == torch.float32, key
            assert same[key].is_contiguous() == gradient.is_contiguous(), key
            assert torch.equal(same[key], gradient), key


@pytest.mark.parametrize("kind", HALVES)
@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients_are_those_of_autocast(name: str, kind: torch.dtype) -> None:
    assert_same(Learner(network(*CASES[name]).float(), ObjectiveSection()).train(), name, kind)


def test_so_they_are_with_low_rank_additions() -> None:
    """What is frozen has no gradient, and nobody computes one."""
    net = network(*CASES["next token"]).float()
    add_lora(net, 2, 4.0, ["*"])
    learner = Learner(net, ObjectiveSection()).train()
    assert half_weights(learner) == {}
    assert_same(learner, "next token", torch.bfloat16)


def test_copies_are_made_of_what_linear_maps_alone_read() -> None:
    """An embedding is looked up in float32; tied to the head or not, it stays as it is."""
    learner = Learner(network(*CASES["next sentence"]).float(), ObjectiveSection())
    names = set(half_weights(learner))
    assert isinstance(learner.network, Encoder)
    assert {"network.encoder.blocks.0.attention.qkv.weight", "network.head.sentence.dense.bias"} <= names
    assert not any("embedding" in name or "norm" in name for name in names)
    assert "network.head.out.weight" not in names


def test_the_weights_themselves_are_untouched() -> None:
    learner = Learner(network(*CASES["pairs"]).float(), ObjectiveSection())
    before = {key: (p, p.detach().clone()) for key, p in learner.named_parameters()}
    taught(HalfWeights(learner, torch.bfloat16), learner, "pairs", torch.bfloat16)
    after = dict(learner.named_parameters())
    for key, (parameter, value) in before.items():
        assert after[key] is parameter
        assert torch.equal(parameter, value)
