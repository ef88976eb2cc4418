"""Notices an answer that says the same again and again."""

from __future__ import annotations

import numpy as np

_MAX_PERIOD = 256  # tokens of what is repeated
_MIN_TOKENS = 32  # of all repetitions together: a row of dashes is nothing to worry about


class RepetitionGuard:
    """Mutable. For every period, how long the tokens have been equal to those so many places before."""

    def __init__(self, max_repeats: int) -> None:
        """`max_repeats`: how often something may be said in a row before it is too much."""
        periods = np.arange(1, _MAX_PERIOD + 1)
        self._limits = np.maximum(periods * (max_repeats - 1), _MIN_TOKENS - periods)
        self._lengths = np.zeros(_MAX_PERIOD, np.int64)
        self._last = np.full(_MAX_PERIOD, -1, np.int64)  # the latest one first

    def is_too_much(self, token: int) -> bool:
        """Whether it is, with one more token."""
        self._lengths = np.where(self._last == token, self._lengths + 1, 0)
        self._last[1:] = self._last[:-1].copy()
        self._last[0] = token
        return bool((self._lengths >= self._limits).any())
