"""Our table of tensor types is libllama's."""

from __future__ import annotations

import ctypes

from llama_cpp import llama_cpp as lib

from corral.gguf.ggml_type import GGML_TYPES, GgmlType


def test_the_types_are_those_of_libllama():
    native = lib._lib
    native.ggml_type_name.restype = ctypes.c_char_p
    native.ggml_blck_size.restype = ctypes.c_int64
    native.ggml_type_size.restype = ctypes.c_size_t
    found = {
        i: GgmlType(
            native.ggml_type_name(i).decode(),
            native.ggml_blck_size(i),
            native.ggml_type_size(i),
            can_multiply(i),
        )
        for i in range(max(GGML_TYPES) + 1)
        if native.ggml_blck_size(i)
    }
    assert found == GGML_TYPES


def can_multiply(type):
    """Whether there is a product of such rows."""

    class Traits(ctypes.Structure):
        _fields_ = (("from_float", ctypes.c_void_p), ("vec_dot", ctypes.c_void_p))

    get = lib._lib.ggml_get_type_traits_cpu
    get.restype = ctypes.POINTER(Traits)
    return bool(get(type).contents.vec_dot)
