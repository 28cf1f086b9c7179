"""Hidden states of many texts in bfloat16, where that is faster."""

import numpy as np
import pytest
import torch

from qkv.blocks import HeadConfig, StackConfig
from qkv.data.objectives import FlatExamples
from qkv.models import Config, Network, build
from qkv.models.runtime import eval_mode
from qkv.tasks.run import fast_network
from qkv.tasks.run.example_batches import ExampleBatches
from qkv.tasks.text_model import TextModel


@pytest.fixture(autouse=True)
def fast_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor whose bfloat16 is twice as fast, and no limits of size."""
    monkeypatch.setattr(fast_network, "has_bfloat16_instructions", lambda: True)
    monkeypatch.setattr(fast_network, "MIN_TOKENS", 100)
    monkeypatch.setattr(fast_network, "MIN_WIDTH", 16)
    monkeypatch.setattr(fast_network, "_speedups", {})
    monkeypatch.setattr(
        fast_network, "min_seconds", lambda run, network: 1.0 if dtype_of(network) == torch.bfloat16 else 2.0
    )


def dtype_of(network: Network) -> torch.dtype:
    return next(network.parameters()).dtype


def make_batches(num_texts: int = 40, dtype: torch.dtype = torch.float32, *, exact: bool = False) -> ExampleBatches:
    torch.manual_seed(0)
    stack = StackConfig(vocab_size=30, width=16, layers=2, heads=2, ffn_width=32)
    config = Config(encoder=stack, head=HeadConfig(kind="classify", outputs=3, pool="first"))
    lengths = np.random.default_rng(0).integers(3, 9, num_texts)
    ids = np.random.default_rng(1).integers(1, 30, lengths.sum())
    model = TextModel(build(config).to(dtype), None, config)  # type: ignore[arg-type]
    return ExampleBatches(model, FlatExamples(lengths, ids), 0, exact=exact)


def test_the_head_stays_in_float32_and_outputs_are_close() -> None:
    batched, exact = make_batches(), make_batches(exact=True)
    with eval_mode(batched.network), eval_mode(exact.network):
        found, wanted = batched.outputs([3, 1, 2]), exact.outputs([3, 1, 2])
    assert dtype_of(batched.fast_network) == torch.bfloat16
    assert dtype_of(batched.network) == torch.float32
    assert found.dtype == torch.float32
    assert not torch.equal(found, wanted), "the negative control: bfloat16 was used"
    torch.testing.assert_close(found, wanted, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("case", ["exact", "few", "bfloat16", "slower", "no instructions"])
def test_otherwise_the_network_itself_computes(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if case == "slower":
        monkeypatch.setattr(fast_network, "min_seconds", lambda run, network: 1.0)
    if case == "no instructions":
        monkeypatch.setattr(fast_network, "has_bfloat16_instructions", lambda: False)
    dtype = torch.bfloat16 if case == "bfloat16" else torch.float32
    batched = make_batches(5 if case == "few" else 40, dtype, exact=case == "exact")
    assert batched.fast_network is batched.network


def test_a_tap_reads_the_network_itself() -> None:
    batched = make_batches()
    model = TextModel(batched.network, None, batched.model.config, tap=object())  # type: ignore[arg-type]
    flat = FlatExamples(batched.lengths, np.concatenate(batched.ids))
    tapped = ExampleBatches(model, flat, 0)
    assert tapped.fast_network is batched.network
    assert batched.fast_network is not batched.network


def test_weights_that_change_between_calls_are_read_again() -> None:
    batched = make_batches()
    with eval_mode(batched.network):
        before = batched.outputs([0])
    with torch.no_grad():
        for parameter in batched.network.parameters():
            parameter.mul_(1.5)
    again = ExampleBatches(batched.model, FlatExamples(batched.lengths, np.concatenate(batched.ids)), 0)
    with eval_mode(again.network):
        assert not torch.allclose(again.outputs([0]), before, rtol=0.05)


def test_the_measurement_is_made_once_for_networks_of_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Network] = []

    def seconds(run: object, network: Network) -> float:
        calls.append(network)
        return 1.0

    monkeypatch.setattr(fast_network, "min_seconds", seconds)
    for _ in range(3):
        assert make_batches().fast_network is not None
    assert len(calls) == 2
