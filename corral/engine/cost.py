"""Cost of evaluation on this machine, learned at run time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from corral.core.chunk import Chunk
from corral.core.params import MAX_AHEAD

_WEIGHT = 0.3
_MARGIN = 0.85
_UNKNOWN_PROMPT_MS = 10.0
_MEMORY = 0.9  # how much each batch of prompt tokens leaves of what the earlier ones say
_LEAST_SPREAD = 0.1  # of their sizes, relative to the mean, to tell what a batch costs from what a token does


@dataclass(frozen=True, slots=True)
class Load:
    """What a batch contains: tokens of running streams, of prompts, or one token with a draft after it."""

    n_generating: int = 0
    n_prompt: int = 0
    n_ahead: int = 0


def load_of(chunks: Sequence[Chunk]) -> Load:
    sizes = [len(chunk.tokens) for chunk in chunks]
    if chunks[0].logits > 1:
        return Load(n_ahead=sizes[0])
    n_generating = sizes.count(1)
    return Load(n_generating, sum(sizes) - n_generating)


class PromptCost:
    """Mutable: what a batch of prompt tokens costs, and each token in it: a line through those of late."""

    def __init__(self) -> None:
        self.batch_ms = self.token_ms = 0.0
        self._sums = np.zeros(5)  # of the weights, and of n, ms, n * n and n * ms

    def observe(self, n: int, ms: float) -> None:
        self._sums = _MEMORY * self._sums + (1.0, n, ms, n * n, n * ms)
        mean_n, mean_ms, mean_nn, mean_nms = self._sums[1:] / self._sums[0]
        spread = mean_nn - mean_n * mean_n
        if spread > (_LEAST_SPREAD * mean_n) ** 2:
            slope = (mean_nms - mean_n * mean_ms) / spread
            self.batch_ms = float(min(max(0.0, mean_ms - slope * mean_n), _MARGIN * mean_ms))
        self.token_ms = float(max(mean_ms - self.batch_ms, 0.1 * mean_ms) / mean_n)


class CostModel:
    """Mutable: moving averages of the time per decode step, of prompts, and with drafts."""

    def __init__(self) -> None:
        self._decode_ms = 0.0
        self.prompt = PromptCost()
        self._ahead_ms: dict[int, float] = {}
        self._ahead_table: list[float] | None = None

    def observe(self, load: Load, ms: float) -> None:
        self._ahead_table = None
        if load.n_ahead:
            self._ahead_ms[load.n_ahead] = _blend(self._ahead_ms.get(load.n_ahead, 0.0), ms)
        elif load.n_prompt:
            self.prompt.observe(
                load.n_prompt, max(ms - (self._decode_ms if load.n_generating else 0.0), 0.1 * ms)
            )
        elif load.n_generating:
            self._decode_ms = _blend(self._decode_ms, ms)

    def predict_ms(self, load: Load) -> float:
        if load.n_ahead:
            return self.ahead_ms(load.n_ahead)
        prompt_ms = self.prompt.batch_ms + load.n_prompt * self.prompt.token_ms if load.n_prompt else 0.0
        return (self._decode_ms if load.n_generating else 0.0) + prompt_ms

    @property
    def decode_ms(self) -> float:
        """Predict the time of a step of all running streams."""
        return self._decode_ms

    def ahead_ms(self, n: int) -> float:
        """Predict the time to evaluate a token with its draft, together `n` tokens: measured, or
        interpolated."""
        if self._ahead_table is None:
            known = sorted({1: self._decode_ms, **self._ahead_ms}.items())
            numbers, costs = zip(*known, strict=True)
            self._ahead_table = np.interp(np.arange(MAX_AHEAD + 1), numbers, costs).tolist()
        return self._ahead_table[n]

    def headroom_ms(self, max_itl_ms: float) -> float:
        """Return the time that a decode step leaves, so that no stream waits longer than `max_itl_ms`."""
        return (max_itl_ms - self._decode_ms) * _MARGIN

    def n_tokens_in(self, ms: float) -> int:
        """Return how many prompt tokens can be evaluated in `ms`."""
        return int((ms - self.prompt.batch_ms) / (self.prompt.token_ms or _UNKNOWN_PROMPT_MS))


def _blend(old: float, new: float) -> float:
    return new if old == 0.0 else old + _WEIGHT * (new - old)
