"""Limit the memory of the decoded media of all requests."""

from __future__ import annotations

import asyncio
import threading
import weakref

from corral.storage.blob import Blob

MAX_HELD_BYTES = 1 << 30
_POLL_S = 0.05


class MediaBudget:
    """Files count from `hold` until they are closed. A single file always fits."""

    def __init__(self, n_most: int = MAX_HELD_BYTES) -> None:
        self._n_most = n_most
        self._n_held = 0
        self._lock = threading.Lock()

    async def hold(self, blob: Blob) -> None:
        """Wait until there is room for a file."""
        n = blob.n_bytes
        while self._n_held and self._n_held + n > self._n_most:
            await asyncio.sleep(_POLL_S)
        self._add(n)
        weakref.finalize(blob, self._add, -n)

    def _add(self, n: int) -> None:
        with self._lock:  # the last reference may be dropped in any thread
            self._n_held += n
