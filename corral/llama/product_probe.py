"""Multiply some rows of a file's weights, and compare: what `row_limit` says about a CPU, tried on it.

Takes milliseconds, needs no context, and sees every bit of a product, where the logits of a model show
only what survives all its layers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from corral.core.chunk import ALIGNMENT, MIN_CHUNK, FloatArray
from corral.llama.library import LlamaError, ggml
from corral.llama.repack import InitParams, cpu_device, new_tensor
from corral.llama.row_limit import RowLimit

Bytes = npt.NDArray[np.uint8]

_POINTER = ctypes.c_void_p
_F32, _I32 = 0, 26
_N_CONTEXT_BYTES = 1 << 20
_N_USED = 2  # experts for each row
_N_SMALL = 17  # beyond this, only the largest numbers of rows are tried
_N_PROMPT = 47
_PIECES = (8, 12, 20)
_N_ROUNDS = 3  # with other numbers each: rounding depends on them
_STEP = 256  # between loud columns


class WeightSample(NamedTuple):
    """Some rows of a weight. `shape`: row length, rows, and experts if it has any; `buffer`: the type of
    buffer that it is repacked into, or 0."""

    type: int
    shape: tuple[int, ...]
    data: Bytes
    buffer: int


def probe_product(sample: WeightSample, limit: RowLimit, n_most: int, n_threads: int) -> RowLimit:
    """Return what holds of this limit; more than `n_most` rows are never tried."""
    n_tried = n_rows = min(limit.n_rows, n_most)
    splits = limit.splits
    with _Multiplier.open(sample, n_threads) as multiplier:
        for round in range(_N_ROUNDS):
            rows = _rows(sample.shape[0], max(n_rows, _N_PROMPT), round)
            n_rows = _count_equal(multiplier, rows, n_rows)
            splits = splits and _can_split(multiplier, rows[:_N_PROMPT])
    return RowLimit(limit.n_rows if n_rows == n_tried else n_rows, splits)


def _rows(n_columns: int, n: int, seed: int) -> FloatArray:
    """Return activations as they are in models: of different scales, and some columns much louder."""
    random = np.random.default_rng(seed)
    rows = random.standard_normal((n, n_columns), np.float32)
    rows *= np.exp(random.standard_normal((n, 1), np.float32))
    rows[:, seed::_STEP] *= 8
    return rows


def _count_equal(multiplier: _Multiplier, rows: FloatArray, n_most: int) -> int:
    """Return up to how many rows each comes out as alone."""
    alone = [multiplier.multiply(rows, i, i + 1) for i in range(n_most)]
    sizes: list[int] = [
        *range(2, min(n_most, _N_SMALL) + 1),
        *range(max(n_most - 1, _N_SMALL + 1), n_most + 1),
    ]
    for n in sizes:
        if multiplier.multiply(rows, 0, n) != b"".join(alone[:n]):
            return n - 1
    return n_most


def _can_split(multiplier: _Multiplier, rows: FloatArray) -> bool:
    whole = multiplier.multiply(rows, 0, len(rows))
    return all(
        b"".join(multiplier.multiply(rows, *ends) for ends in _cut(len(rows), n)) == whole for n in _PIECES
    )


def _cut(n: int, n_piece: int) -> Iterator[tuple[int, int]]:
    """Yield pieces as prompts are cut: at multiples of `ALIGNMENT`, none below `MIN_CHUNK`."""
    start = 0
    while n - start >= n_piece + MIN_CHUNK:
        yield start, start + n_piece - n_piece % ALIGNMENT
        start += n_piece - n_piece % ALIGNMENT
    yield start, n


class _Multiplier:
    """Owns a backend of libllama and a weight in it."""

    def __init__(self, sample: WeightSample, backend: int, weight: int) -> None:
        self._sample, self._backend, self._weight = sample, backend, weight
        self._n_experts = sample.shape[2] if len(sample.shape) == 3 else 0

    @classmethod
    @contextmanager
    def open(cls, sample: WeightSample, n_threads: int) -> Iterator[_Multiplier]:
        cpu = cpu_device()
        backend = ggml("ggml_backend_dev_init", _POINTER, cpu, None)
        registry = ggml("ggml_backend_dev_backend_reg", _POINTER, cpu)
        find, name = "ggml_backend_reg_get_proc_address", b"ggml_backend_set_n_threads"
        set_threads = ctypes.CFUNCTYPE(None, _POINTER, ctypes.c_int)(ggml(find, _POINTER, registry, name))
        set_threads(backend, n_threads)
        usual = ggml("ggml_backend_get_default_buffer_type", _POINTER, backend)
        context = _open_context()
        weight = new_tensor(context, sample.type, sample.shape)
        buffer = _allocate(context, sample.buffer or usual)
        _write(weight, sample.data)
        try:
            yield cls(sample, backend, weight)
        finally:
            ggml("ggml_backend_buffer_free", None, buffer)
            ggml("ggml_free", None, context)
            ggml("ggml_backend_free", None, backend)

    def multiply(self, rows: FloatArray, start: int, end: int) -> bytes:
        """Return the products of some rows, evaluated together; experts go by the number of a row."""
        part = np.ascontiguousarray(rows[start:end])
        context = _open_context()
        if self._n_experts:
            given = new_tensor(context, _F32, (part.shape[1], 1, len(part)))
            numbers = new_tensor(context, _I32, (_N_USED, len(part)))
            product = ggml("ggml_mul_mat_id", _POINTER, context, self._weight, given, numbers)
        else:
            given = new_tensor(context, _F32, (part.shape[1], len(part)))
            product = ggml("ggml_mul_mat", _POINTER, context, self._weight, given)
        graph = ggml("ggml_new_graph", _POINTER, context)
        ggml("ggml_build_forward_expand", None, graph, product)
        usual = ggml("ggml_backend_get_default_buffer_type", _POINTER, self._backend)
        buffer = _allocate(context, usual)
        _write(given, part)
        if self._n_experts:
            _write(numbers, self._choose(start, end))
        status = ggml("ggml_backend_graph_compute", ctypes.c_int, self._backend, graph)
        found = ctypes.create_string_buffer(ggml("ggml_nbytes", ctypes.c_size_t, product))
        n_bytes = ctypes.c_size_t(len(found))
        ggml("ggml_backend_tensor_get", None, product, found, ctypes.c_size_t(0), n_bytes)
        ggml("ggml_backend_buffer_free", None, buffer)
        ggml("ggml_free", None, context)
        if status:
            raise LlamaError("libllama cannot multiply with a weight of the file")
        return found.raw

    def _choose(self, start: int, end: int) -> npt.NDArray[np.int32]:
        """Let most rows share an expert: that is where kernels for many rows begin."""
        first = np.arange(start, end) % 5 // 4 % self._n_experts
        return np.stack([first, (first + 1) % self._n_experts], 1).astype(np.int32)


def _open_context() -> int:
    return int(ggml("ggml_init", _POINTER, InitParams(_N_CONTEXT_BYTES, None, True)))


def _allocate(context: int, buffer_type: int) -> int:
    return int(ggml("ggml_backend_alloc_ctx_tensors_from_buft", _POINTER, context, buffer_type))


def _write(tensor: int, data: npt.NDArray[np.generic]) -> None:
    n_bytes = ctypes.c_size_t(data.nbytes)
    ggml("ggml_backend_tensor_set", None, tensor, data.ctypes.data, ctypes.c_size_t(0), n_bytes)
