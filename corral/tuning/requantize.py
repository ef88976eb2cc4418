"""Write a model with its weights in another encoding, in a separate process.

libllama cannot be interrupted here, and a file may crash it; a separate process can be killed and affects
no other. It prints its progress, one number per line, and finally an error, if any.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from corral.core.errors import CorralError
from corral.core.file import read_into
from corral.gguf.ggml_type import GGML_TYPES
from corral.gguf.model_file import read_model
from corral.gguf.preflight import TensorInfo, read_header
from corral.llama import library
from corral.llama.hardware import physical_cores
from corral.llama.library import LlamaError, last_words, lib
from corral.tuning.q8_0 import ENCODABLE, Q8_0, encode

_MAX_BUFFER_BYTES = 256 << 20
_PIECE = 1 << 16  # weights: intermediate results stay in a core's cache
_COST = 2  # of a weight in `encode`, relative to libllama's
_MOSTLY_Q8_0 = lib.LLAMA_FTYPE_MOSTLY_Q8_0
_MOSTLY_Q6_K = lib.LLAMA_FTYPE_MOSTLY_Q6_K
_Q6_K_VALUES = 256
_ALIGNMENT = "general.alignment"
_WRITTEN_ALIGNMENT = 32
_TENSOR_LINE = re.compile(r"\[ *\d+/ *\d+\] (.+?) +- \[")


class TensorSource(NamedTuple):
    """A tensor, and the file it is in."""

    path: str
    tensor: TensorInfo


class PrintedProgress:
    """Prints the fraction of finished work; exits the process if the reader is gone."""

    def __init__(self, n_total: int) -> None:
        self._n_total = max(n_total, 1)
        self._n_done = 0
        self._lock = threading.Lock()

    def add(self, n: int) -> None:
        with self._lock:
            self._n_done = min(self._n_done + n, self._n_total)
            try:
                os.write(sys.stdout.fileno(), b"%.4f\n" % (self._n_done / self._n_total))
            except OSError:
                os._exit(1)

    def finish(self) -> None:
        self.add(self._n_total)


def requantize(source: str, path: str, file_type: int, n_threads: int) -> None:
    """Write all weights of a model, which may have several parts, into one file of this type."""
    library.start(verbose=False)
    parts, headers = read_model(source)
    sources = {
        name: TensorSource(part, tensor)
        for part, header in zip(parts, headers, strict=True)
        for name, tensor in header.tensors.items()
    }
    sizes = {name: math.prod(tensor.shape) for name, (_, tensor) in sources.items()}
    n_threads = n_threads or physical_cores()
    refined = [name for name, (_, tensor) in sources.items() if _is_refined(tensor, file_type)]
    progress = PrintedProgress(sum(sizes.values()) + _COST * sum(sizes[name] for name in refined))
    with library.listen(_Counter(sizes, progress)):
        _quantize(source, path, file_type, n_threads, _ALIGNMENT in headers[0].metadata)
    _refine(path, sources, progress, n_threads)
    progress.finish()


def _is_refined(tensor: TensorInfo, file_type: int) -> bool:
    """Whether the tensor probably becomes Q8_0, which libllama also uses for Q6_K if rows are not whole
    blocks."""
    becomes_q8_0 = file_type == _MOSTLY_Q8_0 or (file_type == _MOSTLY_Q6_K and tensor.shape[0] % _Q6_K_VALUES)
    return bool(becomes_q8_0) and tensor.type in ENCODABLE


class _Counter:
    """Parses libllama's log: each tensor's line means that the previous one is done."""

    def __init__(self, sizes: Mapping[str, int], progress: PrintedProgress) -> None:
        self._sizes = sizes
        self._progress = progress
        self._n_current = 0

    def __call__(self, line: str) -> None:
        begun = _TENSOR_LINE.match(line)
        if begun:
            self._progress.add(self._n_current)
            self._n_current = self._sizes.get(begun[1], 0)


def _quantize(source: str, path: str, file_type: int, n_threads: int, is_aligned: bool) -> None:
    params = lib.llama_model_quantize_default_params()
    params.ftype = file_type
    params.nthread = n_threads
    params.allow_requantize = True
    params.max_buf_size = _MAX_BUFFER_BYTES
    overrides = _as_written()
    if is_aligned:
        params.kv_overrides = overrides
    if lib.llama_model_quantize(os.fsencode(source), os.fsencode(path), ctypes.byref(params)):
        raise LlamaError(last_words())


def _as_written() -> Any:
    """Override the alignment in the metadata: libllama aligns to 32 bytes, but would copy the source's
    value."""
    overrides = (lib.llama_model_kv_override * 2)()  # the last one is empty
    overrides[0].tag = lib.LLAMA_KV_OVERRIDE_TYPE_INT
    overrides[0].key = _ALIGNMENT.encode()
    overrides[0].value.val_i64 = _WRITTEN_ALIGNMENT
    return overrides


def _refine(
    path: str, sources: Mapping[str, TensorSource], progress: PrintedProgress, n_threads: int
) -> None:
    """Rewrite the tensors for which our Q8_0 is more exact than libllama's."""
    written = read_header(path).tensors
    names = [
        name
        for name, tensor in written.items()
        if tensor.type == Q8_0 and name in sources and sources[name].tensor.type in ENCODABLE
    ]
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        with ThreadPoolExecutor(n_threads) as pool:
            tasks = [
                pool.submit(_encode, sources[name], fd, written[name].offset, progress) for name in names
            ]
            for task in tasks:
                task.result()
    finally:
        os.close(fd)


def _encode(source: TensorSource, fd: int, place: int, progress: PrintedProgress) -> None:
    """Convert a whole tensor, piece by piece."""
    tensor = source.tensor
    kind, result = GGML_TYPES[tensor.type], GGML_TYPES[Q8_0]
    buffer = np.empty(_PIECE // kind.n_values * kind.n_bytes, dtype=np.uint8)
    with open(source.path, "rb", buffering=0) as file:
        for start in range(0, tensor.n_bytes, len(buffer)):
            piece = buffer[: tensor.n_bytes - start]
            if read_into(file.fileno(), tensor.offset + start, piece.data) < len(piece):
                raise CorralError(f"'{source.path}' was truncated while it was read")
            n_before = start // kind.n_bytes * kind.n_values // result.n_values
            _write(fd, place + n_before * result.n_bytes, encode(tensor.type, piece).data)
    progress.add(_COST * math.prod(tensor.shape))


def _write(fd: int, place: int, data: memoryview) -> None:
    while data:
        n = os.pwrite(fd, data, place)
        place, data = place + n, data[n:]


if __name__ == "__main__":
    try:
        requantize(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    except CorralError as error:
        raise SystemExit(error.message) from None
    except OSError as error:
        raise SystemExit(error.strerror) from None
