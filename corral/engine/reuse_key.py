"""When a cached KV state may be reused."""

from __future__ import annotations

from typing import NamedTuple


class ReuseKey(NamedTuple):
    """`lora_key`: the adapters; empty: none. `tenant`: the owner; empty: the server itself, which has no
    secrets."""

    lora_key: bytes = b""
    tenant: bytes = b""

    def can_serve(self, other: ReuseKey) -> bool:
        """Whether a prompt with the other key may begin with this state."""
        return self.lora_key == other.lora_key and self.tenant in (b"", other.tenant)

    def is_other_adapters(self, other: ReuseKey) -> bool:
        """Whether only the adapters differ."""
        return self.lora_key != other.lora_key and self.tenant == other.tenant
