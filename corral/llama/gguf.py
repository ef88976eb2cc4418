"""A look into a GGUF file beside libllama's own: which tensors there are."""

from __future__ import annotations

import ctypes
import re
from typing import Any

from corral.llama.library import LlamaError, lib


class _InitParams(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


def has_tensor(path: str, *names: str) -> bool:
    """Whether a model has any of these tensors, be it split into several files or not."""
    return any(_holds(shard, names) for shard in shards_of(path))


def _holds(path: str, names: tuple[str, ...]) -> bool:
    open_file = _function("gguf_init_from_file", ctypes.c_void_p, ctypes.c_char_p, _InitParams)
    find_tensor = _function("gguf_find_tensor", ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p)
    close = _function("gguf_free", None, ctypes.c_void_p)
    file = open_file(path.encode(), _InitParams(no_alloc=True, ctx=None))
    if not file:
        raise LlamaError(f"cannot read '{path}'")
    try:
        return any(find_tensor(file, name.encode()) >= 0 for name in names)
    finally:
        close(file)


def _function(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(lib._lib, name)
    function.restype, function.argtypes = result, arguments
    return function


def shards_of(path: str) -> list[str]:
    """The files that a model is split into, or the one it is."""
    found = re.fullmatch(r"(.*)-\d{5}-of-(\d{5})\.gguf", path)
    if found is None:
        return [path]
    stem, n = found.groups()
    return [f"{stem}-{i:05}-of-{n}.gguf" for i in range(1, int(n) + 1)]
