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


class CostModel:
    """Mutable: moving averages of the time per decode step, per prompt token, and with drafts."""

    def __init__(self) -> None:
        self._decode_ms = 0.0
        self._prompt_token_ms = 0.0
        self._ahead_ms: dict[int, float] = {}
        self._ahead_table: list[float] | None = None

    def observe(self, load: Load, ms: float) -> None:
        self._ahead_table = None
        if load.n_ahead:
            self._ahead_ms[load.n_ahead] = _blend(self._ahead_ms.get(load.n_ahead, 0.0), ms)
        elif load.n_prompt:
            prompt_ms = max(ms - (self._decode_ms if load.n_generating else 0.0), 0.1 * ms)
            self._prompt_token_ms = _blend(self._prompt_token_ms, prompt_ms / load.n_prompt)
        elif load.n_generating:
            self._decode_ms = _blend(self._decode_ms, ms)

    def predict_ms(self, load: Load) -> float:
        if load.n_ahead:
            return self.ahead_ms(load.n_ahead)
        return (self._decode_ms if load.n_generating else 0.0) + load.n_prompt * self._prompt_token_ms

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
        return int(ms / (self._prompt_token_ms or _UNKNOWN_PROMPT_MS))


def _blend(old: float, new: float) -> float:
    return new if old == 0.0 else old + _WEIGHT * (new - old)
