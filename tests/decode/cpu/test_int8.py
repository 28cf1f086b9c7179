"""int8 on the CPU: the original untouched, the copy near it, and refusals where it does not apply."""

import copy
import sys
from pathlib import Path

import pytest
import torch
from decode_models import drawn, linear, tiny
from hypothesis import given, settings
from hypothesis import strategies as st

import qkv
from qkv.decode import GenerationOptions, generate, quantize, score
from qkv.decode.cpu.int8 import Int8Linear, to_int8
from qkv.errors import QkvError
from qkv.models import Network
from qkv.models.tables.presets import find_preset

# ── One linear map ───────────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 70), st.integers(1, 40), st.integers(0, 1000))
def test_weights_are_off_by_half_a_step_of_their_own_output(inputs: int, outputs: int, seed: int) -> None:
    weight = drawn(seed, outputs, inputs) * (10.0 ** drawn(seed + 1, outputs, 1))  # outputs of very unequal size
    whole, scale = to_int8(weight)
    assert whole.dtype == torch.int8
    error = (whole * scale[:, None] - weight).abs()
    assert (error <= 0.5001 * scale[:, None]).all()


def test_an_output_without_weights_stays_zero() -> None:
    made = linear(8, 3)
    with torch.no_grad():
        made.weight[1] = 0.0
    out = Int8Linear(made)(drawn(5, 4, 8))
    assert torch.allclose(out[:, 1], made.bias[1].expand(4))


def by_hand(made: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """The same in plain steps: inputs to 0 … 255 with the zero among them, whole products, scales last."""
    whole, scale = to_int8(made.weight.detach())
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    step = (high - low) / 255 or 1.0
    zero = round(-low / step)
    bytes_ = (x / step).round().add(zero).clamp(0, 255)
    product = (bytes_ - zero).double() @ whole.double().T
    return (product * step * scale.double() + (0 if made.bias is None else made.bias.double())).float()


@pytest.mark.parametrize("rows", [1, 3, 16, 33])
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 32), (17, 5), (128, 200), (1, 1)])
@pytest.mark.parametrize("bias", [True, False])
def test_the_kernel_is_the_formula(rows: int, inputs: int, outputs: int, bias: bool) -> None:
    made, x = linear(inputs, outputs, bias=bias), drawn(9, rows, inputs)
    exact, ours, plain = made(x).detach(), Int8Linear(made)(x), by_hand(made, x).detach()
    size = float(exact.abs().max())
    # One input may be rounded to the other side: then a product is off by one step of it.
    assert float((ours - plain).abs().max()) < 0.02 * size
    assert float((ours - exact).abs().mean()) < 0.02 * size


def test_the_result_is_near_and_not_the_same() -> None:
    made, x = linear(64, 32), drawn(9, 5, 64)
    exact, rough = made(x), Int8Linear(made)(x)
    assert 0 < (exact - rough).abs().max() / exact.abs().max() < 0.03


@pytest.mark.parametrize("shape", [(4, 64), (2, 3, 64), (2, 1, 1, 64)])
def test_any_number_of_axes_goes_in(shape: tuple[int, ...]) -> None:
    made, x = linear(64, 8), drawn(3, *shape)
    assert Int8Linear(made)(x).shape == made(x).shape


def test_onto_a_stream_is_the_sum() -> None:
    made, x, stream = Int8Linear(linear(64, 8)), drawn(3, 4, 64), drawn(4, 4, 8)
    torch.testing.assert_close(made.add_to(stream, x), stream + made(x))


def test_without_vnni_no_sum_of_two_products_overflows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["qkv.decode.cpu.int8"], "_has_vnni", lambda: False)
    whole, _ = to_int8(drawn(0, 20, 30))
    assert int(whole.abs().max()) * 255 * 2 < 2**15


# ── A network ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_original_stays_as_it_is(network: Network) -> None:
    before = {name: p.clone() for name, p in network.named_parameters()}
    twin = quantize(network)
    assert all(torch.equal(p, before[name]) for name, p in network.named_parameters())
    assert all(p.requires_grad for p in network.parameters())
    assert not any(isinstance(module, Int8Linear) for module in network.modules())
    shared = {p.data_ptr() for p in network.parameters()} & {p.data_ptr() for p in twin.parameters() if p.numel()}
    assert not shared, "training the original on does not change the copy"


def test_every_linear_map_is_in_int8(network: Network) -> None:
    twin = quantize(network)
    assert not any(isinstance(module, torch.nn.Linear) for module in twin.modules())
    linears = sum(isinstance(module, torch.nn.Linear) for module in network.modules())
    assert sum(isinstance(module, Int8Linear) for module in twin.modules()) == linears


def test_a_tied_head_leaves_the_embedding_exact() -> None:
    stack = qkv.StackConfig(vocab_size=30, width=16, layers=1, heads=2, ffn_width=16)
    config = qkv.Config(decoder=stack, head=qkv.HeadConfig(kind="lm", outputs=30, tied=True))
    made = qkv.new(config).network
    twin = quantize(made)
    assert torch.equal(twin.embedding.token.weight, made.embedding.token.weight)
    assert isinstance(twin.head.out, Int8Linear)


@pytest.mark.parametrize("family", ["decoder", "seq2seq"])
@pytest.mark.parametrize("beam", [1, 3])
def test_texts_mostly_agree_with_float32(family: str, beam: int) -> None:
    network = tiny(family, vocab=40, seed=3).float()
    prompts = [[a, b, 5] for a in range(3, 13) for b in range(3, 8)]
    options = GenerationOptions(max_tokens=6, beam=beam)
    exact, rough = generate(network, prompts, options), generate(quantize(network), prompts, options)
    pairs = [(a, b) for x, y in zip(exact, rough, strict=True) for a, b in zip(x.ids, y.ids, strict=False)]
    assert sum(a == b for a, b in pairs) / len(pairs) > 0.7  # a random model decides by hairs; a trained one does not


def test_scores_are_near_those_of_float32(network: Network) -> None:
    prompts, targets = [[3, 4], [5, 6]], [[7, 8, 9], [10, 3]]
    exact, rough = score(network, prompts, targets), score(quantize(network), prompts, targets)
    for a, b in zip([t for row in exact for t in row], [t for row in rough for t in row], strict=True):
        assert a.logprob == pytest.approx(b.logprob, abs=0.5)


def test_an_encoder_with_a_head_of_several_layers_runs() -> None:
    stack = qkv.StackConfig(vocab_size=30, width=16, layers=2, heads=2, ffn_width=32)
    head = qkv.HeadConfig(kind="classify", outputs=3, pool="mean", dense="tanh")
    made = qkv.new(qkv.Config(encoder=stack, head=head)).network
    ids = torch.tensor([[3, 4, 5], [6, 7, 8]])
    torch.testing.assert_close(quantize(made)(ids), made(ids), atol=0.05, rtol=0.05)


def test_half_precision_weights_become_int8_in_float32() -> None:
    twin = quantize(tiny("decoder").bfloat16())
    assert {p.dtype for p in twin.parameters()} == {torch.float32}
    assert generate(twin, [[3, 4]], GenerationOptions(max_tokens=2))


def test_a_copy_of_the_copy_shares_its_weights(network: Network) -> None:
    twin = quantize(network)
    again = copy.deepcopy(twin)
    options = GenerationOptions(max_tokens=4)
    assert generate(again, [[3, 4]], options)[0].ids == generate(twin, [[3, 4]], options)[0].ids


# ── Refusals ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_twice_is_refused() -> None:
    with pytest.raises(QkvError, match="already"):
        quantize(quantize(tiny("decoder").float()))


def test_another_device_is_refused() -> None:
    with pytest.raises(QkvError, match="on a CPU only, and this network is on meta"):
        quantize(tiny("decoder").to("meta"))


@pytest.mark.parametrize("format", ["qkv", "hf", "ctranslate2", "onnx"])
def test_what_no_longer_holds_its_weights_is_not_written(format: str, tmp_path: Path) -> None:
    made = qkv.new(find_preset("gpt2", vocab_size=30, n_embd=16, n_layer=1, n_head=2, n_positions=16, eos_token_id=29))
    with pytest.raises(QkvError, match="save or export the model that it was made from"):
        qkv.store.write_model(tmp_path / "out", made.config, quantize(made.network), None, format)
    assert not (tmp_path / "out").exists()


def test_a_torch_without_the_kernels_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "fbgemm_pack_quantized_matrix")
    with pytest.raises(QkvError, match=r"no int8 kernels .* decode in float32"):
        quantize(tiny("decoder").float())
