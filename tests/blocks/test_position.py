"""Positions: each kind against its formula in slow plain Python, and the property that it is chosen for."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.blocks.config import RotaryScaling, StackConfig
from qkv.blocks.parts import make_part
from qkv.blocks.position import (
    Rotary,
    grid_positions,
    grid_sinusoids,
    scale_frequencies,
    sinusoids,
    t5_bucket,
)
from qkv.blocks.position import alibi_slopes as slopes_on

EXAMPLES = settings(max_examples=50, deadline=None, derandomize=True)


# ── Sinusoids ────────────────────────────────────────────────────────────────────────────────────────────────────


def sinusoid(position: int, i: int, width: int) -> float:
    """PE(p, 2i) = sin(p / 10000^(2i/C)), PE(p, 2i + 1) = cos of the same."""
    angle = position / 10_000 ** ((i - i % 2) / width)
    return math.sin(angle) if i % 2 == 0 else math.cos(angle)


def test_sinusoids_are_the_formula_of_2017() -> None:
    positions = [0, 1, 2, 99, 5000]
    found = sinusoids(torch.tensor([positions]), 6)[0]
    for row, position in zip(found, positions, strict=True):
        assert row.tolist() == pytest.approx([sinusoid(position, i, 6) for i in range(6)], abs=1e-12)


def test_split_sinusoids_are_the_same_numbers_sines_first() -> None:
    position = torch.tensor([[0, 3, 7]])
    woven, split = sinusoids(position, 8), sinusoids(position, 8, split=True)
    assert torch.equal(split, torch.cat([woven[..., 0::2], woven[..., 1::2]], dim=-1))


# ── Rotary ───────────────────────────────────────────────────────────────────────────────────────────────────────


def turn(x: torch.Tensor, position: int, width: int = 8, **options: object) -> torch.Tensor:
    base, scaling = options.get("base", 10_000.0), options.get("scaling")
    rotary = Rotary(torch.tensor([[position]]), width, base, scaling, torch.float64)  # type: ignore[arg-type]
    return rotary.rotate(x.view(1, 1, 1, -1)).flatten()


@given(st.integers(0, 4000), st.integers(0, 4000), st.integers(0, 2000))
@EXAMPLES
def test_a_rotary_score_depends_on_the_distance_alone(query: int, key: int, shift: int) -> None:
    generator = torch.Generator().manual_seed(query)
    q, k = torch.randn(2, 8, dtype=torch.float64, generator=generator)
    here = turn(q, query) @ turn(k, key)
    there = turn(q, query + shift) @ turn(k, key + shift)
    assert float(here) == pytest.approx(float(there), abs=1e-10)


def test_a_rotary_score_does_depend_on_the_distance() -> None:
    q, k = torch.randn(2, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert abs(float(turn(q, 5) @ turn(k, 3) - turn(q, 5) @ turn(k, 2))) > 1e-3


def test_rotary_turns_the_pair_of_first_and_second_half() -> None:
    x = torch.arange(1.0, 7.0, dtype=torch.float64)
    found = turn(x, 3, 6)
    for i in range(3):
        angle = 3 * 10_000.0 ** (-2 * i / 6)
        a, b = float(x[i]), float(x[i + 3])
        assert float(found[i]) == pytest.approx(a * math.cos(angle) - b * math.sin(angle), abs=1e-12)
        assert float(found[i + 3]) == pytest.approx(b * math.cos(angle) + a * math.sin(angle), abs=1e-12)


def test_partial_rotary_leaves_the_rest_alone() -> None:
    x = torch.randn(8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = turn(x, 5, 4)
    assert torch.equal(found[4:], x[4:])
    assert torch.equal(found[:4], turn(x[:4], 5, 4))
    assert not torch.equal(found[:4], x[:4])


def test_position_zero_turns_nothing() -> None:
    x = torch.randn(8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(turn(x, 0), x)


def test_linear_scaling_is_division_of_the_positions() -> None:
    x = torch.randn(8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scaled = turn(x, 12, scaling=RotaryScaling(kind="linear", factor=4.0))
    assert torch.allclose(scaled, turn(x, 3), atol=1e-12)


def llama3_frequency(frequency: float, factor: float, low: float, high: float, original: int) -> float:
    """As Llama 3.1's reference has it: by wavelength, in three cases."""
    wavelength = 2 * math.pi / frequency
    if wavelength < original / high:
        return frequency
    if wavelength > original / low:
        return frequency / factor
    smooth = (original / wavelength - low) / (high - low)
    return (1 - smooth) * frequency / factor + smooth * frequency


def test_llama3_scaling_leaves_fast_turns_slows_slow_ones_and_blends_between() -> None:
    scaling = RotaryScaling(
        kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_positions=8192
    )
    frequencies = [500_000.0 ** (-2 * i / 128) for i in range(64)]
    expected = [llama3_frequency(f, 8.0, 1.0, 4.0, 8192) for f in frequencies]
    found = scale_frequencies(torch.tensor(frequencies, dtype=torch.float64), scaling, 500_000.0).tolist()
    assert found == pytest.approx(expected, rel=1e-12)
    ratios = [f / e for f, e in zip(frequencies, expected, strict=True)]
    assert ratios[0] == 1.0, "the fastest is left alone"
    assert ratios[-1] == 8.0, "the slowest is slowed by the whole factor"
    assert any(1.01 < ratio < 7.99 for ratio in ratios), "and some lie between"


def test_yarn_keeps_fast_turns_slows_slow_ones_and_blends_by_index() -> None:
    """Peng et al. 2023, with the bounds of the ramp as whole indices."""
    count, base, original, factor = 64, 10_000.0, 4096, 8.0
    scaling = RotaryScaling(kind="yarn", factor=factor, original_max_positions=original, beta_fast=32.0, beta_slow=1.0)
    frequencies = [base ** (-i / count) for i in range(count)]
    rotations = [original * frequency / (2 * math.pi) for frequency in frequencies]
    first = max(i for i in range(count) if rotations[i] >= 32.0)
    last = min(i for i in range(count) if rotations[i] <= 1.0)
    ramp = [min(max((i - first) / (last - first), 0.0), 1.0) for i in range(count)]
    expected = [f * (1 - r) + f / factor * r for f, r in zip(frequencies, ramp, strict=True)]
    found = scale_frequencies(torch.tensor(frequencies, dtype=torch.float64), scaling, base).tolist()
    assert found == pytest.approx(expected, rel=1e-9)
    assert found[0] == frequencies[0]
    assert found[-1] == pytest.approx(frequencies[-1] / factor)
    assert 0.0 < ramp[(first + last) // 2] < 1.0


def test_rotary_tables_keep_their_precision_in_a_low_precision_model() -> None:
    """Trap 18: at position 16,000 a bfloat16 angle would be off by whole turns."""
    position = torch.tensor([[16_000]])
    low, high = (Rotary(position, 64, 10_000.0, None, dtype) for dtype in (torch.bfloat16, torch.float64))
    assert low.cos.dtype == torch.float32
    assert float((low.cos.double() - high.cos).abs().max()) < 1e-6
    angles = [16_000 * 10_000.0 ** (-2 * i / 64) for i in range(32)]
    rounded = torch.tensor(angles).bfloat16().double().cos()
    assert float((rounded - high.cos.flatten()[:32]).abs().max()) > 0.5, (
        "the negative control: rounded angles are useless"
    )


# ── ALiBi ────────────────────────────────────────────────────────────────────────────────────────────────────────


def alibi_slopes(heads: int) -> list[float]:
    return slopes_on(heads, torch.device("cpu")).tolist()


def test_alibi_slopes_for_eight_heads_are_the_published_ones() -> None:
    assert alibi_slopes(8) == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]


def test_alibi_slopes_for_twelve_heads_fill_up_from_sixteen() -> None:
    """The paper's code: those of 8 heads, then every second of those of 16."""
    extra = [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]
    assert alibi_slopes(12) == pytest.approx(alibi_slopes(8) + extra, rel=1e-15)


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 16, 20])
def test_alibi_has_a_slope_for_every_head(heads: int) -> None:
    slopes = alibi_slopes(heads)
    assert len(slopes) == heads
    assert len(set(slopes)) == heads
    assert all(0 < slope < 1 for slope in slopes)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_alibi_bias_falls_with_distance(small: Callable[..., StackConfig], dtype: torch.dtype) -> None:
    bias = make_part("position", small(position="alibi", heads=12, width=24), causal=True)(
        torch.tensor([[5, 6]]), torch.tensor([[3, 5, 6]]), dtype
    )
    assert bias.shape == (1, 12, 2, 3)
    assert bias.dtype == torch.promote_types(dtype, torch.float32)
    for head, slope in enumerate(alibi_slopes(12)):
        rounding = 1e-15 if dtype == torch.float64 else 1e-6
        assert bias[0, head, 0].tolist() == pytest.approx([-2 * slope, 0.0, -slope], rel=rounding)
        assert bias[0, head, 1].tolist() == pytest.approx([-3 * slope, -slope, 0.0], rel=rounding)


# ── T5 buckets ───────────────────────────────────────────────────────────────────────────────────────────────────


def bucket_of(distance: int, buckets: int, longest: int, causal: bool) -> int:
    """One distance at a time, as the paper tells it: near ones have a bucket each, far ones share logarithmically."""
    first = 0
    if causal:
        distance = max(0, -distance)
    else:
        buckets //= 2
        if distance > 0:
            first = buckets
        distance = abs(distance)
    exact = buckets // 2
    if distance < exact:
        return first + distance
    share = math.log(distance / exact) / math.log(longest / exact)
    return first + min(buckets - 1, exact + int(share * (buckets - exact) + 1e-6))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("buckets", "longest"), [(32, 128), (8, 20), (4, 9)])
def test_t5_buckets_are_the_slow_ones(causal: bool, buckets: int, longest: int) -> None:
    distances = list(range(-300, 301))
    found = t5_bucket(torch.tensor(distances), buckets, longest, causal).tolist()
    assert found == [bucket_of(d, buckets, longest, causal) for d in distances]
    assert set(found) == set(range(buckets)) - (set() if causal else {buckets // 2}), "0 is the bucket of distance 0"


def test_t5_bias_reads_the_table_by_bucket(small: Callable[..., StackConfig]) -> None:
    torch.manual_seed(0)
    bias = make_part("position", small(position="t5"), causal=True)
    assert bias.table is not None
    found = bias(torch.tensor([[40]]), torch.tensor([[0, 39, 40]]))
    assert found.shape == (1, 4, 1, 3)
    for j, key in enumerate((0, 39, 40)):
        assert torch.equal(found[0, :, 0, j], bias.table.weight[bucket_of(key - 40, 32, 128, True)])


# ── Grids ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_grid_is_read_row_by_row() -> None:
    assert grid_positions(2, 3).tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]


def test_grid_sinusoids_are_those_of_the_row_and_of_the_column() -> None:
    cells = grid_positions(3, 5)
    found = grid_sinusoids(cells, 8)
    assert torch.equal(found[:, :4], sinusoids(cells[:, 0], 4))
    assert torch.equal(found[:, 4:], sinusoids(cells[:, 1], 4))


def test_rotary_scores_of_a_grid_depend_on_both_distances_alone() -> None:
    """Moving query and key by the same rows and columns changes no score; moving one of them does."""
    q, k = torch.randn(2, 1, 1, 1, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def score(query: list[int], key: list[int]) -> float:
        def rotate(x: torch.Tensor, cell: list[int]) -> torch.Tensor:
            return Rotary.of_grid(torch.tensor([[cell]]), 16, 100.0, torch.float64).rotate(x)

        return float((rotate(q, query) * rotate(k, key)).sum())

    assert score([2, 5], [1, 3]) == pytest.approx(score([9, 6], [8, 4]), abs=1e-12)
    assert abs(score([2, 5], [1, 3]) - score([3, 5], [1, 3])) > 1e-3
    assert abs(score([2, 5], [1, 3]) - score([2, 6], [1, 3])) > 1e-3
    assert score([0, 0], [0, 0]) == pytest.approx(float((q * k).sum()), abs=1e-12)
