"""The sender of a request, as its API key identifies it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may use; 0: any number."""

    tokens_per_minute: int = 0
    tokens_per_day: int = 0
    concurrent: int = 0  # requests at a time

    def __bool__(self) -> bool:
        return bool(self.tokens_per_minute or self.tokens_per_day or self.concurrent)


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Client:
    """The owner of an API key; without keys, all requests share one.

    `id` separates the clients that share the slots by `weight`. A KV state that was computed for one `tenant`
    is never reused for another. `is_batch`: all work of others comes first, also that of the same key.
    """

    name: str = ""
    id: str = ""
    weight: float = 1.0
    tenant: bytes = b""
    is_batch: bool = False
    limits: Limits = NO_LIMITS
    is_admin: bool = False  # sees the usage of all keys, and may replace engines


ANONYMOUS = Client()
