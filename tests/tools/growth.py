"""Tell linear time from quadratic time, on a machine where other programs run too."""

from __future__ import annotations

import time
from collections.abc import Callable

FACTOR = 64


def is_linear(small: Callable[[], object], large: Callable[[], object]) -> bool:
    """Whether `large`, which has `FACTOR` times as much to do as `small`, takes much less than its square.

    One of ten attempts is enough: an interruption makes linear time look longer, nothing makes quadratic
    time look shorter.
    """
    return any(_measure(large) < FACTOR * 16 * (_measure(small) + 0.001) for _ in range(10))


def _measure(function: Callable[[], object]) -> float:
    start = time.thread_time()
    function()
    return time.thread_time() - start
