"""The only access to libllama: bindings, start-up and log.

All other modules of this package import `lib` from here. The last native log lines are kept, so that
errors can quote them.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from corral.core.errors import CorralError
from corral.core.libllama import PACKAGE, PATCH_SET, VERSION, describe_patches, find_bindings


def bindings(name: str) -> Any:
    """Import a bindings module without its package, whose import takes longer than all of ours."""
    module = f"{PACKAGE}.{name}"
    if PACKAGE in sys.modules:
        return importlib.import_module(module)
    spec = find_bindings()
    if spec is None:
        raise ModuleNotFoundError(f"No module named '{PACKAGE}'", name=PACKAGE)
    sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)  # not executed
    try:
        return importlib.import_module(module)
    finally:
        del sys.modules[PACKAGE]  # a later import by others gets the whole package


lib: Any = bindings("llama_cpp")

_ERROR_LEVEL = 4
_LOG_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, _ERROR_LEVEL: logging.ERROR}
_GPU_KINDS = (1, 2)  # GGML_BACKEND_DEVICE_TYPE_GPU, _IGPU
_NUMA = {
    "distribute": lib.GGML_NUMA_STRATEGY_DISTRIBUTE,
    "isolate": lib.GGML_NUMA_STRATEGY_ISOLATE,
    "numactl": lib.GGML_NUMA_STRATEGY_NUMACTL,
}
_log_tail: collections.deque[str] = collections.deque(maxlen=8)
_listeners: list[Callable[[str], object]] = []
_verbose = False
_n_private = 0
_unfinished = ""  # a log line
_log = logging.getLogger("corral.llama")
_numa = ""


class LlamaError(CorralError):
    """libllama refused or failed."""


def start(verbose: bool, numa: str = "") -> None:
    """Initialize the backends. Repeated calls are harmless, but only the first `numa` counts."""
    global _verbose, _numa
    _verbose = verbose
    if not verbose:
        # Otherwise a crash starts a debugger, which stalls the process and prints a page.
        os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    lib.llama_log_set(on_log, ctypes.c_void_p(0))
    lib.llama_backend_init()
    if numa and not _numa:
        _numa = numa
        lib.llama_numa_init(_NUMA[numa])


def log_patches() -> None:
    """Log which patches libllama has, as a warning if they are not the expected ones."""
    problem = describe_patches(lib.llama_print_system_info().decode("utf-8", "replace"))
    if problem:
        _log.warning("%s; `corral doctor` shows how to get them", problem)
    else:
        _log.info("libllama of llama-cpp-python %s with patch set %d", VERSION, PATCH_SET)


def last_words() -> str:
    """Return libllama's most recent error lines."""
    return "; ".join(_log_tail) or "no reason given"


@contextlib.contextmanager
def overhear(is_private: bool = False) -> Iterator[list[str]]:
    """Collect everything that libllama logs meanwhile; `is_private` keeps it out of the log."""
    global _n_private
    lines: list[str] = []
    _n_private += is_private
    try:
        with listen(lines.append):
            yield lines
    finally:
        _n_private -= is_private


@contextlib.contextmanager
def listen(hear: Callable[[str], object]) -> Iterator[None]:
    """Call `hear` with everything that libllama logs meanwhile. Exceptions raised there are lost."""
    _listeners.append(hear)
    try:
        yield
    finally:
        _listeners[:] = [other for other in _listeners if other is not hear]


def has_gpu() -> bool:
    """Whether there is a GPU or an added RPC device. (`llama_supports_gpu_offload` is also true for every
    build with RPC.)"""
    find = "ggml_backend_dev_by_type"
    return any(ggml(find, ctypes.c_void_p, ctypes.c_int(kind)) for kind in _GPU_KINDS)


def ggml(name: str, result: Any, *arguments: Any) -> Any:
    """Call a function that the bindings lack; integers are passed as pointers unless typed."""
    function = getattr(lib._lib, name)
    function.restype, function.argtypes = result, None
    return function(*(ctypes.c_void_p(a) if isinstance(a, int) else a for a in arguments))


def strlen_callback() -> Any:
    """Return libc's strlen as an abort callback: true once the flag's first byte is not zero.

    Compute threads call it hundreds of times per step, so it must not be Python.
    """
    libc = ctypes.CDLL("msvcrt" if os.name == "nt" else None)
    return ctypes.cast(libc.strlen, lib.ggml_abort_callback)


@lib.llama_log_callback  # type: ignore[untyped-decorator]
def on_log(level: int, text: bytes, _user_data: Any) -> None:
    """Receive log lines of libllama and libmtmd."""
    line = text.decode("utf-8", "replace").rstrip()
    for hear in _listeners:
        hear(line)
    if level == _ERROR_LEVEL and line:
        _log_tail.append(line)
    if _verbose and not _n_private:
        _repeat(level, text.decode("utf-8", "replace"))


def _repeat(level: int, text: str) -> None:
    """Log libllama's output in whole lines."""
    global _unfinished
    *lines, _unfinished = (_unfinished + text).split("\n")
    for line in lines:
        if line.strip():
            _log.log(_LOG_LEVELS.get(level, logging.INFO), "%s", line)
