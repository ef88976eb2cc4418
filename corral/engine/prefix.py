"""Where a prompt's beginning comes from: pure decisions over token runs."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from corral.core.chunk import MIN_CHUNK, TokenArray, common_prefix
from corral.core.media import runs_in
from corral.engine.batch import align
from corral.engine.request import Request
from corral.engine.reuse_key import ReuseKey

MIN_REUSE = 16  # tokens that a copy or a wait must save


class Origin(enum.Enum):
    OWN = "own"  # the slot's own tokens
    SLOT = "slot"  # another live sequence
    STORE = "store"  # a saved state, in host memory or from disk
    WAIT = "wait"  # another slot is about to have it


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """What a slot has: its tokens, how many of them can be used only together, and the prompt it is
    evaluating right now."""

    slot: int
    tokens: TokenArray
    n_fixed: int = 0
    prompt: TokenArray | None = None
    can_cut_prompt: bool = True

    def usable(self, prompt: TokenArray) -> int:
        return reusable(self.tokens, prompt, self.n_fixed)

    def in_flight(self, prompt: TokenArray) -> int:
        """How much of a prompt it will have soon."""
        return reusable(self.prompt, prompt) if self.prompt is not None and self.can_cut_prompt else 0

    def is_same_prompt(self, prompt: TokenArray) -> bool:
        """It is evaluating the same prompt: what comes out serves both."""
        return self.prompt is not None and np.array_equal(self.prompt, prompt)


@dataclass(frozen=True, slots=True)
class Prefix:
    origin: Origin
    n: int
    slot: int = -1


def plan_prefix(
    prompt: TokenArray, own: CachedPrefix, neighbours: Sequence[CachedPrefix], n_stored: int
) -> Prefix:
    """The longest beginning that need not be evaluated, or the advice to wait for one.

    `n_stored`: how much of the prompt could be restored from a saved state.
    """
    best = Prefix(Origin.OWN, own.usable(prompt))
    in_flight = 0
    for other in neighbours:
        n = other.usable(prompt)
        if n >= best.n + (MIN_REUSE if best.origin is Origin.OWN else 1):
            best = Prefix(Origin.SLOT, n, other.slot)
        in_flight = max(in_flight, other.in_flight(prompt))
    if n_stored >= best.n + MIN_REUSE:
        best = Prefix(Origin.STORE, n_stored)
    if any(other.is_same_prompt(prompt) and len(other.tokens) >= best.n for other in neighbours):
        return Prefix(Origin.WAIT, len(prompt))
    return Prefix(Origin.WAIT, in_flight) if in_flight >= best.n + MIN_REUSE else best


def reusable(held: TokenArray, prompt: TokenArray, n_fixed: int = 0) -> int:
    """How much of a prompt may come from a cache: as much as could have been evaluated in chunks, with one
    left to evaluate. The first `n_fixed` tokens serve together or not at all."""
    n = common_prefix(held, prompt)
    start, end = _segment(held, prompt, n)
    n = max(min(n, end - MIN_CHUNK), start)
    if n < n_fixed:
        return 0
    n = max(start + align(n - start), n_fixed)
    return n if n >= MIN_CHUNK else 0


def _segment(held: TokenArray, prompt: TokenArray, n: int) -> tuple[int, int]:
    """Where the text begins and ends that the n-th token is in. Media are evaluated apart from the text
    around them, and serve as a whole or not at all, as does a text that is followed by some in both."""
    start, end = 0, len(prompt)
    for run in runs_in(prompt):
        is_edge = n > run.start or (n == run.start < len(held) and held[run.start] < 0)
        if not is_edge:
            return start, run.start
        if n < run.end or run.end == len(prompt):
            return run.start, run.start
        start = run.end
    return start, end


class Run(Protocol):
    """Tokens that are kept somewhere; after `shifted_from` the context was shifted."""

    @property
    def tokens(self) -> TokenArray: ...

    @property
    def shifted_from(self) -> int: ...

    @property
    def reuse_key(self) -> ReuseKey: ...


def usable(saved: Run, request: Request, n_fixed: Callable[[int], int]) -> int:
    """How much of a prompt a saved state can give."""
    if not saved.reuse_key.can_serve(request.reuse_key):
        return 0
    held = saved.tokens if request.accepts_shifted else saved.tokens[: saved.shifted_from]
    return reusable(held, request.prompt, n_fixed(len(saved.tokens)))


def replaces(new: Run, old: Run, n_fixed: Callable[[int], int]) -> bool:
    """Whether everything that an older state can give comes from a newer one as well."""
    n = len(old.tokens)
    is_exact = new.reuse_key == old.reuse_key and min(n, old.shifted_from) <= new.shifted_from
    return is_exact and common_prefix(new.tokens, old.tokens) == n >= n_fixed(len(new.tokens))


def choose_slot(idle: Sequence[tuple[int, TokenArray, int]], prompt: TokenArray, similarity: float) -> int:
    """Which idle slot (id, tokens, last use) serves a prompt: the most alike, else the longest unused."""
    if similarity > 0:
        share, _, id = max((common_prefix(tokens, prompt) / len(prompt), -id, id) for id, tokens, _ in idle)
        if share > similarity:
            return id
    return min(idle, key=lambda slot: (slot[2], slot[0]))[0]
