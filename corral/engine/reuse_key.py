"""When a cached KV state may be reused."""

from __future__ import annotations

from typing import NamedTuple


class ReuseKey(NamedTuple):
    """`lora_key`: the adapters; empty: none. `tenant`: the owner; empty: the server itself, which has no
    secrets. `is_imported`: this server did not compute the state, so that its values may not be those of its
    tokens; only requests that name its slot may begin with it."""

    lora_key: bytes = b""
    tenant: bytes = b""
    is_imported: bool = False

    def can_serve(self, other: ReuseKey) -> bool:
        """Whether a prompt with the other key may begin with this state."""
        is_alike = self.lora_key == other.lora_key and self.tenant in (b"", other.tenant)
        return is_alike and self.is_imported <= other.is_imported

    def is_other_adapters(self, other: ReuseKey) -> bool:
        """Whether only the adapters differ."""
        is_alike = self.tenant == other.tenant and not self.is_imported
        return is_alike and self.lora_key != other.lora_key
