"""Mirostat 1 and 2: truncation that steers the surprise of the chosen tokens towards a target."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from corral.core.params import SamplingParams

_M = 100


class Mirostat:
    """Mutable: `mu` follows the surprise of what was chosen."""

    def __init__(self, version: int, tau: float, eta: float, n_vocab: int) -> None:
        self._version = version
        self._tau = tau
        self._eta = eta
        self._n_vocab = n_vocab
        self.mu = 2.0 * tau

    @classmethod
    def create(cls, params: SamplingParams, n_vocab: int) -> Mirostat | None:
        if params.mirostat == 0 or params.temperature <= 0:
            return None
        return cls(params.mirostat, params.mirostat_tau, params.mirostat_eta, n_vocab)

    def truncate(
        self, ids: npt.NDArray[np.int32], probs: npt.NDArray[np.float64]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
        """Cut the sorted candidates and renormalise what stays."""
        n = self._keep_v1(probs) if self._version == 1 else self._keep_v2(probs)
        kept = probs[:n]
        return ids[:n], kept / kept.sum()

    def observe(self, prob: float) -> None:
        """Learn from the probability of the chosen token."""
        surprise = -math.log2(max(prob, 1e-300))
        self.mu -= self._eta * (surprise - self._tau)

    def _keep_v1(self, probs: npt.NDArray[np.float64]) -> int:
        n = min(_M - 1, int(np.count_nonzero(probs)) - 1)
        if n < 1:
            return 1
        i = np.arange(n)
        t = np.log((i + 2) / (i + 1))
        b = np.log(probs[i] / probs[i + 1])
        s_hat = float((t * b).sum() / (t * t).sum())
        epsilon = s_hat - 1
        try:
            k = ((epsilon * 2**self.mu) / (1 - self._n_vocab**-epsilon)) ** (1 / s_hat)
        except (ZeroDivisionError, OverflowError):
            return len(probs)
        return max(int(min(k, len(probs))), 1) if isinstance(k, float) and not math.isnan(k) else len(probs)

    def _keep_v2(self, probs: npt.NDArray[np.float64]) -> int:
        with np.errstate(divide="ignore"):
            beyond = np.flatnonzero(-np.log2(probs) > self.mu)
        return max(int(beyond[0]), 1) if len(beyond) else len(probs)
