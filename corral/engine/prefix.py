"""Plan which prefix of a prompt is reused: pure decisions over token runs.

    held    | a a a a a a a b b b           what a slot or a saved state has
    prompt  | a a a a a a a c c c c c c
            |<- reused ->|<- evaluated ->|

The reused part ends at a chunk boundary and leaves at least one chunk (`MIN_CHUNK`) to evaluate. If
`n_fixed` tokens can be used only together, it has at least those, or ends at a checkpoint, or is empty.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from corral.core.chunk import MIN_CHUNK, TokenArray, common_prefix
from corral.core.media import runs_in
from corral.engine.batch import align
from corral.engine.checkpoint import latest
from corral.engine.request import Request
from corral.engine.reuse_key import ReuseKey

MIN_REUSE = 16  # tokens that a copy or a wait must save


class PrefixOrigin(enum.Enum):
    OWN = "own"  # the slot's own tokens
    SLOT = "slot"  # another live sequence
    STORE = "store"  # a saved state, in host memory or from disk
    WAIT = "wait"  # another slot is evaluating it


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """What a slot has: its tokens, how many of them can be used only together, and the prompt that is being
    evaluated in it."""

    slot: int
    tokens: TokenArray
    n_fixed: int = 0
    prompt: TokenArray | None = None
    can_cut_prompt: bool = True
    cuts: Sequence[int] = ()  # its checkpoints
    planned: Sequence[int] = ()  # those that it will have

    def usable(self, prompt: TokenArray) -> int:
        return reusable(self.tokens, prompt, self.n_fixed, self.cuts)

    def in_flight(self, prompt: TokenArray) -> int:
        """Return how much of a prompt it will have soon."""
        if self.prompt is None:
            return 0
        n_fixed = 0 if self.can_cut_prompt else len(self.prompt) + 1
        return reusable(self.prompt, prompt, n_fixed, self.planned)

    def is_same_prompt(self, prompt: TokenArray) -> bool:
        """Whether it is evaluating the same prompt, so that the result serves both."""
        return self.prompt is not None and np.array_equal(self.prompt, prompt)


@dataclass(frozen=True, slots=True)
class Prefix:
    origin: PrefixOrigin
    n: int
    slot: int = -1
    is_checkpoint: bool = False  # it ends at one, because it cannot be cut later


def plan_prefix(
    prompt: TokenArray, own: CachedPrefix, neighbours: Sequence[CachedPrefix], n_stored: int
) -> Prefix:
    """Choose the longest prefix that need not be evaluated, or advise waiting for one.

    `n_stored`: how much of the prompt could be restored from a saved state.
    """
    n = own.usable(prompt)
    best = Prefix(PrefixOrigin.OWN, n, is_checkpoint=0 < n < own.n_fixed)
    in_flight = 0
    for other in neighbours:
        n = other.usable(prompt)
        if n >= best.n + (MIN_REUSE if best.origin is PrefixOrigin.OWN else 1):
            best = Prefix(PrefixOrigin.SLOT, n, other.slot, 0 < n < other.n_fixed)
        in_flight = max(in_flight, other.in_flight(prompt))
    if n_stored >= best.n + MIN_REUSE:
        best = Prefix(PrefixOrigin.STORE, n_stored)
    if any(other.is_same_prompt(prompt) and len(other.tokens) >= best.n for other in neighbours):
        return Prefix(PrefixOrigin.WAIT, len(prompt))
    return Prefix(PrefixOrigin.WAIT, in_flight) if in_flight >= best.n + MIN_REUSE else best


def reusable(held: TokenArray, prompt: TokenArray, n_fixed: int = 0, cuts: Sequence[int] = ()) -> int:
    """Return how much of a prompt may come from a cache: a prefix that could have been evaluated in chunks,
    with at least one chunk left. The first `n_fixed` tokens can be used only together, or up to one of the
    `cuts`."""
    n = common_prefix(held, prompt)
    start, end = _segment(held, prompt, n)
    n = max(min(n, end - MIN_CHUNK), start)
    if n < n_fixed:
        return latest(cuts, n)
    n = max(start + align(n - start), n_fixed)
    return n if n >= MIN_CHUNK else 0


def _segment(held: TokenArray, prompt: TokenArray, n: int) -> tuple[int, int]:
    """Return the start and end of the text around the n-th token. Media are evaluated apart from the text
    around them and reused only as a whole, as is a text that media follow in both."""
    start, end = 0, len(prompt)
    for run in runs_in(prompt):
        is_edge = n > run.start or (n == run.start < len(held) and held[run.start] < 0)
        if not is_edge:
            return start, run.start
        if n < run.end or run.end == len(prompt):
            return run.start, run.start
        start = run.end
    return start, end


class KeptTokens(Protocol):
    """Tokens that are kept somewhere; after `shifted_from` the context was shifted."""

    @property
    def tokens(self) -> TokenArray: ...

    @property
    def shifted_from(self) -> int: ...

    @property
    def reuse_key(self) -> ReuseKey: ...

    @property
    def cuts(self) -> Sequence[int]:
        """Its checkpoints."""


def usable(saved: KeptTokens, request: Request, n_fixed: Callable[[int], int]) -> int:
    """Return how much of a prompt a saved state can provide."""
    if not saved.reuse_key.can_serve(request.reuse_key):
        return 0
    held = saved.tokens if request.accepts_shifted else saved.tokens[: saved.shifted_from]
    return reusable(held, request.prompt, n_fixed(len(saved.tokens)), saved.cuts)


def replaces(new: KeptTokens, old: KeptTokens, n_fixed: Callable[[int], int]) -> bool:
    """Whether a newer state provides everything that an older one can."""
    n = len(old.tokens)
    is_exact = new.reuse_key == old.reuse_key and min(n, old.shifted_from) <= new.shifted_from
    can_cut = n >= n_fixed(len(new.tokens)) or {n, *old.cuts} <= set(new.cuts)
    return is_exact and common_prefix(new.tokens, old.tokens) == n and can_cut


def choose_slot(
    idle: Sequence[tuple[int, TokenArray, int]],
    prompt: TokenArray,
    similarity: float,
    akin: Collection[int] = (),
) -> int:
    """Choose the idle slot (id, tokens, last use) for a prompt: the most similar, else the least recently
    used. `akin` last served the same `prompt_cache_key`: these are preferred to slots that are not similar,
    whose part of the prompt is copied if it is longer (`plan_prefix`)."""
    if similarity > 0 or akin:
        n_common = {id: common_prefix(tokens, prompt) for id, tokens, _ in idle}
        best = max(n_common, key=lambda id: (n_common[id], id in akin, -id))
        if similarity > 0 and n_common[best] / len(prompt) > similarity:
            return best
        if akin:
            return max(akin, key=lambda id: (n_common[id], -id))
    return min(idle, key=lambda slot: (slot[2], slot[0]))[0]
