"""Detect an answer that repeats itself."""

from __future__ import annotations

import numpy as np

_MAX_PERIOD = 256  # longest period, in tokens
_MIN_TOKENS = 32  # minimum tokens of all repetitions together: a row of dashes is allowed


class RepetitionGuard:
    """Mutable. Counts, for every period, how many tokens have equalled those one period earlier."""

    def __init__(self, max_repeats: int) -> None:
        """`max_repeats`: how often something may occur in a row."""
        periods = np.arange(1, _MAX_PERIOD + 1)
        self._limits = np.maximum(periods * (max_repeats - 1), _MIN_TOKENS - periods)
        self._lengths = np.zeros(_MAX_PERIOD, np.int64)
        self._last = np.full(_MAX_PERIOD, -1, np.int64)  # the latest one first

    def is_too_much(self, token: int) -> bool:
        """Add a token; whether there are too many repetitions now."""
        self._lengths = np.where(self._last == token, self._lengths + 1, 0)
        self._last[1:] = self._last[:-1].copy()
        self._last[0] = token
        return bool((self._lengths >= self._limits).any())
