"""Weights of other encodings as Q8_0: the same where they can be, else never farther off than by rounding."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from corral.gguf.ggml_type import GGML_TYPES
from corral.tuning.q8_0 import ENCODABLE, N_WEIGHTS, encode, fit

EXACT = [Type.Q4_0, Type.Q5_0, Type.IQ4_NL]
FITTED = [Type.Q4_1, Type.Q5_1, Type.Q4_K, Type.Q5_K]
N_SCALES = {Type.Q4_0: 1, Type.Q5_0: 1, Type.IQ4_NL: 1}  # others have two
MAX_F16 = 65504.0

halves = st.floats(width=16, allow_nan=False, allow_infinity=False)
levels = arrays(np.uint8, (N_WEIGHTS, 1), elements=st.integers(0, 31))


def test_all_types_are_looked_at():
    assert sorted(ENCODABLE) == sorted(EXACT + FITTED)


@pytest.mark.parametrize("type", EXACT, ids=lambda t: t.name)
def test_whole_numbers_times_a_scale_stay_as_they_are(type):
    blocks = random_blocks(type, 500)
    assert np.array_equal(as_numbers(encode(type, blocks)), dequantize(blocks, type).reshape(-1))


@pytest.mark.parametrize("type", FITTED, ids=lambda t: t.name)
def test_offsets_are_met_better_than_by_rounding(type):
    """Any bytes: that they are taken apart in the right way is seen here too."""
    weights = dequantize(blocks := random_blocks(type, 500), type).reshape(-1, N_WEIGHTS)
    error = errors(encode(type, blocks), weights)
    plain = errors(quantize(weights, Type.Q8_0), weights)
    assert np.all(error <= plain * 1.001)
    assert error.sum() < 0.9 * plain.sum()


@pytest.mark.parametrize(("type", "most"), [(Type.Q4_1, 0.45), (Type.Q5_1, 0.75)], ids=lambda t: str(t))
def test_with_weights_as_models_have_them_the_error_is_much_smaller(type, most):
    weights = np.random.default_rng(1).standard_normal((4000, N_WEIGHTS)).astype(np.float32) / 24
    blocks = quantize(weights, type)
    weights = dequantize(blocks, type).reshape(-1, N_WEIGHTS)
    error, plain = (
        errors(made, weights).sum() for made in (encode(type, blocks), quantize(weights, Type.Q8_0))
    )
    assert np.sqrt(error) < most * np.sqrt(plain)


def test_pieces_make_the_same_as_the_whole():
    blocks = random_blocks(Type.Q4_K, 64)
    n = GGML_TYPES[Type.Q4_K].n_bytes
    pieces = [encode(Type.Q4_K, blocks[i : i + 16 * n]) for i in range(0, len(blocks), 16 * n)]
    assert np.array_equal(np.concatenate(pieces), encode(Type.Q4_K, blocks))


@given(scale=halves, factor=st.integers(0, 63), offset=halves, levels=levels)
@example(0.0, 1, 0.0, np.zeros((N_WEIGHTS, 1), np.uint8))
@example(0.0, 1, 1.5, np.full((N_WEIGHTS, 1), 7, np.uint8))
@example(2.0**-24, 1, 0.0, np.arange(N_WEIGHTS, dtype=np.uint8)[:, None])
@example(2.0**-24, 1, -(2.0**-24), np.full((N_WEIGHTS, 1), 1, np.uint8))
@example(MAX_F16, 63, -MAX_F16, np.arange(N_WEIGHTS, dtype=np.uint8)[:, None])
@example(1.0, 1, -40.0, np.full((N_WEIGHTS, 1), 31, np.uint8))
def test_it_is_never_worse_than_rounding(scale, factor, offset, levels):
    scales, offsets = np.array([scale * factor], np.float32), np.array([offset], np.float32)
    weights = (scales * levels + offsets).T
    result, steps = fit(scales, offsets, levels)
    assert np.all(np.isfinite(result.astype(np.float16)))
    assert np.array_equal(result.astype(np.float16), result)
    assert np.all(np.abs(steps.astype(int)) <= 127)
    error = np.square(result.astype(float) * steps.T - weights).sum()
    with np.errstate(over="ignore"):
        plain = quantize(weights, Type.Q8_0)
    if np.all(np.isfinite(plain.view(np.float16)[:, 0])):
        rounding = N_WEIGHTS * np.square(1e-6 * float(np.abs(weights).max()))
        assert error <= errors(plain, weights)[0] * 1.0001 + rounding


@given(step=st.integers(1, 2047), k=st.integers(1, 7), first=st.integers(-127, 0), levels=levels)
def test_what_has_an_exact_form_is_met_but_for_the_rounding_of_the_scale(step, k, first, levels):
    """The offset is a multiple of a part of the scale, which has 11 bits."""
    levels = np.minimum(levels, (127 - first) // k).astype(np.uint8)
    scale, offset = np.array([k * step / 4096], np.float32), np.array([first * step / 4096], np.float32)
    result, steps = fit(scale, offset, levels)
    error = result.astype(float) * steps - (scale.astype(float) * levels + offset)
    assert np.sqrt(np.mean(np.square(error))) <= 2**-11 * 31 * scale[0]


def random_blocks(type, n):
    """Bytes of which only the scales are not just any."""
    random = np.random.default_rng(0)
    blocks = random.integers(0, 256, (n, GGML_TYPES[type].n_bytes), dtype=np.uint8)
    for i in range(N_SCALES.get(type, 2)):
        scales = random.uniform(0.01, 0.02, (n, 1)) * (-8 if i and type in (Type.Q4_1, Type.Q5_1) else 1)
        blocks[:, 2 * i : 2 * i + 2] = scales.astype(np.float16).view(np.uint8)
    return blocks.reshape(-1)


def as_numbers(data):
    return dequantize(data.reshape(-1, GGML_TYPES[Type.Q8_0].n_bytes), Type.Q8_0).reshape(-1)


def errors(data, weights):
    """The sum of squares of each block."""
    return np.square(as_numbers(data).reshape(-1, N_WEIGHTS).astype(float) - weights).sum(axis=1)
