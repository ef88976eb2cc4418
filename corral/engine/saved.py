"""The content of a slot as a value: what is kept in host memory, on disk, in files and sessions."""

from __future__ import annotations

from dataclasses import dataclass

from corral.core.chunk import State, TokenArray

NEVER = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Saved:
    """Behind the first `moved_from` tokens the context was shifted: they would evaluate to other states.

    `variant`: with which adapters it was evaluated; nothing: with none.
    """

    tokens: TokenArray
    state: State
    moved_from: int = NEVER
    is_from_disk: bool = False
    variant: bytes = b""

    @property
    def n_bytes(self) -> int:
        return len(self.state)
