"""Self-extend: positions of old tokens advance only once in `n` tokens, so a model reaches further back than
it was trained for. Pure arithmetic.

Whole runs of `width` tokens are grouped as soon as they are complete:

    tokens     0 1 2 3 4 5 6 7 | 8 9 ...      n = 2, width = 8
    positions  0 0 1 1 2 2 3 3 | 4 5 ...
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from corral.core.chunk import TokenArray
from corral.core.errors import CorralError


@dataclass(frozen=True, slots=True)
class Grouping:
    """`n` 1: every token has its own position."""

    n: int = 1
    width: int = 512

    def __post_init__(self) -> None:
        if self.width % self.n:
            raise CorralError(f"--grp-attn-w ({self.width}) must be a multiple of --grp-attn-n ({self.n})")

    @property
    def is_active(self) -> bool:
        return self.n > 1

    def n_grouped(self, n_tokens: int) -> int:
        """Return how many of the first `n_tokens` are grouped; the sequence cannot be cut among them."""
        return n_tokens - n_tokens % self.width if self.is_active else 0

    def position(self, n_tokens: int) -> int:
        """Return the position of the next token."""
        if self.n == 1:
            return n_tokens
        n_grouped = self.n_grouped(n_tokens)
        return n_tokens - n_grouped + n_grouped // self.n

    def positions(self, n_tokens: int) -> TokenArray:
        n_grouped = self.n_grouped(n_tokens)
        ramp = np.arange(n_tokens, dtype=np.int32)
        return np.where(ramp < n_grouped, ramp // self.n, ramp - n_grouped + n_grouped // self.n)

    def room(self, n_tokens: int) -> int:
        """Return how many more tokens may be evaluated at once before a run is complete."""
        return self.width - n_tokens % self.width if self.is_active else 2**31
