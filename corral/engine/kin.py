"""Whom something that was evaluated may serve."""

from __future__ import annotations

from typing import NamedTuple


class Kin(NamedTuple):
    """`variant`: with which adapters; nothing: with none. `tenant`: for whom; nothing: for the server itself,
    which has no secrets."""

    variant: bytes = b""
    tenant: bytes = b""

    def serves(self, other: Kin) -> bool:
        """Whether a prompt of the other one may begin with it."""
        return self.variant == other.variant and self.tenant in (b"", other.tenant)
