"""Waiting for a state that another thread or process reaches: generous, because the machine may be busy."""

from __future__ import annotations

import time
from collections.abc import Callable

WAIT_S = 300.0


def wait_until(condition: Callable[[], object], interval_s: float = 0.005) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(interval_s)
