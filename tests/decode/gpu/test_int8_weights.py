"""int8 weights for decoding on a GPU: the numbers, what they do to texts, and what is refused."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import qkv
from qkv.decode import GenerationOptions, generate, score
from qkv.decode.gpu import int8_weights as weight_int8
from qkv.decode.gpu.int8_weights import Int8Weight, quantise_weights, to_int8
from qkv.errors import QkvError
from qkv.models import Network


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 6), st.integers(1, 9), st.integers(0, 1000), st.floats(1e-3, 1e3))
def test_no_weight_is_off_by_more_than_half_a_step(outputs: int, inputs: int, seed: int, size: float) -> None:
    weight = size * torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    whole, scale = to_int8(weight)
    assert whole.dtype == torch.int8
    assert (weight - whole * scale[:, None]).abs().le(scale[:, None] * (0.5 + 1e-9)).all()


def test_a_scale_is_never_rounded_to_half_precision() -> None:
    assert to_int8(torch.ones(2, 2, dtype=torch.bfloat16))[1].dtype == torch.float32


@pytest.mark.parametrize("bias", [False, True])
def test_a_map_of_whole_numbers_is_exact(bias: bool) -> None:
    """Weights that are multiples of their scale lose nothing: what is left is the product itself."""
    linear = torch.nn.Linear(6, 4, bias=bias).double()
    with torch.no_grad():
        linear.weight.copy_(torch.randint(-126, 127, (4, 6)) / 64.0)
        linear.weight[:, 0] = 127 / 64.0
    x = torch.randn(3, 2, 6, dtype=torch.float64)
    torch.testing.assert_close(Int8Weight(linear)(x), linear(x), rtol=0, atol=1e-12)


def test_one_row_as_a_sum_is_the_same_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """What compiled steps of one row do, here without the compiler."""
    linear = torch.nn.Linear(6, 4).double()
    int8 = Int8Weight(linear)
    x = torch.randn(1, 1, 6, dtype=torch.float64)
    plain = int8(x)
    monkeypatch.setattr(weight_int8, "is_single_vector", lambda x: True)
    torch.testing.assert_close(int8(x), plain, rtol=0, atol=1e-12)


def test_the_original_stays_and_shares_nothing(network: Network) -> None:
    before = {name: p.clone() for name, p in network.named_parameters()}
    twin = quantise_weights(network)
    assert all(torch.equal(p, before[name]) for name, p in network.named_parameters())
    assert not any(isinstance(module, Int8Weight) for module in network.modules())
    assert not any(type(module) is torch.nn.Linear for module in twin.modules())
    shared = {p.data_ptr() for p in network.parameters()} & {p.data_ptr() for p in twin.parameters() if p.numel()}
    assert not shared, "training the original on does not change the copy"


def test_a_tied_head_leaves_the_embedding_exact() -> None:
    stack = qkv.StackConfig(vocab_size=30, width=16, layers=1, heads=2, ffn_width=16)
    made = qkv.new(qkv.Config(decoder=stack, head=qkv.HeadConfig(kind="lm", outputs=30, tied=True))).network
    twin = quantise_weights(made)
    assert torch.equal(twin.embedding.token.weight, made.embedding.token.weight)  # type: ignore[union-attr]
    assert isinstance(twin.head.out, Int8Weight)


def test_scores_are_near_those_of_the_original(network: Network) -> None:
    prompts, targets = [[3, 4], [5, 6]], [[7, 8, 9], [10, 3]]
    exact, rough = score(network, prompts, targets), score(quantise_weights(network), prompts, targets)
    for a, b in zip([t for row in exact for t in row], [t for row in rough for t in row], strict=True):
        assert a.logprob == pytest.approx(b.logprob, abs=0.5)


def test_it_decodes_in_half_precision(network: Network) -> None:
    twin = quantise_weights(network.bfloat16())
    assert {p.dtype for p in twin.parameters()} == {torch.bfloat16}
    assert generate(twin, [[3, 4]], GenerationOptions(max_tokens=2))


def test_a_step_of_it_is_one_graph_to_the_compiler(network: Network) -> None:
    linear = quantise_weights(network).head.out
    assert isinstance(linear, Int8Weight)
    x = torch.randn(1, 1, linear.in_features, dtype=torch.float64)
    compiled = torch.compile(linear, fullgraph=True, dynamic=False, backend="eager")
    torch.testing.assert_close(compiled(x), linear(x), rtol=0, atol=1e-12)
    torch.compiler.reset()


def test_twice_is_refused(network: Network) -> None:
    with pytest.raises(QkvError, match="already"):
        quantise_weights(quantise_weights(network))


def test_what_no_longer_holds_its_weights_is_not_written(tmp_path: Path) -> None:
    made = qkv.new(qkv.models.tables.presets.gpt2(vocab_size=30, width=16, layers=1, heads=2, positions=16))
    with pytest.raises(QkvError, match="save or export the one that it was made from"):
        qkv.store.write_model(tmp_path / "out", made.config, quantise_weights(made.network), None, "qkv")
    assert not (tmp_path / "out").exists()
