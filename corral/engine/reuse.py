"""Plan the reuse of prompt parts that are further back in the context: a pure decision.

A client that drops old messages sends a prompt whose rest is still in the context, at later positions.
Those runs move down instead of being evaluated again (`--cache-reuse`):

    held    | system | old messages | recent messages |
    prompt  | system | recent messages | new |
    moves              <------------- recent messages

This is an approximation: the moved tokens had attended to the dropped ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from corral.core.chunk import MIN_CHUNK, TokenArray, common_prefix
from corral.core.media import has_media

_TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True)
class Move:
    """`n` tokens at `start` go down to `to`."""

    start: int
    to: int
    n: int

    @property
    def end(self) -> int:
        """The position after the moved tokens."""
        return self.to + self.n


def plan_reuse(held: TokenArray, prompt: TokenArray, n_min: int) -> list[Move]:
    """Find runs of at least `n_min` tokens in `held` that continue the prompt after the common prefix."""
    moves: list[Move] = []
    if has_media(held) or has_media(prompt):
        return moves  # a run could begin or end in the middle of an image
    data = held.tobytes()
    n_max = max(len(prompt) - MIN_CHUNK, 0)
    start = to = common_prefix(held, prompt[:n_max])
    while to + n_min <= n_max:
        start = _find(data, prompt[to : to + n_min].tobytes(), start)
        if start < 0:
            break
        n = common_prefix(held[start:], prompt[to:n_max])
        moves.append(Move(start, to, n))
        start += n
        to += n
    return moves


def _find(data: bytes, wanted: bytes, start: int) -> int:
    """Return where a run of tokens begins, from `start` on; -1: nowhere."""
    at = data.find(wanted, start * _TOKEN_BYTES)
    while at >= 0 and at % _TOKEN_BYTES:
        at = data.find(wanted, at + 1)
    return at // _TOKEN_BYTES if at >= 0 else -1
