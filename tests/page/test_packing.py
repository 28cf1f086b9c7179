"""Packed arrays come back: exactly, or within the stated rounding."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from qkv.page import SIGNED_ERROR, WEIGHT_ERROR, pack, pack_signed, pack_weights, unpack

SHAPES = array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5)


@given(arrays(np.float32, SHAPES, elements=st.floats(width=32, allow_nan=False)))
def test_float32_is_exact(values: np.ndarray) -> None:
    packed = pack(values)
    assert packed["shape"] == list(values.shape)
    np.testing.assert_array_equal(unpack(packed), values)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64])
def test_integers_are_exact(dtype: type) -> None:
    values = np.arange(24, dtype=dtype).reshape(2, 3, 4)
    np.testing.assert_array_equal(unpack(pack(values)), values)


@given(arrays(np.float64, SHAPES, elements=st.floats(0, 1)))
def test_weights_are_within_the_stated_rounding(weights: np.ndarray) -> None:
    error = np.abs(unpack(pack_weights(weights)) - weights)
    assert (error <= np.sqrt(weights) / 255 + 1 / (4 * 255**2) + 1e-12).all()
    assert (error <= WEIGHT_ERROR + 1e-12).all()


@given(arrays(np.float64, SHAPES, elements=st.floats(-1e6, 1e6)))
def test_signed_numbers_are_within_the_stated_rounding(values: np.ndarray) -> None:
    packed = pack_signed(values)
    error = np.abs(unpack(packed) - values) / packed["size"]
    assert (error <= np.sqrt(np.abs(values) / packed["size"]) / 127 + 1 / (4 * 127**2) + 1e-9).all()
    assert (error <= SIGNED_ERROR + 1e-9).all()


def test_a_uniform_pattern_over_many_keys_does_not_vanish() -> None:
    """On a linear scale of 8 bits, 1/600 would become 0."""
    assert unpack(pack_weights(np.full(600, 1 / 600))).sum() == pytest.approx(1.0, abs=0.1)
