"""Which weights libllama repacks for this CPU when it loads a model.

That depends on the CPU and the build, and libllama reports it only afterwards.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import cache

from corral.gguf.ggml_type import GGML_TYPES
from corral.llama.library import ggml

_POINTER = ctypes.c_void_p
_CPU = ctypes.c_int(0)  # GGML_BACKEND_DEVICE_TYPE_CPU
_F32, _I32 = 0, 26
_BUFFER_OFFSET = 8  # offset of the buffer in a `ggml_tensor`
_USUAL_SHAPE = 2048, 1024
_N_EVALUATED = 512  # tokens
_N_CONTEXT_BYTES = 1 << 14


class InitParams(ctypes.Structure):
    _fields_ = (
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", _POINTER),
        ("no_alloc", ctypes.c_bool),
    )


@cache
def repacked_types() -> frozenset[int]:
    """Return the repacked tensor types; libllama must be started."""
    kinds = [number for number, kind in GGML_TYPES.items() if kind.multiplies]
    return frozenset(kind for kind in kinds if copy_bytes(kind, _USUAL_SHAPE))


def copy_bytes(kind: int, shape: tuple[int, ...]) -> int:
    """Return the bytes of a repacked copy; 0 if there is none. libllama aborts on invalid shapes."""
    return _place(kind, shape)[1]


def repacked_buffer(kind: int, shape: tuple[int, ...]) -> int:
    """Return the type of buffer that a weight is repacked into; 0 if it is not."""
    return _place(kind, shape)[0]


@cache
def _place(kind: int, shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the first type of buffer that repacks the weight, and the bytes there; zeros if none does."""
    type = GGML_TYPES[kind]
    if len(shape) not in (2, 3) or shape[0] % type.n_values or not type.multiplies:
        return 0, 0
    cpu = cpu_device()
    sizes = ((each, _size_in(cpu, each, kind, shape)) for each in _extra_buffer_types(cpu))
    return next(((each, n_bytes) for each, n_bytes in sizes if n_bytes), (0, 0))


def cpu_device() -> int:
    return int(ggml("ggml_backend_dev_by_type", _POINTER, _CPU))


def _extra_buffer_types(cpu: int) -> Iterator[int]:
    registry = ggml("ggml_backend_dev_backend_reg", _POINTER, cpu)
    name = b"ggml_backend_dev_get_extra_bufts"
    address = ggml("ggml_backend_reg_get_proc_address", _POINTER, registry, name)
    if not address:
        return
    found = ctypes.CFUNCTYPE(ctypes.POINTER(_POINTER), _POINTER)(address)(cpu)
    i = 0
    while found and found[i]:
        yield found[i]
        i += 1


def _size_in(cpu: int, buffer_type: int, kind: int, shape: tuple[int, ...]) -> int:
    """Return the weight's bytes in this buffer type; 0 if it does not support the product."""
    context = ggml("ggml_init", _POINTER, InitParams(_N_CONTEXT_BYTES, None, True))
    buffer = ggml("ggml_backend_buft_alloc_buffer", _POINTER, buffer_type, ctypes.c_size_t(0))
    weight = new_tensor(context, kind, shape)
    _POINTER.from_address(weight + _BUFFER_OFFSET).value = buffer
    product = _product(context, weight, shape)
    takes = ggml("ggml_backend_dev_supports_op", ctypes.c_bool, cpu, product)
    n_bytes = ggml("ggml_backend_buft_get_alloc_size", ctypes.c_size_t, buffer_type, weight) if takes else 0
    ggml("ggml_backend_buffer_free", None, buffer)
    ggml("ggml_free", None, context)
    return int(n_bytes)


def _product(context: int, weight: int, shape: tuple[int, ...]) -> int:
    """Return the product with a layer's activations; expert matrices are selected by index."""
    if len(shape) == 2:
        rows = new_tensor(context, _F32, (shape[0], _N_EVALUATED))
        return int(ggml("ggml_mul_mat", _POINTER, context, weight, rows))
    rows = new_tensor(context, _F32, (shape[0], 1, _N_EVALUATED))
    numbers = new_tensor(context, _I32, (1, _N_EVALUATED))
    return int(ggml("ggml_mul_mat_id", _POINTER, context, weight, rows, numbers))


def new_tensor(context: int, kind: int, shape: tuple[int, ...]) -> int:
    sizes = (ctypes.c_int64 * len(shape))(*shape)
    n_dims = ctypes.c_int(len(shape))
    return int(ggml("ggml_new_tensor", _POINTER, context, ctypes.c_int(kind), n_dims, sizes))
