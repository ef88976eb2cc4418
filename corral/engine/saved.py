"""The content of a slot as a value: kept in host memory, on disk, in files and sessions."""

from __future__ import annotations

from dataclasses import dataclass

from corral.core.chunk import State, TokenArray
from corral.engine.checkpoint import Checkpoint
from corral.engine.reuse_key import ReuseKey

NEVER = 2**31 - 1


@dataclass(frozen=True, slots=True)
class SavedState:
    """After the first `shifted_from` tokens the context was shifted: a new evaluation would give other
    states.

    `lora_key` and `tenant`: the adapters and the owner it was evaluated for. `is_imported`: its
    values may come from elsewhere.
    """

    tokens: TokenArray
    state: State
    shifted_from: int = NEVER
    is_from_disk: bool = False
    lora_key: bytes = b""
    tenant: bytes = b""
    is_imported: bool = False
    checkpoints: tuple[Checkpoint, ...] = ()

    @property
    def cuts(self) -> tuple[int, ...]:
        """Where it can be cut, if not everywhere."""
        return tuple(checkpoint.n for checkpoint in self.checkpoints)

    @property
    def reuse_key(self) -> ReuseKey:
        return ReuseKey(self.lora_key, self.tenant, self.is_imported)

    @property
    def n_bytes(self) -> int:
        return len(self.state) + sum(checkpoint.n_bytes for checkpoint in self.checkpoints)
