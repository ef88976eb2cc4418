"""Ids and times in answers: random and current, unless the answer must be rendered again as it was.

The ids of a durable request follow from a recorded seed, in the order in which they are drawn.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from contextvars import ContextVar

SEED_BYTES = 16


class IdSource:
    """Mutable: counts the ids that were drawn. `now`: Unix seconds, as the answer shows them."""

    def __init__(self, seed: bytes, now: int) -> None:
        self.seed = seed
        self.now = now
        self._n_drawn = 0

    def draw(self, n_bytes: int) -> bytes:
        self._n_drawn += 1
        count = self._n_drawn.to_bytes(8, "little")
        return hashlib.blake2b(count, digest_size=n_bytes, key=self.seed).digest()


_source: ContextVar[IdSource | None] = ContextVar("corral.id_source", default=None)


def use_source(source: IdSource | None) -> None:
    """Take ids from there from now on, in this task and those that it starts."""
    _source.set(source)


def draw_bytes(n_bytes: int) -> bytes:
    source = _source.get()
    return secrets.token_bytes(n_bytes) if source is None else source.draw(n_bytes)


def draw_hex(n_bytes: int) -> str:
    return draw_bytes(n_bytes).hex()


def now() -> int:
    source = _source.get()
    return int(time.time()) if source is None else source.now
