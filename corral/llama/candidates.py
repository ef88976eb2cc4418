"""Token candidates that samplers narrow down: one `llama_token_data_array` over numpy memory."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from corral.core.chunk import FloatArray, TokenArray
from corral.llama.library import lib

_ROWS = 64
_ROW_BYTES = ctypes.sizeof(lib.llama_token_data)


class Candidates:
    """Scratch memory of one engine, reloaded for every token."""

    def __init__(self, n_vocab: int) -> None:
        self._table = np.empty((n_vocab, _ROW_BYTES // 4), np.int32)
        self._ids_column = self._table[:, 0]
        self._logits_column = self._table.view(np.float32)[:, 1]
        self._all_ids = np.arange(n_vocab, dtype=np.int32)
        self._address = self._table.ctypes.data
        self._data = ctypes.cast(self._address, lib.llama_token_data_p)
        self._array: Any = lib.llama_token_data_array()
        self.pointer = ctypes.pointer(self._array)

    def load(self, logits: FloatArray) -> np.float32:
        """Make every token a candidate. Return the best logit; load nothing if it is NaN."""
        best: np.float32 = logits.max()
        if not np.isnan(best):
            self._ids_column[:] = self._all_ids
            self._logits_column[:] = logits
            self._reset(len(self._all_ids), is_sorted=False)
        return best

    def load_best(self, logits: FloatArray, k: int) -> np.float32:
        """Like `load`, but keep only a superset of the `k` best tokens.

        The logits are viewed as a table. The k-th largest column maximum is at most the k-th largest
        logit, so all logits from there on include the k best.
        """
        n_columns = len(logits) // _ROWS
        if k > n_columns:
            return self.load(logits)
        maxima = logits[: n_columns * _ROWS].reshape(_ROWS, n_columns).max(axis=0)
        best: np.float32 = maxima.max()
        if np.isnan(best):
            return best
        bar = np.partition(maxima, n_columns - k)[n_columns - k]
        ids = np.flatnonzero(logits >= bar)
        n = len(ids)
        self._ids_column[:n] = ids
        self._logits_column[:n] = logits[ids]
        self._reset(n, is_sorted=False)
        return best

    def load_some(self, logits: FloatArray, allowed: npt.NDArray[np.bool_], k: int) -> np.float32:
        """Like `load_best`, restricted to the allowed tokens."""
        best: np.float32
        if np.count_nonzero(allowed) > max(k, len(logits) // _ROWS):
            best = self.load_best(np.where(allowed, logits, -np.inf), k)
            if best != -np.inf:
                return best
        ids = np.flatnonzero(allowed)
        some, n = logits[ids], len(ids)
        self._ids_column[:n] = ids
        self._logits_column[:n] = some
        self._reset(n, is_sorted=False)
        best = some.max()
        return best

    def store(self, ids: TokenArray, logits: FloatArray, is_sorted: bool = True) -> None:
        """Replace the candidates by these, which are sorted best first or not at all."""
        n = len(ids)
        self._ids_column[:n] = ids
        self._logits_column[:n] = logits
        self._reset(n, is_sorted=is_sorted)

    @property
    def ids(self) -> TokenArray:
        return self._ids_column[self._span()]

    @property
    def logits(self) -> FloatArray:
        return self._logits_column[self._span()]

    def remaining(self) -> tuple[TokenArray, FloatArray]:
        """Return views of ids and logits."""
        span = self._span()
        return self._ids_column[span], self._logits_column[span]

    def sorted(self) -> tuple[TokenArray, FloatArray]:
        """Return copies of ids and logits, best first."""
        ids, logits = self.remaining()
        order = np.argsort(-logits, kind="stable")
        return ids[order], logits[order]

    def _span(self) -> slice:
        # Samplers may move the start of the array (libllama's XTC does).
        array = self._array
        start = (ctypes.addressof(array.data.contents) - self._address) // _ROW_BYTES
        return slice(start, start + array.size)

    def _reset(self, size: int, is_sorted: bool) -> None:
        self._array.data = self._data
        self._array.size = size
        self._array.selected = -1
        self._array.sorted = is_sorted


def softmax(logits: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return probabilities in float64."""
    weights = softmax_weights(logits)
    weights /= weights.sum()
    return weights


def softmax_weights(logits: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return unnormalized probabilities; if every logit is -inf, all weight is on the first."""
    top = logits.max()
    if top == -np.inf:
        return np.eye(1, len(logits)).reshape(-1)
    weights: npt.NDArray[np.float64] = np.exp(np.subtract(logits, top, dtype=np.float64))
    return weights


def single_weights(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Return `softmax_weights` rounded as libllama's samplers round them: to single precision."""
    top = logits.max()
    if top == -np.inf:
        return softmax_weights(logits)
    rounded: npt.NDArray[np.float32] = np.exp(logits - top, dtype=np.float64).astype(np.float32)
    return rounded.astype(np.float64)
