"""Mirostat 1 and 2: truncation that steers the surprise of chosen tokens towards a target."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from corral.core.params import SamplingParams

_M = 100


class Mirostat:
    """`mu` follows the surprise of the chosen tokens. Like libllama, it draws only where there is a choice:
    `n_draws` times so far."""

    def __init__(self, version: int, tau: float, eta: float, n_vocab: int) -> None:
        self._version = version
        self._tau = tau
        self._eta = eta
        self._n_vocab = n_vocab
        self.mu = 2.0 * tau
        self.n_draws = 0

    @classmethod
    def create(cls, params: SamplingParams, n_vocab: int) -> Mirostat | None:
        if params.mirostat == 0 or params.temperature <= 0:
            return None
        return cls(params.mirostat, params.mirostat_tau, params.mirostat_eta, n_vocab)

    def truncate(
        self, ids: npt.NDArray[np.int32], probs: npt.NDArray[np.float64]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
        """Cut the candidates and renormalize the rest, best first."""
        kept = self._keep_v1(probs) if self._version == 1 else self._keep_v2(probs)
        kept = kept[np.argsort(-probs[kept], kind="stable")]
        return ids[kept], probs[kept] / probs[kept].sum()

    def observe(self, prob: float, n: int) -> None:
        """Update `mu` from the probability of the token chosen among `n`."""
        self.n_draws += n > 1
        surprise = -math.log2(max(prob, 1e-300))
        self.mu -= self._eta * (surprise - self._tau)

    def _keep_v1(self, probs: npt.NDArray[np.float64]) -> npt.NDArray[np.intp]:
        best = np.sort(probs[_largest(probs, _M)])[::-1]
        best = best[best > 0]
        if len(best) < 2:
            return _largest(probs, 1)
        i = np.arange(len(best) - 1)
        t = np.log((i + 2) / (i + 1))
        b = np.log(best[:-1] / best[1:])
        return _largest(probs, self._k(float((t * b).sum() / (t * t).sum()), len(probs)))

    def _k(self, s_hat: float, n: int) -> int:
        """Return how many of `n` candidates to keep, from the estimated decay of their probabilities."""
        epsilon = s_hat - 1
        try:
            k = ((epsilon * 2**self.mu) / (1 - self._n_vocab**-epsilon)) ** (1 / s_hat)
        except (ZeroDivisionError, OverflowError):
            return n
        return max(int(min(k, n)), 1) if isinstance(k, float) and not math.isnan(k) else n

    def _keep_v2(self, probs: npt.NDArray[np.float64]) -> npt.NDArray[np.intp]:
        with np.errstate(divide="ignore"):
            kept = np.flatnonzero(np.log2(probs) >= -self.mu)
        return kept if len(kept) else _largest(probs, 1)


def _largest(probs: npt.NDArray[np.float64], n: int) -> npt.NDArray[np.intp]:
    """Return the indexes of the `n` largest, the first among equals. Cheaper than sorting a whole
    vocabulary."""
    n = min(n, len(probs))
    bar = np.partition(probs, -n)[-n]
    above = np.flatnonzero(probs > bar)
    return np.concatenate([above, np.flatnonzero(probs == bar)[: n - len(above)]])
