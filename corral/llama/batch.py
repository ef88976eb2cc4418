"""The arrays of a `llama_batch` as numpy views that are filled by slices."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from corral.core.chunk import Chunk, DecodeStatus
from corral.llama.library import LlamaError, last_words, lib

_int32_p = ctypes.POINTER(ctypes.c_int32)
_STATUS = {0: DecodeStatus.OK, 1: DecodeStatus.NO_ROOM, 2: DecodeStatus.ABORTED}


class Batch:
    """The batch of one context. `outputs_all`: every token gets an output, not only the last of a chunk."""

    def __init__(self, capacity: int, outputs_all: bool = False) -> None:
        self._token = np.zeros(capacity, np.int32)
        self._pos = np.zeros(capacity, np.int32)
        self._n_seq_id = np.ones(capacity, np.int32)
        self._seq = np.zeros(capacity, np.int32)
        self._seq_pointer = (self._seq.ctypes.data + 4 * np.arange(capacity)).astype(np.uintp)
        self._logits = np.zeros(capacity, np.int8)
        self._outputs_all = outputs_all
        self._ramp = np.arange(capacity, dtype=np.int32)
        self._native: Any = lib.llama_batch(
            token=self._token.ctypes.data_as(_int32_p),
            pos=self._pos.ctypes.data_as(_int32_p),
            n_seq_id=self._n_seq_id.ctypes.data_as(_int32_p),
            seq_id=self._seq_pointer.ctypes.data_as(ctypes.POINTER(_int32_p)),
            logits=self._logits.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )

    def fill(self, chunks: Sequence[Chunk]) -> list[int]:
        """Lay out the chunks one after another; return the index of each chunk's last token."""
        if {len(chunk.tokens) for chunk in chunks} == {1}:
            return self._fill_single(chunks)
        rows: list[int] = []
        start = 0
        for chunk in chunks:
            n = len(chunk.tokens)
            end = start + n
            self._token[start:end] = chunk.tokens
            np.add(self._ramp[:n], chunk.pos, out=self._pos[start:end])
            self._seq[start:end] = chunk.seq
            self._logits[start:end] = self._outputs_all
            if chunk.logits:
                self._logits[end - chunk.logits : end] = 1
            rows.append(end - 1)
            start = end
        self._native.n_tokens = start
        return rows

    def _fill_single(self, chunks: Sequence[Chunk]) -> list[int]:
        """Lay out chunks of one token each, as streams have them."""
        n = len(chunks)
        self._token[:n] = [chunk.tokens[0] for chunk in chunks]
        self._pos[:n] = [chunk.pos for chunk in chunks]
        self._seq[:n] = [chunk.seq for chunk in chunks]
        self._logits[:n] = [self._outputs_all or chunk.logits > 0 for chunk in chunks]
        self._native.n_tokens = n
        return list(range(n))

    def decode(self, context: Any, is_encoder: bool = False) -> DecodeStatus:
        """Evaluate the filled batch."""
        return _status((lib.llama_encode if is_encoder else lib.llama_decode)(context, self._native))


def decode_rows(context: Any, chunk: Chunk, outputs_all: bool = False) -> DecodeStatus:
    """Evaluate embedding rows in place of tokens; they need a separate batch."""
    assert chunk.encoded is not None
    encoded, n = chunk.encoded, len(chunk.tokens)
    rows = np.ascontiguousarray(encoded.rows, np.float32)
    if encoded.places is None or encoded.is_placed is None:
        pos = np.arange(chunk.pos, chunk.pos + n, dtype=np.int32)
    else:
        pos = np.ascontiguousarray(encoded.places + chunk.pos * encoded.is_placed, np.int32)
    seq, ones, logits = np.full(1, chunk.seq, np.int32), np.ones(n, np.int32), np.zeros(n, np.int8)
    logits[0 if outputs_all else n - chunk.logits :] = 1
    pointers = np.full(n, seq.ctypes.data, np.uintp)
    native = lib.llama_batch(
        n_tokens=n,
        embd=rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
        pos=pos.ctypes.data_as(_int32_p),
        n_seq_id=ones.ctypes.data_as(_int32_p),
        seq_id=pointers.ctypes.data_as(ctypes.POINTER(_int32_p)),
        logits=logits.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
    )
    if encoded.is_causal:
        return _status(lib.llama_decode(context, native))
    lib.llama_set_causal_attn(context, False)
    try:
        return _status(lib.llama_decode(context, native))
    finally:
        lib.llama_set_causal_attn(context, True)


def _status(code: int) -> DecodeStatus:
    status = _STATUS.get(code)
    if status is None:
        raise LlamaError(f"decode failed with code {code}: {last_words()}")
    return status
