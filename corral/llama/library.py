"""The one door to libllama: bindings, start-up and its log.

Every other module of this package takes `lib` from here. Native log lines are kept in a short
memory, so that a failure can say what libllama said last.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from typing import Any

from llama_cpp import llama_cpp

from corral.core.errors import CorralError

lib: Any = llama_cpp

_ERROR_LEVEL = 4
_GPU_KINDS = (1, 2)  # GGML_BACKEND_DEVICE_TYPE_GPU, _IGPU
_log_tail: collections.deque[str] = collections.deque(maxlen=8)
_listeners: list[list[str]] = []
_verbose = False


class LlamaError(CorralError):
    """libllama refused or failed."""


def start(verbose: bool) -> None:
    """Initialise the backends; call once per process."""
    global _verbose
    _verbose = verbose
    lib.llama_log_set(on_log, ctypes.c_void_p(0))
    lib.llama_backend_init()


def last_words() -> str:
    """What libllama logged as errors most recently."""
    return "; ".join(_log_tail) or "no reason given"


@contextlib.contextmanager
def overhear() -> Iterator[list[str]]:
    """Everything that libllama logs meanwhile, errors or not."""
    lines: list[str] = []
    _listeners.append(lines)
    try:
        yield lines
    finally:
        _listeners.remove(lines)


def has_gpu() -> bool:
    """Whether a real GPU is there. (`llama_supports_gpu_offload` is also true for a build with RPC.)"""
    find = lib._lib.ggml_backend_dev_by_type
    find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_int]
    return any(find(kind) for kind in _GPU_KINDS)


def strlen_callback() -> Any:
    """libc's strlen as an abort callback: true as soon as the flag's first byte is not zero.

    The callback runs hundreds of times per step on compute threads: it must not be Python.
    """
    libc = ctypes.CDLL("msvcrt" if os.name == "nt" else None)
    return ctypes.cast(libc.strlen, lib.ggml_abort_callback)


@lib.llama_log_callback  # type: ignore[untyped-decorator]
def on_log(level: int, text: bytes, _user_data: Any) -> None:
    """For whatever writes a log in libllama's way."""
    line = text.decode("utf-8", "replace").rstrip()
    for lines in _listeners:
        lines.append(line)
    if level == _ERROR_LEVEL and line:
        _log_tail.append(line)
    if _verbose and line:
        sys.stderr.write(line + "\n")
