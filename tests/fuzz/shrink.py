"""Make a failing case smaller: leave out pieces as long as it still fails in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable

MAX_S = 60.0


def shrink(case: bytes, still_fails: Callable[[bytes], bool], max_s: float = MAX_S) -> bytes:
    """Return a case without any piece that can be left out, or as small as the time allows."""
    end, n = time.monotonic() + max_s, len(case)
    while n:
        at = 0
        while at < len(case) and time.monotonic() < end:
            shorter = case[:at] + case[at + n :]
            if still_fails(shorter):
                case = shorter
            else:
                at += n
        n //= 2
    return case
