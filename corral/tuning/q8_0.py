"""Convert blocks of other encodings to Q8_0: 32 weights each, integers from -127 to 127 times an F16 scale.

Weights that are integers times a scale already stay exact. For weights `scale * level + offset`, steps of
`scale / k` hit all levels, and for some k nearly the offset too. Rounding each weight to the nearest of
127 steps, as libllama does, loses twice as much. Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from corral.gguf.ggml_type import GGML_TYPES

N_WEIGHTS = 32  # of a block
Q8_0 = 8

_U8 = npt.NDArray[np.uint8]
_I8 = npt.NDArray[np.int8]
_F32 = npt.NDArray[np.float32]

_MOST = 127  # steps
_FIFTH_BIT = np.uint8(16)
_MAX_F16 = np.float32(65504)
_DIVISORS = np.arange(1, 18, dtype=np.float32)[:, None]
_IQ4_NL = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.int8)


class Blocks(NamedTuple):
    """The weights `scale * steps` of n blocks; `steps` has one column per block."""

    scale: _F32
    steps: _I8


def encode(type: int, data: _U8) -> _U8:
    """Convert a row of whole blocks of this type, which is one of `ENCODABLE`, to Q8_0."""
    kind = GGML_TYPES[type]
    scale, steps = ENCODABLE[type](data.reshape(-1, kind.n_bytes))
    result = np.empty((len(scale), GGML_TYPES[Q8_0].n_bytes), dtype=np.uint8)
    result[:, :2] = scale.astype("<f2")[:, None].view(np.uint8)
    result[:, 2:] = steps.T.view(np.uint8)
    return result.reshape(-1)


def fit(scale: _F32, offset: _F32, levels: _U8) -> Blocks:
    """Return blocks for the weights `scale * levels + offset`, never less exact than plain rounding."""
    weights = levels.astype(np.float32)
    mean = weights.mean(axis=0)
    spread = np.square(weights - mean).sum(axis=0)
    weights *= scale
    weights += offset
    plain, plain_error = _round(weights)
    k, first, error = _divide(scale, offset, mean, spread, levels)
    is_plain = ~(error < plain_error)
    # Intermediate bytes overflow, the result does not.
    steps = levels * k.astype(np.uint8) + first.astype(np.int16).astype(np.uint8)
    np.copyto(steps, plain.steps.view(np.uint8), where=is_plain)
    return Blocks(np.where(is_plain, plain.scale, _rounded(scale / k)), steps.view(np.int8))


def _divide(scale: _F32, offset: _F32, mean: _F32, spread: _F32, levels: _U8) -> tuple[_F32, _F32, _F32]:
    """Return the best k, the step of level 0, and the sum of squared errors, which is infinite if no k fits.

    `mean` and `spread`: the mean of the levels, and the sum of squared distances from it.
    """
    low, high = (bound.astype(np.float32) for bound in (levels.min(axis=0), levels.max(axis=0)))
    with np.errstate(all="ignore"):
        exact = _DIVISORS * (offset / scale)
        first = np.rint(exact)
        error = np.abs(exact - first)
        error /= _DIVISORS
        error[~_fits(first, _DIVISORS * low, _DIVISORS * high)] = np.inf
        k = (error.argmin(axis=0) + 1).astype(np.float32)
        step = _rounded(scale / k)
        # Rounded to 16 bits, each step misses its level by `slope`, which the first step may compensate.
        slope = scale - k * step
        centre = offset + slope * mean
        first = np.rint(centre / step)
        total = np.square(slope) * spread + N_WEIGHTS * np.square(centre - step * first)
    usable = np.isfinite(first) & _fits(first, k * low, k * high)
    return k, np.where(usable, first, 0), np.where(usable, total, np.inf)


def _round(weights: _F32) -> tuple[Blocks, _F32]:
    """Round to the nearest steps, with the largest weight at 127; also return the sums of squared errors."""
    largest = np.maximum(weights.max(axis=0), -weights.min(axis=0))
    scale = _rounded(np.minimum(largest / _MOST, _MAX_F16))
    with np.errstate(all="ignore"):
        steps = np.rint(weights / scale)
    steps[:, scale == 0] = 0
    np.clip(steps, -_MOST, _MOST, out=steps)
    error = np.square(weights - steps * scale).sum(axis=0)
    return Blocks(scale, steps.astype(np.int8)), error


def _fits(first: _F32, low: _F32, high: _F32) -> npt.NDArray[np.bool_]:
    return (first + low >= -_MOST) & (first + high <= _MOST)


def _rounded(scale: _F32) -> _F32:
    with np.errstate(all="ignore"):
        return scale.astype(np.float16).astype(np.float32)


def _q4_0(blocks: _U8) -> Blocks:
    return Blocks(_half(blocks, 0), _nibbles(blocks[:, 2:]).view(np.int8) - np.int8(8))


def _q5_0(blocks: _U8) -> Blocks:
    levels = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return Blocks(_half(blocks, 0), levels.view(np.int8) - np.int8(16))


def _iq4_nl(blocks: _U8) -> Blocks:
    return Blocks(_half(blocks, 0), _IQ4_NL[_nibbles(blocks[:, 2:])])


def _q4_1(blocks: _U8) -> Blocks:
    return fit(_half(blocks, 0), _half(blocks, 2), _nibbles(blocks[:, 4:]))


def _q5_1(blocks: _U8) -> Blocks:
    levels = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return fit(_half(blocks, 0), _half(blocks, 2), levels)


def _q4_k(blocks: _U8) -> Blocks:
    return fit(*_scales_k(blocks), _columns(_nibbles_k(blocks[:, 16:])))


def _q5_k(blocks: _U8) -> Blocks:
    fifth = blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & np.uint8(1)
    return fit(*_scales_k(blocks), _columns(_nibbles_k(blocks[:, 48:]) | fifth * _FIFTH_BIT))


ENCODABLE: Mapping[int, Callable[[_U8], Blocks]] = {
    2: _q4_0,
    3: _q4_1,
    6: _q5_0,
    7: _q5_1,
    12: _q4_k,
    13: _q5_k,
    20: _iq4_nl,
}


def _half(blocks: _U8, start: int) -> _F32:
    return np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2")[:, 0].astype(np.float32)


def _nibbles(packed: _U8) -> _U8:
    """Unpack 32 levels from 16 bytes, one column per row: the low halves come first."""
    columns = np.ascontiguousarray(packed.T)
    return np.concatenate([columns & 15, columns >> 4])


def _fifth_bits(packed: _U8) -> _U8:
    bits = np.unpackbits(np.ascontiguousarray(packed), axis=1, bitorder="little")
    fifth: _U8 = np.ascontiguousarray(bits.T) * _FIFTH_BIT
    return fifth


def _scales_k(blocks: _U8) -> tuple[_F32, _F32]:
    """Unpack scale and offset of the eight blocks in each 256 weights, from 6 bits and two factors."""
    packed = blocks[:, 4:16].reshape(-1, 3, 4)
    scales, offsets, mixed = packed[:, 0], packed[:, 1], packed[:, 2]
    scale = np.concatenate([scales & 63, mixed & 15 | scales >> 6 << 4], axis=1)
    offset = np.concatenate([offsets & 63, mixed >> 4 | offsets >> 6 << 4], axis=1)
    return (_half(blocks, 0)[:, None] * scale).reshape(-1), (-_half(blocks, 2)[:, None] * offset).reshape(-1)


def _nibbles_k(packed: _U8) -> _U8:
    """Unpack eight times 32 levels per row: 32 bytes contain those of two blocks."""
    pairs = packed.reshape(-1, 4, 1, N_WEIGHTS)
    return np.concatenate([pairs & 15, pairs >> 4], axis=2).reshape(-1, 8, N_WEIGHTS)


def _columns(levels: _U8) -> _U8:
    return np.ascontiguousarray(levels.reshape(-1, N_WEIGHTS).T)
