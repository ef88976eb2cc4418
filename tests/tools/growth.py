"""Tell linear time from quadratic time, on a machine where other programs run too."""

from __future__ import annotations

import time
from collections.abc import Callable

FACTOR = 64


def is_linear(small: Callable[[], object], large: Callable[[], object]) -> bool:
    """Whether `large`, with `FACTOR` times the input of `small`, takes far less than `FACTOR` ** 2 its time.

    One of ten attempts is enough: an interruption makes linear time look longer, none makes quadratic time
    look shorter.
    """
    least = min(_measure(small) for _ in range(10))
    return any(_measure(large) < FACTOR * 16 * least for _ in range(10))


def _measure(function: Callable[[], object]) -> float:
    start = time.thread_time()
    function()
    return time.thread_time() - start
