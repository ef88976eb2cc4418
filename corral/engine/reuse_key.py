"""When a cached KV state may be reused."""

from __future__ import annotations

from typing import NamedTuple


class ReuseKey(NamedTuple):
    """`lora_key`: with which adapters; empty: with none. `tenant`: for whom; empty: for the server itself,
    which has no secrets."""

    lora_key: bytes = b""
    tenant: bytes = b""

    def can_serve(self, other: ReuseKey) -> bool:
        """Whether a prompt of the other one may begin with it."""
        return self.lora_key == other.lora_key and self.tenant in (b"", other.tenant)
