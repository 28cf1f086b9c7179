"""int4 on the CPU: the kernel is the formula, groups round well, shapes that do not fit stay in int8."""

import pytest
import torch
from decode_models import drawn, linear
from hypothesis import given, settings
from hypothesis import strategies as st

import qkv
from qkv.decode import GenerationOptions, generate, quantize, score
from qkv.decode.cpu import int4
from qkv.decode.cpu.int4 import GROUP_SIZE, Int4Linear, to_int4
from qkv.decode.cpu.int8 import Int8Linear
from qkv.errors import QkvError, UsageError


def model(width: int = 64, *, bias: str = "none", tied: bool = True) -> qkv.Model:
    stack = qkv.StackConfig(
        vocab_size=90,
        width=width,
        layers=2,
        heads=2,
        ffn_width=2 * width,
        bias=bias,
        max_positions=64,
        init_std=0.1,
    )
    return qkv.new(qkv.Config(decoder=stack, head=qkv.HeadConfig(kind="lm", outputs=90, tied=tied)), seed=3)


# ── One linear map ───────────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.integers(1, 20), st.integers(0, 1000))
def test_no_weight_is_off_by_much_more_than_half_a_step(groups: int, outputs: int, seed: int) -> None:
    weight = drawn(seed, outputs, GROUP_SIZE * groups) * (10.0 ** drawn(seed + 1, outputs, 1))
    error = (to_int4(weight).dequantize() - weight).view(outputs, groups, GROUP_SIZE)
    spread = weight.view(outputs, groups, GROUP_SIZE)
    step = (spread.amax(-1) - spread.amin(-1)) / 15
    assert (error.square().mean(-1).sqrt() <= 0.5 * step).all()


def test_the_fit_beats_rounding_over_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = drawn(0, 64, 256)

    def squared_error() -> float:
        return float((to_int4(weight).dequantize() - weight).square().mean())

    fitted = squared_error()
    monkeypatch.setattr(int4, "REFINEMENTS", 0)
    assert fitted < 0.95 * squared_error()


@pytest.mark.parametrize("value", [0.0, 1.0, -3.0e-5])
def test_a_group_of_equal_weights_is_exact(value: float) -> None:
    weight = torch.full((16, GROUP_SIZE), value)
    torch.testing.assert_close(to_int4(weight).dequantize(), weight, rtol=2**-8, atol=0.0)


def test_large_matrices_are_quantized_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = drawn(0, 50, 64)
    whole = to_int4(weight)
    monkeypatch.setattr(int4, "MAX_ROWS_NUMEL", 7 * 64)
    assert all(torch.equal(a, b) for a, b in zip(whole, to_int4(weight), strict=True))


@pytest.mark.parametrize("rows", [1, 3, 16, 33])
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 32), (32, 5), (128, 208), (32, 1), (96, 130)])
@pytest.mark.parametrize("bias", [True, False])
def test_the_kernel_is_the_formula(rows: int, inputs: int, outputs: int, bias: bool) -> None:
    made, x = linear(inputs, outputs, bias=bias), drawn(9, rows, inputs)
    weight = to_int4(made.weight.detach()).dequantize()
    plain = x.bfloat16().float() @ weight.T + (0 if made.bias is None else made.bias.detach())
    ours = Int4Linear(made)(x)
    assert (ours.shape, ours.dtype) == (plain.shape, torch.float32)
    assert float((ours - plain).abs().max()) < 2**-7 * float(plain.abs().max())  # outputs are rounded to 8 bits
    other = Int4Linear(linear(inputs, outputs, seed=5, bias=bias))(x)
    assert float((other - plain).abs().max()) > 2**-7 * float(plain.abs().max()), "negative control"


@pytest.mark.parametrize("shape", [(4, 64), (2, 3, 64), (2, 1, 1, 64)])
def test_any_number_of_axes_goes_in(shape: tuple[int, ...]) -> None:
    made, x = linear(64, 8), drawn(3, *shape)
    assert Int4Linear(made)(x).shape == made(x).shape


def test_onto_a_stream_is_the_sum() -> None:
    made, x, stream = Int4Linear(linear(64, 8)), drawn(3, 4, 64), drawn(4, 4, 8)
    torch.testing.assert_close(made.add_to(stream, x), stream + made(x))


# ── A network ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("tied", [True, False])
def test_matrices_are_int4_and_the_head_is_int8(tied: bool) -> None:
    made = model(tied=tied)
    before = {name: p.clone() for name, p in made.network.named_parameters()}
    twin = made.quantize("int4")
    assert all(torch.equal(p, before[name]) for name, p in made.network.named_parameters())
    assert {type(m) for m in twin.network.decoder.modules() if hasattr(m, "in_features")} == {Int4Linear}
    assert isinstance(twin.network.head.out, Int8Linear)
    assert torch.equal(twin.network.embedding.token.weight, made.network.embedding.token.weight)
    assert twin.notes == []


def test_a_shape_that_does_not_fit_stays_in_int8_and_is_noted() -> None:
    made = model(width=40)  # the feed-forward has 80 hidden units
    twin = made.quantize("int4")
    assert {type(m) for m in twin.network.modules() if hasattr(m, "in_features")} == {Int8Linear}
    assert twin.notes == ["8 of 8 matrices stay in int8, because their number of inputs is not a multiple of 32"]
    assert made.quantize("int8").notes == []


@pytest.mark.parametrize("bias", ["none", "all"])
def test_scores_are_near_those_of_float32(bias: str) -> None:
    made = model(bias=bias)
    prompts, targets = [[3, 4], [5, 6]], [[7, 8, 9], [10, 3]]
    exact, rough = (score(n, prompts, targets) for n in (made.network, quantize(made.network, "int4")))
    for a, b in zip([t for row in exact for t in row], [t for row in rough for t in row], strict=True):
        assert a.logprob == pytest.approx(b.logprob, abs=0.5)
    assert generate(quantize(made.network, "int4"), prompts, GenerationOptions(max_tokens=3, beam=2))


# ── Errors ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_twice_is_refused() -> None:
    with pytest.raises(QkvError, match="already"):
        quantize(quantize(model().network, "int4"))


def test_another_device_is_refused() -> None:
    with pytest.raises(QkvError, match="int4 decoding runs on a CPU only, and this network is on meta"):
        quantize(model().network.to("meta"), "int4")


def test_an_unknown_precision_names_those_that_exist() -> None:
    with pytest.raises(UsageError, match="precision='int3': did you mean"):
        model().quantize("int3")  # type: ignore[arg-type]


def test_a_torch_without_the_kernels_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops, "aten", object())
    with pytest.raises(QkvError, match=r"no int4 kernels .* use int8 or float32"):
        Int4Linear(linear(64, 16))
