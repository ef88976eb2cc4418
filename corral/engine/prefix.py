"""Where a prompt's beginning comes from: pure decisions over token runs."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from corral.core.chunk import TokenArray
from corral.engine.batch import MIN_CHUNK, align
from corral.engine.slot import common_prefix

GAIN = 16  # a copy or a wait must save at least so many tokens


class Origin(enum.Enum):
    OWN = "own"  # the slot's own tokens
    SLOT = "slot"  # another live sequence
    RAM = "ram"  # a saved state in host memory
    WAIT = "wait"  # another slot is about to have it


@dataclass(frozen=True, slots=True)
class Holding:
    """What a slot has: its tokens, whether they can be cut, and the prompt it is evaluating right now."""

    slot: int
    tokens: TokenArray
    can_cut: bool
    prompt: TokenArray | None = None

    def usable(self, prompt: TokenArray) -> int:
        return reusable(self.tokens, prompt, self.can_cut)

    def is_twin(self, prompt: TokenArray) -> bool:
        """It is evaluating the same prompt: what comes out serves both."""
        return self.prompt is not None and np.array_equal(self.prompt, prompt)


@dataclass(frozen=True, slots=True)
class Prefix:
    origin: Origin
    n: int
    slot: int = -1


def plan_prefix(prompt: TokenArray, own: Holding, neighbours: Sequence[Holding], n_ram: int) -> Prefix:
    """The longest beginning that need not be evaluated, or the advice to wait for one.

    `n_ram`: how much of the prompt could be restored from host memory.
    """
    best = Prefix(Origin.OWN, own.usable(prompt))
    coming = 0
    for other in neighbours:
        n = other.usable(prompt)
        if n >= best.n + (GAIN if best.origin is Origin.OWN else 1):
            best = Prefix(Origin.SLOT, n, other.slot)
        if other.prompt is not None and other.can_cut:
            coming = max(coming, reusable(other.prompt, prompt, can_cut=True))
    if n_ram >= best.n + GAIN:
        best = Prefix(Origin.RAM, n_ram)
    if any(other.is_twin(prompt) and len(other.tokens) >= best.n for other in neighbours):
        return Prefix(Origin.WAIT, len(prompt))
    return Prefix(Origin.WAIT, coming) if coming >= best.n + GAIN else best


def reusable(held: TokenArray, prompt: TokenArray, can_cut: bool) -> int:
    """How much of a prompt may come from a cache: as much as could have been evaluated in chunks, with one
    left to evaluate. What cannot be cut serves as it is or not at all."""
    n = common_prefix(held, prompt)
    limit = max(len(prompt) - MIN_CHUNK, 0)
    if not can_cut:
        return n if n == len(held) <= limit else 0
    n = align(min(n, limit))
    return n if n >= MIN_CHUNK else 0


def choose_slot(idle: Sequence[tuple[int, TokenArray, int]], prompt: TokenArray, similarity: float) -> int:
    """Which idle slot (id, tokens, last use) serves a prompt: the most alike, else the longest unused."""
    if similarity > 0:
        share, _, id = max((common_prefix(tokens, prompt) / len(prompt), -id, id) for id, tokens, _ in idle)
        if share > similarity:
            return id
    return min(idle, key=lambda slot: (slot[2], slot[0]))[0]
