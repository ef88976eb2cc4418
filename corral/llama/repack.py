"""Which weights a CPU multiplies in an order of its own: libllama copies them when a model is loaded.

It depends on the CPU and on how libllama was built, and libllama tells of it only once it is done.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import cache

from corral.llama.ggml_type import GGML_TYPES
from corral.llama.library import ggml

_POINTER = ctypes.c_void_p
_CPU = ctypes.c_int(0)  # GGML_BACKEND_DEVICE_TYPE_CPU
_BUFFER_OFFSET = 8  # of the buffer in a `ggml_tensor`
_N_COLUMNS, _N_ROWS = 2048, 1024  # of a weight as there are many
_N_CONTEXT_BYTES = 1 << 14


class _InitParams(ctypes.Structure):
    _fields_ = (
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", _POINTER),
        ("no_alloc", ctypes.c_bool),
    )


@cache
def repacked_types() -> frozenset[int]:
    """The types of tensors that are; libllama has to be started."""
    cpu = ggml("ggml_backend_dev_by_type", _POINTER, _CPU)
    buffer_types = list(_extra_buffer_types(cpu))
    kinds = [number for number, kind in GGML_TYPES.items() if kind.multiplies]
    return frozenset(kind for kind in kinds if any(_takes(cpu, extra, kind) for extra in buffer_types))


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


def _takes(cpu: int, buffer_type: int, kind: int) -> bool:
    """Whether a matrix of this type can be multiplied there; asked as libllama does."""
    context = ggml("ggml_init", _POINTER, _InitParams(_N_CONTEXT_BYTES, None, True))
    weight = _matrix(context, kind, _N_ROWS)
    product = ggml("ggml_mul_mat", _POINTER, context, weight, _matrix(context, 0, 1))
    buffer = ggml("ggml_backend_buft_alloc_buffer", _POINTER, buffer_type, ctypes.c_size_t(0))
    _POINTER.from_address(weight + _BUFFER_OFFSET).value = buffer
    takes = ggml("ggml_backend_dev_supports_op", ctypes.c_bool, cpu, product)
    ggml("ggml_backend_buffer_free", None, buffer)
    ggml("ggml_free", None, context)
    return bool(takes)


def _matrix(context: int, kind: int, n_rows: int) -> int:
    shape = ctypes.c_int64(_N_COLUMNS), ctypes.c_int64(n_rows)
    return int(ggml("ggml_new_tensor_2d", _POINTER, context, ctypes.c_int(kind), *shape))
