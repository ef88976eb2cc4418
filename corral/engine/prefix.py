"""Where a prompt's beginning comes from: pure decisions over token runs."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from corral.core.chunk import TokenArray
from corral.engine.batch import MIN_CHUNK
from corral.engine.slot import common_prefix

GAIN = 16  # a copy or a wait must save at least so many tokens


class Origin(enum.Enum):
    OWN = "own"  # the slot's own tokens
    SLOT = "slot"  # another live sequence
    RAM = "ram"  # a saved state in host memory
    WAIT = "wait"  # another slot is about to have it


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another slot: the tokens it holds, and those it will hold when its prompt is through."""

    slot: int
    tokens: TokenArray
    prompt: TokenArray | None


@dataclass(frozen=True, slots=True)
class Prefix:
    origin: Origin
    n: int
    slot: int = -1


def reusable(n: int, prompt: TokenArray) -> int:
    """How much of a prompt may come from a cache that holds its first `n` tokens: what stays must be a chunk
    of its own, and so must the beginning have been."""
    n = min(n, len(prompt) - MIN_CHUNK)
    return n if n >= MIN_CHUNK else 0


def plan_prefix(prompt: TokenArray, own: TokenArray, neighbours: Sequence[Neighbour], n_ram: int) -> Prefix:
    """The longest beginning that need not be evaluated, or the advice to wait for one."""
    best = Prefix(Origin.OWN, reusable(common_prefix(own, prompt), prompt))
    coming = 0
    for other in neighbours:
        n = reusable(common_prefix(other.tokens, prompt), prompt)
        if n >= best.n + (GAIN if best.origin is Origin.OWN else 1):
            best = Prefix(Origin.SLOT, n, other.slot)
        if other.prompt is not None:
            coming = max(coming, reusable(common_prefix(other.prompt, prompt), prompt))
    if reusable(n_ram, prompt) >= best.n + GAIN:
        best = Prefix(Origin.RAM, reusable(n_ram, prompt))
    return Prefix(Origin.WAIT, coming) if coming >= best.n + GAIN else best


def choose_slot(idle: Sequence[tuple[int, TokenArray, int]], prompt: TokenArray, similarity: float) -> int:
    """Which idle slot (id, tokens, last use) serves a prompt: the most alike, else the longest unused."""
    if similarity > 0:
        share, _, id = max((common_prefix(tokens, prompt) / len(prompt), -id, id) for id, tokens, _ in idle)
        if share > similarity:
            return id
    return min(idle, key=lambda slot: (slot[2], slot[0]))[0]
