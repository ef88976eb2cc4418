"""Whom something that was evaluated may serve."""

from __future__ import annotations

from typing import NamedTuple


class ReuseKey(NamedTuple):
    """`variant`: with which adapters; nothing: with none. `tenant`: for whom; nothing: for the server itself,
    which has no secrets."""

    lora_key: bytes = b""
    tenant: bytes = b""

    def can_serve(self, other: ReuseKey) -> bool:
        """Whether a prompt of the other one may begin with it."""
        return self.lora_key == other.lora_key and self.tenant in (b"", other.tenant)
