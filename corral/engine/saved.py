"""The content of a slot as a value: what is kept in host memory, on disk, in files and sessions."""

from __future__ import annotations

from dataclasses import dataclass

from corral.core.chunk import State, TokenArray
from corral.engine.reuse_key import ReuseKey

NEVER = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Saved:
    """After the first `shifted_from` tokens the context was shifted: they would evaluate to other states.

    `lora_key` and `tenant`: with which adapters and for whom it was evaluated.
    """

    tokens: TokenArray
    state: State
    shifted_from: int = NEVER
    is_from_disk: bool = False
    lora_key: bytes = b""
    tenant: bytes = b""

    @property
    def reuse_key(self) -> ReuseKey:
        return ReuseKey(self.lora_key, self.tenant)

    @property
    def n_bytes(self) -> int:
        return len(self.state)
