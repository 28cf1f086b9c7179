"""Attention: the eager reference by hand, the fast kernels against it, and the traps of masked softmax.

Kernels are run on random heads here; the mask rule itself has its own file.
"""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import flex_attention

from qkv.blocks.attention import CrossAttention, SelfAttention, eager, pattern, scores, weighted_values
from qkv.blocks.cache import EncoderMemory, LayerMemory
from qkv.blocks.config import StackConfig
from qkv.blocks.kernels.choose import KERNELS, choose_kernel, prepare_mask
from qkv.blocks.kernels.prepared import KernelHints, PreparedMask
from qkv.blocks.kernels.rows import supports_rows
from qkv.blocks.kernels.sdpa import sdpa
from qkv.blocks.kernels.varlen import varlen
from qkv.blocks.mask import Mask, SequenceLayout, make_layout
from qkv.blocks.position import Rotary
from qkv.blocks.tap import LayerTap, Tap

Config = Callable[..., StackConfig]
EVERYWHERE = ["eager", "sdpa", "flex"]
DIFFERENTIABLE = ["eager", "sdpa"]  # flex has no backward on a CPU


@pytest.fixture(autouse=True)
def _untraced(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlexAttention's own formula, without tracing it anew for every mask; whole networks run it traced."""
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


def heads(
    rows: int, count: int, length: int, width: int = 8, seed: int = 0, dtype: torch.dtype = torch.float64
) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, count, length, width, generator=generator, dtype=torch.float64).to(dtype)


def over(length: int, segment: Tensor | None = None, rows: int = 2, causal: bool = False, window: int = 0) -> Mask:
    layout = make_layout(torch.zeros(rows, length), segment)
    return Mask(layout, layout, causal, window)


def run(kernel: str, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None = None) -> Tensor:
    x = torch.zeros(q.shape[0], q.shape[2], 8, dtype=q.dtype)
    prepared = prepare_mask(mask, x, kernel=kernel, bias=bias)  # type: ignore[arg-type]
    assert prepared.kernel == kernel
    attend = eager if kernel == "eager" else KERNELS[kernel]
    return attend(q, k, v, prepared, q.shape[-1] ** -0.5)


# ── The reference, by hand ───────────────────────────────────────────────────────────────────────────────────────


def test_plain_is_the_equation_written_in_loops() -> None:
    q, k, v = (heads(1, 1, 3, 4, seed) for seed in range(3))
    found = run("eager", q, k, v, over(3, rows=1, causal=True))[0, 0]
    for i in range(3):
        weights = [
            math.exp(sum(a * b for a, b in zip(q[0, 0, i], k[0, 0, j], strict=True)) / 2.0) for j in range(i + 1)
        ]
        for d in range(4):
            expected = sum(w * float(v[0, 0, j, d]) for j, w in enumerate(weights)) / sum(weights)
            assert float(found[i, d]) == pytest.approx(expected, abs=1e-14)


def test_every_row_of_weights_sums_to_one() -> None:
    q, k = heads(2, 2, 6), heads(2, 2, 6, seed=1)
    mask = over(6, torch.tensor([[1, 1, 1, 2, 2, 0], [0, 1, 1, 1, 1, 1]]), causal=True)
    sums = pattern(scores(q, k, PreparedMask(mask, "eager"), 1.0)).sum(-1)
    real = (mask.query.document_ids != 0)[:, None].expand_as(sums)
    assert torch.allclose(sums[real], torch.ones_like(sums[real]), atol=1e-14, rtol=0)
    assert (sums[~real] == 0).all()


def test_softcapping_is_the_equation_with_any_kernel(small: Config) -> None:
    torch.manual_seed(0)
    layer = SelfAttention(small(heads=1, score_cap=0.3)).double()
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    q, k, v = F.linear(x, layer.qkv.weight, layer.qkv.bias).chunk(3, dim=-1)
    raw = q @ k.transpose(1, 2) / 4.0
    expected = layer.out((0.3 * torch.tanh(raw / 0.3)).softmax(-1) @ v)
    assert not torch.allclose(expected, layer.out(raw.softmax(-1) @ v), atol=1e-3), "the cap matters"
    for kernel in EVERYWHERE:
        found = layer(x, prepare_mask(over(5), x, kernel=kernel))  # type: ignore[arg-type]
        assert torch.allclose(found, expected, atol=1e-12), kernel


def test_one_head_is_attention_without_heads(small: Config) -> None:
    """Trap of reshapes: a single head of the full width is softmax(QKᵀ/√C) V with no head axis at all."""
    torch.manual_seed(0)
    layer = SelfAttention(small(heads=1)).double()
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    q, k, v = F.linear(x, layer.qkv.weight, layer.qkv.bias).chunk(3, dim=-1)
    expected = layer.out(((q @ k.transpose(1, 2)) / 4.0).softmax(-1) @ v)
    assert torch.allclose(layer(x, prepare_mask(over(5), x)), expected, atol=1e-12)


def test_heads_are_single_heads_side_by_side(small: Config) -> None:
    torch.manual_seed(0)
    layer = SelfAttention(small()).double()
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    q, k, v = F.linear(x, layer.qkv.weight, layer.qkv.bias).chunk(3, dim=-1)
    parts = []
    for head in range(4):
        mine = slice(4 * head, 4 * head + 4)
        weights = (q[..., mine] @ k[..., mine].transpose(1, 2) / 2.0).softmax(-1)
        parts.append(weights @ v[..., mine])
    assert torch.allclose(layer(x, prepare_mask(over(5), x)), layer.out(torch.cat(parts, -1)), atol=1e-12)


@pytest.mark.parametrize("kernel", EVERYWHERE)
def test_grouped_heads_are_repeated_key_value_heads(kernel: str) -> None:
    """Query heads 0, 1 read key/value head 0 and heads 2, 3 read head 1: neighbours share, not every second one."""
    q, k, v = heads(2, 4, 5), heads(2, 2, 5, seed=1), heads(2, 2, 5, seed=2)
    mask = over(5, causal=True)
    with torch.no_grad():
        found = run(kernel, q, k, v, mask)
        expected = run("eager", q, k[:, [0, 0, 1, 1]], v[:, [0, 0, 1, 1]], mask)
    assert torch.allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("kernel", EVERYWHERE)
@pytest.mark.parametrize("causal", [True, False])
def test_a_window_is_a_band_of_a_dense_matrix(kernel: str, causal: bool) -> None:
    q, k, v = heads(2, 2, 7), heads(2, 2, 7, seed=1), heads(2, 2, 7, seed=2)
    distance = torch.arange(7)[:, None] - torch.arange(7)[None]
    band = (distance.abs() <= 2) & ((distance >= 0) if causal else True)
    expected = ((q @ k.transpose(-1, -2)) / math.sqrt(8)).masked_fill(~band, -math.inf).softmax(-1) @ v
    with torch.no_grad():
        assert torch.allclose(run(kernel, q, k, v, over(7, causal=causal, window=2)), expected, atol=1e-12)


def test_a_bias_is_added_to_the_scores_before_the_softmax() -> None:
    q, k, v = heads(1, 2, 3), heads(1, 2, 3, seed=1), heads(1, 2, 3, seed=2)
    bias = heads(1, 2, 3, 3, seed=3)
    expected = (q @ k.transpose(-1, -2) / math.sqrt(8) + bias).softmax(-1) @ v
    for kernel in EVERYWHERE:
        with torch.no_grad():
            assert torch.allclose(run(kernel, q, k, v, over(3, rows=1), bias), expected, atol=1e-12)


def test_scores_may_go_without_the_root_of_the_width(small: Config) -> None:
    assert SelfAttention(small()).scale == 0.5
    assert SelfAttention(small(score_scale="none")).scale == 1.0


def test_queries_and_keys_are_normed_before_they_turn(small: Config) -> None:
    torch.manual_seed(0)
    layer = SelfAttention(small(qk_norm="head", norm="rmsnorm", norm_affine="gain", position="rotary")).double()
    assert layer.q_norm is not None
    assert layer.k_norm is not None
    with torch.no_grad():
        layer.q_norm.weight.copy_(torch.rand(4) + 0.5)
        layer.k_norm.weight.copy_(torch.rand(4) + 0.5)
    x = torch.randn(1, 3, 16, dtype=torch.float64)
    rotary = Rotary(torch.arange(3)[None], 4, 10_000.0, None, torch.float64)
    q, k, v = (part.view(1, 3, 4, 4).transpose(1, 2) for part in layer.qkv(x).chunk(3, -1))

    def normed(h: Tensor, gain: Tensor) -> Tensor:
        return h / (h.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * gain

    q, k = rotary.rotate(normed(q, layer.q_norm.weight)), rotary.rotate(normed(k, layer.k_norm.weight))
    expected = layer.out(((q @ k.transpose(-1, -2) / 2).softmax(-1) @ v).transpose(1, 2).flatten(2))
    assert torch.allclose(layer(x, prepare_mask(over(3, rows=1), x), rotary), expected, atol=1e-12)


def test_cross_attention_takes_queries_here_and_keys_and_values_there(small: Config) -> None:
    torch.manual_seed(0)
    layer = CrossAttention(small(qk_norm="head")).double()
    x, source = torch.randn(2, 3, 16, dtype=torch.float64), torch.randn(2, 5, 16, dtype=torch.float64)
    there, here = make_layout(torch.zeros(2, 5)), make_layout(torch.zeros(2, 3))
    k, v = (part.view(2, 5, 4, 4).transpose(1, 2) for part in layer.kv(source).chunk(2, -1))
    q = layer.q(x).view(2, 3, 4, 4).transpose(1, 2)
    q, k = F.layer_norm(q, (4,)), F.layer_norm(k, (4,))
    expected = layer.out(((q @ k.transpose(-1, -2) / 2).softmax(-1) @ v).transpose(1, 2).flatten(2))
    found = layer(x, LayerMemory(EncoderMemory(source, there), 0, prepare_mask(Mask(here, there), x)))
    assert torch.allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("beams", [1, 2, 3])
def test_the_beams_of_a_source_share_its_keys(small: Config, beams: int) -> None:
    torch.manual_seed(0)
    layer = CrossAttention(small()).double()
    x, source = torch.randn(2 * beams, 3, 16, dtype=torch.float64), torch.randn(2, 5, 16, dtype=torch.float64)

    def attend(x: Tensor, source: Tensor) -> Tensor:
        there, here = make_layout(torch.zeros(len(source), 5)), make_layout(torch.zeros(len(source), 3))
        return layer(x, LayerMemory(EncoderMemory(source, there), 0, prepare_mask(Mask(here, there), x[: len(source)])))

    expected = attend(x, source.repeat_interleave(beams, 0))
    assert torch.allclose(attend(x, source), expected, atol=1e-12)


def test_a_change_of_the_scores_changes_the_output(small: Config) -> None:
    """A change to 0 makes every weight equal, so that the result is the mean of the values."""
    torch.manual_seed(0)
    layer, x = SelfAttention(small()).double().eval(), torch.randn(2, 3, 16, dtype=torch.float64)
    tap = LayerTap(Tap(change={"decoder.0.scores": torch.zeros_like}), "decoder.0")
    _, _, v = layer.qkv(x).split(layer.split_sizes, -1)
    expected = layer.out(v.mean(1, keepdim=True).expand(-1, 3, -1))
    mask = prepare_mask(over(3), x)
    assert torch.allclose(layer(x, mask, tap=tap), expected, atol=1e-12)
    assert not torch.allclose(layer(x, mask), expected, atol=1e-3)


# ── Trap 1: a query that may see nothing ─────────────────────────────────────────────────────────────────────────

BLIND = torch.tensor([[0, 0, 0, 0], [0, 1, 1, 0]])


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kernel", EVERYWHERE)
def test_a_fully_masked_query_gets_zeros(kernel: str, causal: bool, biased: bool) -> None:
    q, k, v = heads(2, 2, 4), heads(2, 2, 4, seed=1), heads(2, 2, 4, seed=2)
    bias = heads(1, 2, 4, 4, seed=3) if biased else None
    with torch.no_grad():
        out = run(kernel, q, k, v, over(4, BLIND, causal=causal), bias)
    hole = (BLIND == 0)[:, None, :, None].expand_as(out)
    assert (out[hole] == 0.0).all()
    assert out[~hole].isfinite().all()
    assert (out[~hole] != 0.0).all()


@pytest.mark.parametrize("kernel", DIFFERENTIABLE)
def test_a_fully_masked_query_has_finite_gradients(kernel: str) -> None:
    parts = [heads(2, 2, 4, seed=seed).requires_grad_() for seed in range(3)]
    run(kernel, *parts, over(4, BLIND, causal=True)).square().sum().backward()
    for part in parts:
        assert part.grad is not None
        assert part.grad.isfinite().all()
        assert (part.grad[0] == 0.0).all()
        assert (part.grad[1] != 0.0).any()


def test_sdpa_is_never_given_a_row_without_a_key() -> None:
    """Some of its kernels return NaN for such a row: a fully masked query is shown all keys, and its output dropped."""
    for bias in (None, heads(1, 2, 4, 4, seed=3)):
        prepared = prepare_mask(
            over(4, BLIND, causal=True), torch.zeros(2, 4, 8, dtype=torch.float64), kernel="sdpa", bias=bias
        )
        assert prepared.attn_mask is not None
        assert (prepared.attn_mask > -math.inf).any(-1).all()


def test_a_window_that_reaches_no_key_leaves_a_query_fully_masked() -> None:
    """Only positions far apart: the segments agree, and still nothing is seen."""
    query, key = (
        SequenceLayout(torch.ones(1, 2).long(), torch.tensor([[50, 3]])),
        SequenceLayout(None, torch.arange(4)[None]),
    )
    q, k = heads(1, 1, 2), heads(1, 1, 4, seed=1)
    for kernel in EVERYWHERE:
        with torch.no_grad():
            out = run(kernel, q, k, k, Mask(query, key, window=2))
        assert (out[0, 0, 0] == 0.0).all()
        assert (out[0, 0, 1] != 0.0).all()


# ── Trap 2: NaN where nobody may look ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kernel", EVERYWHERE)
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_poison_in_padded_tokens_changes_no_other_output(small: Config, kernel: str, poison: float) -> None:
    torch.manual_seed(0)
    layer = SelfAttention(small()).double()
    segment = torch.tensor([[1, 1, 1, 0], [0, 0, 1, 1]])
    x = torch.randn(2, 4, 16, dtype=torch.float64)
    poisoned = x.masked_fill((segment == 0)[:, :, None], poison)
    prepared = prepare_mask(over(4, segment), x, kernel=kernel)  # type: ignore[arg-type]
    with torch.no_grad():
        clean, found = layer(x, prepared), layer(poisoned, prepared)
    assert torch.equal(found[segment != 0], clean[segment != 0])


@pytest.mark.parametrize("kernel", EVERYWHERE)
def test_poison_in_a_padded_source_changes_no_output(small: Config, kernel: str) -> None:
    torch.manual_seed(0)
    layer = CrossAttention(small()).double()
    segment = torch.tensor([[1, 1, 0, 0, 0], [0, 1, 1, 1, 1]])
    x, source = torch.randn(2, 3, 16, dtype=torch.float64), torch.randn(2, 5, 16, dtype=torch.float64)
    poisoned = source.masked_fill((segment == 0)[:, :, None], math.nan)
    there = make_layout(torch.zeros(2, 5), segment)
    prepared = prepare_mask(Mask(make_layout(torch.zeros(2, 3)), there), x, kernel=kernel)  # type: ignore[arg-type]
    with torch.no_grad():
        clean, found = (
            layer(x, LayerMemory(EncoderMemory(vectors, there), 0, prepared)) for vectors in (source, poisoned)
        )
    assert clean.isfinite().all()
    assert torch.equal(found, clean)


def test_without_blanking_the_poison_would_spread() -> None:
    """The negative control: a weight of exactly zero times NaN is NaN, in torch's kernel too."""
    q, k, v = heads(1, 1, 3), heads(1, 1, 3, seed=1), heads(1, 1, 3, seed=2)
    segment = torch.tensor([[1, 1, 0]])
    v[:, :, 2] = math.nan
    assert run("sdpa", q, k, v, over(3, segment, rows=1))[0, 0, :2].isnan().all()
    blank = make_layout(torch.zeros(1, 3), segment).zero_padding
    k, v = blank(k[:, 0])[:, None], blank(v[:, 0])[:, None]
    assert run("sdpa", q, k, v, over(3, segment, rows=1)).isfinite().all()


# ── Trap 19: low precision ───────────────────────────────────────────────────────────────────────────────────────


def test_a_long_row_of_weights_sums_to_one_in_bfloat16() -> None:
    """8,192 equal keys: summed in bfloat16 the weights would stop growing long before 1."""
    q, k = torch.zeros(1, 1, 1, 8, dtype=torch.bfloat16), heads(1, 1, 8192, dtype=torch.bfloat16)
    mask = Mask(SequenceLayout(None, torch.zeros(1, 1).long()), SequenceLayout(None, torch.arange(8192)[None]))
    weights = pattern(scores(q, k, PreparedMask(mask, "eager"), 1.0))
    assert weights.dtype == torch.float32
    assert float(weights.sum()) == pytest.approx(1.0, abs=1e-5)
    low = torch.full((8192,), 1 / 8192, dtype=torch.bfloat16)
    running = torch.zeros((), dtype=torch.bfloat16)
    for part in low[:2048]:
        running = running + part
    assert float(running) < 0.2, "the negative control: in bfloat16 such a sum stalls"


@pytest.mark.parametrize("kernel", EVERYWHERE)
def test_the_softmax_of_a_bfloat16_model_is_as_good_as_its_inputs(kernel: str) -> None:
    """Ones as values: the output is the sum of the weights, and may be off by the output's own rounding alone."""
    q, k = heads(1, 2, 4, dtype=torch.bfloat16), heads(1, 2, 512, seed=1, dtype=torch.bfloat16)
    mask = Mask(
        SequenceLayout(None, torch.arange(508, 512)[None]), SequenceLayout(None, torch.arange(512)[None]), causal=True
    )
    with torch.no_grad():
        sums = run(kernel, q, k, torch.ones_like(k), mask)
    assert float((sums.float() - 1).abs().max()) <= 2**-8


@pytest.mark.parametrize("kernel", EVERYWHERE)
def test_bfloat16_attention_is_near_float32(kernel: str) -> None:
    parts = [heads(1, 2, 64, seed=seed, dtype=torch.bfloat16) for seed in range(3)]
    mask = over(64, rows=1, causal=True)
    with torch.no_grad():
        low = run(kernel, *parts, mask)
        exact = run("eager", *(part.float() for part in parts), mask)
    assert low.dtype == torch.bfloat16
    assert float((low.float() - exact).abs().max()) < 0.02


# ── Dropout ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kernel", DIFFERENTIABLE)
def test_dropout_of_weights_acts_in_training_alone(small: Config, kernel: str) -> None:
    torch.manual_seed(0)
    layer = SelfAttention(small(attention_dropout=0.5)).double()
    x = torch.randn(2, 6, 16, dtype=torch.float64)
    prepared = prepare_mask(over(6), x, kernel=kernel, dropout=0.5)  # type: ignore[arg-type]
    assert prepared.kernel == kernel
    assert not torch.equal(layer.train()(x, prepared), layer(x, prepared))
    assert torch.equal(layer.eval()(x, prepared), layer(x, prepared))


def test_dropout_keeps_the_mean() -> None:
    """Kept weights are scaled up: with values of one, outputs scatter around one."""
    torch.manual_seed(0)
    q, v = heads(1, 64, 32), torch.ones(1, 64, 32, 1, dtype=torch.float64)
    prepared = prepare_mask(over(32, rows=1), torch.zeros(1, 32, 8), dropout=0.25)
    for kernel in (eager, sdpa):
        out = kernel(q, q, v, prepared, 1.0, 0.25)
        assert float(out.std()) > 0.05
        assert float(out.mean()) == pytest.approx(1.0, abs=0.03)


# ── Which kernel runs ────────────────────────────────────────────────────────────────────────────────────────────


def test_kernels_that_cannot_drop_out_give_way() -> None:
    layout = make_layout(torch.zeros(1, 3), torch.ones(1, 3).long())
    mask, x = Mask(layout, layout), torch.zeros(1, 3, 8)
    assert prepare_mask(mask, x, kernel="flex", dropout=0.1).kernel == "sdpa"
    assert prepare_mask(mask, x, kernel="varlen", dropout=0.1).kernel == "sdpa"
    assert prepare_mask(mask, x, kernel="varlen", bias=torch.zeros(1, 2, 3, 3)).kernel == "sdpa"
    assert prepare_mask(mask, x, kernel="flex", bias=torch.zeros(1, 2, 3, 3)).kernel == "flex"


class OnGpu:
    """As much of a tensor on a GPU as the choice of a kernel looks at."""

    is_cuda = True

    def __init__(self, dtype: torch.dtype, length: int = 1024) -> None:
        self.dtype, self.shape = dtype, (1, length, 8)


@pytest.mark.parametrize(
    ("dtype", "most", "bias", "dropout", "kernel"),
    [
        (torch.bfloat16, 3, None, 0.0, "varlen"),
        (torch.float16, 3, None, 0.0, "varlen"),
        (torch.float32, 3, None, 0.0, "sdpa"),
        (torch.bfloat16, 0, None, 0.0, "sdpa"),
        (torch.bfloat16, 3, torch.zeros(1, 2, 3, 3), 0.0, "sdpa"),
        (torch.bfloat16, 3, None, 0.1, "sdpa"),
    ],
)
def test_packed_rows_in_half_precision_on_a_gpu_take_the_variable_length_kernel(
    dtype: torch.dtype, most: int, bias: Tensor | None, dropout: float, kernel: str
) -> None:
    layout = make_layout(torch.zeros(1, 3), torch.ones(1, 3).long())
    hints = KernelHints(most)
    assert choose_kernel(Mask(layout, layout), OnGpu(dtype), bias, dropout, hints) == kernel  # type: ignore[arg-type]
    short = OnGpu(dtype, 512)  # where a mask over all of the row costs less
    assert choose_kernel(Mask(layout, layout), short, bias, dropout, hints) == "sdpa"  # type: ignore[arg-type]
    assert choose_kernel(Mask(layout, layout), torch.zeros(1, 1024, 8, dtype=dtype), bias, dropout, hints) == "sdpa"


# ── The variable-length kernel, which a CPU does not have ────────────────────────────────────────────────────────


def slow_varlen(
    q: Tensor, k: Tensor, v: Tensor, ends_q: Tensor, ends_k: Tensor, most_q: int, most_k: int, **options: object
) -> Tensor:
    """What torch says that `varlen_attn` does: attention inside each document, the window aligned at their ends."""
    left, right = options["window_size"]  # type: ignore[misc]
    out = torch.zeros_like(q)
    for n in range(len(ends_q) - 1):
        mine, theirs = slice(int(ends_q[n]), int(ends_q[n + 1])), slice(int(ends_k[n]), int(ends_k[n + 1]))
        a, b, c = (t.transpose(0, 1) for t in (q[mine], k[theirs], v[theirs]))  # (H, T, D)
        assert a.shape[1] <= most_q
        assert b.shape[1] <= most_k
        if not a.shape[1] or not b.shape[1]:
            continue
        i = torch.arange(a.shape[1])[:, None] + b.shape[1] - a.shape[1]
        j = torch.arange(b.shape[1])[None]
        see = ((j >= i - left) | (left < 0)) & ((j <= i + right) | (right < 0))
        weights = (a @ b.transpose(1, 2) * options["scale"]).masked_fill(~see, -math.inf)
        out[mine] = weighted_values(pattern(weights)[None], c[None], q.dtype)[0].transpose(0, 1)
    return out


@pytest.mark.parametrize("window", [0, 1])
@pytest.mark.parametrize("causal", [False, True])
def test_variable_length_rows_are_laid_out_and_gathered_again(
    monkeypatch: pytest.MonkeyPatch, causal: bool, window: int
) -> None:
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", slow_varlen)
    segment = torch.tensor([[1, 1, 2, 2, 2, 0], [1, 1, 1, 1, 1, 1], [1, 2, 2, 3, 0, 0]])
    layout = make_layout(torch.zeros(3, 6), segment)
    mask = Mask(layout, layout, causal, window)
    q, k, v = heads(3, 4, 6), heads(3, 2, 6, seed=1), heads(3, 2, 6, seed=2)
    hints = KernelHints(max_documents=3)
    prepared = prepare_mask(mask, torch.zeros(3, 6, 8), kernel="varlen", query_hints=hints, key_hints=hints)
    assert torch.allclose(varlen(q, k, v, prepared, 0.3), eager(q, k, v, PreparedMask(mask, "eager"), 0.3), atol=1e-12)


def test_variable_length_cross_attention_pairs_each_text_with_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", slow_varlen)
    target = make_layout(torch.zeros(2, 4), torch.tensor([[1, 2, 2, 0], [1, 1, 0, 0]]))
    source = make_layout(torch.zeros(2, 5), torch.tensor([[1, 1, 1, 2, 0], [1, 2, 2, 2, 2]]))
    mask = Mask(target, source)
    q, k, v = heads(2, 2, 4), heads(2, 2, 5, seed=1), heads(2, 2, 5, seed=2)
    hints = KernelHints(max_documents=2)
    prepared = prepare_mask(mask, torch.zeros(2, 4, 8), kernel="varlen", query_hints=hints, key_hints=hints)
    assert torch.allclose(varlen(q, k, v, prepared, 0.3), eager(q, k, v, PreparedMask(mask, "eager"), 0.3), atol=1e-12)


def test_variable_length_rows_without_padding_need_no_hole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", slow_varlen)
    mask = over(4, causal=True)
    q = heads(2, 2, 4)
    prepared = prepare_mask(mask, torch.zeros(2, 4, 8), kernel="varlen")
    assert torch.allclose(varlen(q, q, q, prepared, 0.3), eager(q, q, q, PreparedMask(mask, "eager"), 0.3), atol=1e-12)


# ── Short texts on a CPU ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_many_short_texts_are_the_reference_forwards_and_backwards(
    causal: bool, biased: bool, padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(F, "scaled_dot_product_attention", None)  # nobody calls it
    draw = torch.Generator().manual_seed(4)
    tensors = [torch.randn(16, 4, 9, 8, generator=draw, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    q, k, v = tensors
    ids = torch.zeros(16, 9, dtype=torch.long)
    segment = (torch.arange(9) < torch.arange(16)[:, None]).long() if padded else None  # the first text is empty
    layout = make_layout(ids, segment)
    bias = torch.randn(1, 4, 9, 9, generator=draw, dtype=torch.float64, requires_grad=True) if biased else None
    mask, x = Mask(layout, layout, causal=causal), torch.zeros(16, 9, 32, dtype=torch.float64)
    prepared = prepare_mask(mask, x, kernel="sdpa", bias=bias)
    assert supports_rows(q, k, prepared.attn_mask)
    assert not supports_rows(q[:8], k[:8], prepared.attn_mask)  # few
    outs = [sdpa(q, k, v, prepared, 0.3), eager(q, k, v, PreparedMask(mask, "eager", bias), 0.3)]
    wanted = tensors if bias is None else [*tensors, bias]
    found = [torch.autograd.grad(out.square().sum(), wanted, retain_graph=True) for out in outs]
    torch.testing.assert_close(*outs, rtol=1e-12, atol=1e-14)
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
