"""Memory that large requests took goes back to the system when they have ended.

glibc keeps what was freed between blocks that are in use, and raises the size from which blocks are mapped
one by one. Elsewhere this does nothing.
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Callable

from corral.telemetry.record import RequestRecord
from corral.telemetry.request_observer import Asked

_DELAY_S = 0.5  # for what has just ended to be freed, and for others that end at the same time
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_MAPPED_BYTES = 256 << 10


class MemoryRelease:
    """Mutable. A `RequestObserver`."""

    def __init__(self, trim: Callable[[], object] | None = None) -> None:
        self._trim = trim or _glibc_trim()
        self._timer: asyncio.TimerHandle | None = None

    def on_request_end(self, asked: Asked, record: RequestRecord) -> None:  # noqa: ARG002
        if record.is_large and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_DELAY_S, self._run)

    def _run(self) -> None:
        self._timer = None
        threading.Thread(target=self._trim, daemon=True).start()  # no task: the loop may be closing


def _glibc_trim() -> Callable[[], object]:
    """Have large blocks mapped one by one; returns what gives back the others, without the GIL."""
    try:
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _MAPPED_BYTES)
        trim = libc.malloc_trim
    except (OSError, AttributeError):
        return lambda: None
    return lambda: trim(0)
