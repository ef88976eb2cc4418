"""Writes a model in Q8_0 or Q4_0, which libllama repacks when it loads it."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from llama_cpp import llama_cpp as lib

_silence = lib.llama_log_callback(lambda *_: None)


def to_q8_0(source: Path, path: Path) -> Path:
    """`source` in Q8_0, as the file `path`; one that is there already is left as it is."""
    return _quantize(source, path, lib.LLAMA_FTYPE_MOSTLY_Q8_0)


def to_q4_0(source: Path, path: Path) -> Path:
    """The same in Q4_0."""
    return _quantize(source, path, lib.LLAMA_FTYPE_MOSTLY_Q4_0)


def _quantize(source: Path, path: Path, type: int) -> Path:
    if not path.exists():
        lib.llama_log_set(_silence, ctypes.c_void_p(0))
        params = lib.llama_model_quantize_default_params()
        params.ftype = type
        params.allow_requantize = True
        beside = path.with_suffix(f".{os.getpid()}")
        assert lib.llama_model_quantize(str(source).encode(), str(beside).encode(), ctypes.byref(params)) == 0
        beside.replace(path)
    return path
