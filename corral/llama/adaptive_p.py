"""The adaptive-p sampler of libllama: prefer tokens whose probability is near a target.

libllama's own draws with its generator; this one computes the same weights, for the draws by position.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from corral.core.chunk import FloatArray
from corral.core.params import SamplingParams
from corral.llama.candidates import single_weights

_INVERSE_WIDTH = np.float32(1) / np.float32(0.3)
_PEAK = np.float32(5)
_SHARPNESS = np.float32(10)


class AdaptiveState(NamedTuple):
    """The weighted sum of the probabilities of chosen tokens, the sum of the weights, and how many tokens
    were drawn: like libllama's, the sampler draws only where there is a choice."""

    total: np.float32
    weight: np.float32
    n_draws: int = 0


class AdaptiveP:
    """Mutable."""

    def __init__(self, target: float, decay: float) -> None:
        self._target = np.float32(target)
        self._decay = np.float32(decay)
        one = np.float32(1)
        self.state = AdaptiveState(self._target / (one - self._decay), one / (one - self._decay))
        self._probs: FloatArray = np.zeros(0, np.float32)  # of the candidates, before they were reweighted

    @classmethod
    def create(cls, params: SamplingParams) -> AdaptiveP | None:
        """Return the sampler, if a request asks for it."""
        if "adaptive_p" not in params.samplers or params.mirostat:
            return None
        return cls(params.adaptive_target, params.adaptive_decay)

    def reweight(self, logits: FloatArray) -> npt.NDArray[np.float64]:
        """Return the weights to draw with."""
        weights = single_weights(logits)
        self._probs = weights.astype(np.float32)
        self._probs /= np.cumsum(self._probs)[-1]  # summed in order, as by libllama
        if self._target < 0:
            return weights
        mean = self.state.total / self.state.weight
        target = np.clip(2 * self._target - mean, np.float32(0), np.float32(1))
        distance = np.abs((self._probs - target) * _INVERSE_WIDTH)
        moved = _PEAK - _SHARPNESS * distance * distance / (1 + distance)
        return single_weights(np.where(np.isneginf(logits), -np.inf, moved).astype(np.float32))

    def observe(self, at: int) -> None:
        """Take in that the candidate `at` was chosen."""
        total, weight, n_draws = self.state
        self.state = AdaptiveState(
            self._probs[at] + self._decay * total,
            1 + self._decay * weight,
            n_draws + (len(self._probs) > 1),
        )
