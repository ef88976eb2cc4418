"""The arrays of a `llama_batch`, as numpy views that are filled by slices."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from corral.core.chunk import Chunk, DecodeStatus
from corral.llama.library import LlamaError, last_words, lib

_STATUS = {0: DecodeStatus.OK, 1: DecodeStatus.NO_ROOM, 2: DecodeStatus.ABORTED}


class Batch:
    """Belongs to one context. `outputs_all`: every token has an output, not just the last of its chunk."""

    def __init__(self, capacity: int, outputs_all: bool = False) -> None:
        self._token = np.zeros(capacity, np.int32)
        self._pos = np.zeros(capacity, np.int32)
        self._n_seq_id = np.ones(capacity, np.int32)
        self._seq = np.zeros(capacity, np.int32)
        self._seq_pointer = (self._seq.ctypes.data + 4 * np.arange(capacity)).astype(np.uintp)
        self._logits = np.zeros(capacity, np.int8)
        self._outputs_all = outputs_all
        self._ramp = np.arange(capacity, dtype=np.int32)
        int32_p = ctypes.POINTER(ctypes.c_int32)
        self._native: Any = lib.llama_batch(
            token=self._token.ctypes.data_as(int32_p),
            pos=self._pos.ctypes.data_as(int32_p),
            n_seq_id=self._n_seq_id.ctypes.data_as(int32_p),
            seq_id=self._seq_pointer.ctypes.data_as(ctypes.POINTER(int32_p)),
            logits=self._logits.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )

    def fill(self, chunks: Sequence[Chunk]) -> list[int]:
        """Lay the chunks out one after the other; returns the index of each one's last token."""
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

    def decode(self, context: Any, is_encoder: bool = False) -> DecodeStatus:
        """Evaluate what was filled in."""
        code = (lib.llama_encode if is_encoder else lib.llama_decode)(context, self._native)
        status = _STATUS.get(code)
        if status is None:
            raise LlamaError(f"decode failed with code {code}: {last_words()}")
        return status
